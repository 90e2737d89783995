"""Invalid calls: each error names the value and says what to write instead."""

from __future__ import annotations

import asyncio
import copy
import math
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch

import copyspec
from copyspec.api import _STATE, ModelKeywords
from tests.helpers.texts import byte_level, engine, llama


def message(error: type[Exception], *arguments: object, **options: Any) -> str:
    with pytest.raises(error) as caught:
        copyspec.generate(*arguments, **{"model": engine(), **options})
    assert len(str(caught.value)) < 800
    return str(caught.value)


class Unprintable:
    def __repr__(self) -> str:
        raise RuntimeError


CHAT = [{"role": "user", "content": "a"}]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"temprature": 1}, "unknown option 'temprature'; did you mean 'temperature'?"),
        ({"reference": "a"}, "unknown option 'reference'; did you mean 'references'?"),
        ({"do_sample": True}, "unknown option 'do_sample'; here it is temperature (0 is greedy)"),
        ({"max_length": 9}, "unknown option 'max_length'; here it is max_new_tokens, which counts without the prompt"),
        (
            {"pad_token_id": 0},
            "unknown option 'pad_token_id'; here it is not needed: prompts of a list may have any",
        ),
        ({"use_cache": True}, "unknown option 'use_cache'; here it is not needed: keys and values are always kept"),
        ({"prompt_lookup_num_tokens": 4}, "here it is not needed: copies are drafted anyway (max_draft_nodes limits"),
        ({"num_beams": 4}, "unknown option 'num_beams'; here it is not supported: outputs are greedy or sampled"),
        ({"typical_p": 0.9}, "'typical_p'; here it is not supported: samples are truncated by top_k, top_p and min_p"),
        ({"forced_eos_token_id": 1}, "here it is generation_config={'forced_eos_token_id': ...}"),
        ({"eos_token_id": 5}, "here it is stop_token_ids, besides the model's own; generation_config={'eos_token_id'"),
        (
            {"prefix_allowed_tokens_fn": max},
            "here it is logits_processor=PrefixConstrainedLogitsProcessor(function, 1)",
        ),
        ({"xyzzy": 1}, "unknown option 'xyzzy'; options are adapter, batch_size, chat"),
        ({"stop": 5}, "stop must be a str or a list of them; got int: 5"),
        ({"stop_token_ids": "ab"}, "stop_token_ids must be a list of token ids; got str: 'ab'"),
        ({"stop_token_ids": ["a"]}, "stop_token_ids must be a list of token ids (for strings there is stop=)"),
        (
            {"stop_token_ids": [[1]]},
            "stop_token_ids must be a list of token ids (for strings there is stop=); got list",
        ),
        ({"stream": "no"}, "stream must be True or False; got str: 'no'"),
        ({"system": 5}, "system must be a str; got int: 5"),
        ({"chat": "yes"}, "chat must be 'auto', True or False; got str: 'yes'"),
        ({"drafter": "ngram"}, "drafter must be 'auto', 'copy', 'model', 'none', a function that makes a drafter"),
        ({"ignore_eos": "no"}, "ignore_eos must be True or False; got str: 'no'"),
        ({"logits_processor": 5}, "logits_processor must be an instance of it, or a list of them; got int: 5"),
        ({"stopping_criteria": [dict]}, "stopping_criteria must be an instance of it, or a list of them"),
        ({"prediction": {"text": "a"}}, "prediction must be {'type': 'content', 'content': 'the expected text'}"),
        ({"edit_source": 5}, "edit_source must be a str, or a list with one per prompt; got int: 5"),
        ({"trace": "no"}, "trace must be True or False; got str: 'no'"),
        ({"trace": np.zeros(2)}, "trace must be True or False; got ndarray"),
        ({"system": Unprintable()}, "system must be a str; got Unprintable: <a value whose repr raises RuntimeError>"),
        ({"generation_config": {1: 2}}, "generation_config has no setting 1"),
        ({"generation_config": {"stop_strings": 3}}, "generation_config.stop_strings must be a str or a list of them"),
        ({"generation_config": {"do_sample": "false"}}, "generation_config.do_sample must be True or False; got str"),
    ],
)
def test_wrong_options_raise_type_errors(options: dict[str, Any], expected: str) -> None:
    assert expected in message(TypeError, "a", **options)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"temperature": -1}, "temperature must be a number at least 1e-06 and at most 1e+06 (or 0: greedy), got -1"),
        ({"temperature": 1e-320}, "temperature must be a number at least 1e-06"),
        ({"temperature": float("inf")}, "and at most 1e+06 (or 0: greedy), got inf"),
        ({"temperature": float("nan")}, "and at most 1e+06 (or 0: greedy), got nan"),
        ({"temperature": False}, "temperature must be a number"),
        ({"repetition_penalty": float("inf")}, "repetition_penalty must be a number above 0 and at most 1e+06"),
        (
            {"temperature": "hot"},
            "temperature must be a number at least 1e-06 and at most 1e+06 (or 0: greedy), got 'hot'",
        ),
        ({"top_p": 0}, "top_p must be a number above 0 and at most 1 (1 turns it off), got 0"),
        ({"top_k": 1.5}, "top_k must be an integer >= 0 (0 turns it off), got 1.5"),
        ({"max_new_tokens": 0}, "max_new_tokens must be an integer >= 1, got 0"),
        ({"max_tokens": True}, "max_tokens must be an integer >= 1, got True"),
        ({"max_tokens": 3, "max_new_tokens": 4}, "max_new_tokens=4 and max_tokens=3 are two names for one limit"),
        ({"seed": -1}, "seed must be an integer >= 0, got -1"),
        ({"n": 2**31}, "n must be an integer from 1 to 4096 (for more, call several times), got 2147483648"),
        ({"logit_bias": [1]}, "logit_bias must map token ids to numbers, got [1]"),
        ({"stop": ["a", ""]}, "stop must be a non-empty string or a list of them, got ''"),
        ({"max_draft_nodes": -1}, "max_draft_nodes must be an integer from 0 to 1024 (0 decodes plainly), got -1"),
        ({"n": 2, "temperature": 0}, "n=2 needs a temperature above 0: greedy samples would all be the same"),
        ({"batch_size": 0}, "batch_size must be an integer >= 1, got 0"),
        ({"system": "Be kind.", "chat": False}, "system= makes the prompt a chat; leave out chat=False"),
        ({"logit_bias": {9999: 1.0}}, "logit_bias holds token id 9999, but the model's vocabulary ends at 332"),
        ({"stop_token_ids": [5, 9999]}, "stop_token_ids holds token id 9999, but the model's vocabulary ends at 332"),
        ({"edit_source": ["a", "b"]}, "edit_source holds 2 texts for 1 prompt; give one per prompt"),
        ({"edit_source": []}, "edit_source holds 0 texts for 1 prompt"),
        ({"temperature": []}, "temperature is an empty list; give one value for all prompts, or one per prompt"),
        ({"seed": []}, "seed is an empty list"),
        ({"seed": [1, -1]}, "seed must be an integer >= 0, got -1"),
        ({"temperature": np.ones(3)}, "temperature holds 3 values for 1 prompt"),
        ({"top_k": "x" * 9999}, "top_k must be an integer >= 0 (0 turns it off), got 'xxx"),
        ({"threads": 10**9}, "threads must be an integer from 1 to 1024, got 1000000000"),
        ({"system": "\ud800"}, "system holds a lone surrogate at character 0"),
        ({"generation_config": {"max_new_tokens": "a"}}, "generation_config.max_new_tokens must be an integer"),
        (
            {"generation_config": {"max_new_tokens": 0}},
            "generation_config.max_new_tokens must be an integer >= 1",
        ),
        ({"generation_config": {"max_length": math.inf}}, "generation_config.max_length must be an integer >= 1"),
        ({"generation_config": {"num_beams": "4"}}, "generation_config.num_beams must be an integer >= 1"),
        ({"generation_config": {"top_k": np.ones(2)}, "temperature": 1.0}, "top_k must be an integer >= 0"),
    ],
)
def test_wrong_values_raise_value_errors(options: dict[str, Any], expected: str) -> None:
    assert expected in message(ValueError, "a", **options)


@pytest.mark.parametrize(
    ("prompt", "error", "expected"),
    [
        ("", ValueError, "prompt is an empty string; the model needs at least one token to continue from"),
        ([], ValueError, "prompt is an empty list; give a str, a chat"),
        (["a", ""], ValueError, "prompt[1] is an empty string"),
        (["a", []], ValueError, "prompt[1] is an empty list"),
        (None, TypeError, "prompt must be a str, a chat"),
        (5, TypeError, "got int: 5"),
        (b"a", TypeError, "got bytes: b'a'"),
        (["a", 5], TypeError, "prompt[1] must be a str, a chat"),
        (CHAT[0], TypeError, "prompt is a single chat message; a chat is a list of messages: [{'role': 'user'"),
        ([CHAT[0], "a"], ValueError, "prompt[1] is not a chat message: 'a'; write {'role': 'user', 'content': 'text'}"),
        ([{"content": "a"}], ValueError, "prompt[0] is not a chat message: {'content': 'a'}"),
        ([1, "a"], ValueError, "prompt[1] is not a token id: 'a'"),
        ([5, -1], ValueError, "prompt[1] is not a token id: -1; token ids are integers from 0"),
        ([5, 9999], ValueError, "prompt 0 holds token id 9999, but the model's vocabulary ends at 332"),
        ("a\ud800", ValueError, "prompt holds a lone surrogate at character 1: '\\ud800'"),
        (torch.ones(1, 2, device="meta", dtype=torch.long), TypeError, "prompt must be a str, a chat"),
        (torch.ones(1, 2, dtype=torch.long).to_sparse(), TypeError, "prompt must be a str, a chat"),
        ({"input_ids": "abc"}, TypeError, "prompt: input_ids must be token ids; got str: 'abc'"),
        (
            {"input_ids": [5, 6], "attention_mask": [1, math.nan]},
            ValueError,
            "prompt: attention_mask holds 0 and 1; got nan",
        ),
        ([5] * 300, ValueError, "prompt 0 has 300 tokens, but the model's context is 256; shorten it, or give"),
    ],
)
def test_wrong_prompts(prompt: object, error: type[Exception], expected: str) -> None:
    assert expected in message(error, prompt)


@pytest.mark.parametrize(
    ("prompt", "references", "error", "expected"),
    [
        ("a", 5, TypeError, "references must be a str, an object with .page_content, {'text': ...}"),
        ("a", ["b", 5], TypeError, "references[1] must be a str"),
        (
            "a",
            {"content": "b"},
            TypeError,
            "references is a dict without a text; write {'text': 'the text'}, got dict:",
        ),
        ("a", Path("notes.txt"), TypeError, "read the file first, no path is opened here"),
        ("a", [1, -2], ValueError, "references[1] is not a token id: -2"),
        (
            ["a", "b"],
            [["c"]],
            ValueError,
            "references holds 1 lists for 2 prompts; give one list per prompt, or one flat",
        ),
        (
            ["a", "b"],
            [["c"], "d"],
            TypeError,
            "references mixes lists with single references: references[1] is str: 'd'",
        ),
        ("a", torch.ones(2, device="meta"), TypeError, "references must be a str"),
        ("a", [torch.ones(2, dtype=torch.long).to_sparse()], TypeError, "references[0] must be a str"),
        ("a", ["\udc80"], ValueError, "references[0] holds a lone surrogate at character 0"),
    ],
)
def test_wrong_references(prompt: object, references: object, error: type[Exception], expected: str) -> None:
    assert expected in message(error, prompt, references)


def test_a_prompt_under_its_name_of_transformers_is_told() -> None:
    tiny, agenerate = engine(), cast("Any", copyspec.agenerate)
    encoded = tiny.tokenizer("a cat", return_tensors="pt")
    said = "here it is the first argument, a prompt: give the tokenizer's encoding itself"
    with_model: dict[str, Any] = {**encoded, "model": tiny}
    calls: list[Any] = [copyspec.generate, copyspec.compare, lambda **kwargs: asyncio.run(agenerate(**kwargs))]
    for call in calls:
        with pytest.raises(TypeError, match=f"'input_ids'; {said}"):
            call(**with_model)
    for name in ("input_ids", "inputs"):
        unnamed: dict[str, Any] = {name: encoded["input_ids"]}
        with pytest.raises(TypeError, match=f"{name!r}; {said}"):
            tiny.generate(**unnamed)
    nothing: dict[str, Any] = {}
    with pytest.raises(TypeError, match=r"prompt must be .*; got NoneType: None"):
        tiny.generate(**nothing)


@pytest.mark.parametrize("name", ModelKeywords.__annotations__)
def test_an_engine_has_its_model_already(name: str) -> None:
    options: dict[str, Any] = {name: "default"}
    with pytest.raises(TypeError, match=f"unknown option {name!r}; here it is fixed: an engine is loaded with it"):
        engine().generate("a", **options)


def test_one_edited_text_for_several_prompts_is_an_error() -> None:
    assert "edit_source is one text for 2 prompts; give a list" in message(TypeError, ["a", "b"], edit_source="a")
    assert "edit_source[1] must be a str; got int: 5" in message(TypeError, ["a", "b"], edit_source=["a", 5])


def test_a_tokenizer_larger_than_the_model_is_named() -> None:
    small = copyspec.Engine(llama(200), byte_level())
    text = message(ValueError, "the cat sat", model=small)
    assert re.search("prompt 0 holds token id .+, but the model's vocabulary ends at 199; was the model made for", text)


def test_chats_that_cannot_be() -> None:
    assert "needs a str or a chat; prompt 0 is token ids" in message(ValueError, [5], system="Be kind.")
    assert "prompt 0 is a chat, but chat=False is given" in message(ValueError, CHAT, chat=False)
    model = llama(len(byte_level()))
    bare = copyspec.Engine(model, byte_level(template=None))
    assert "has no chat template: give the prompt as a str" in message(ValueError, CHAT, model=bare)


def test_wrong_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_STATE, "configured", None)
    assert "model must be a hub id, a folder, a transformers model or an Engine; got int: 5" in message(
        TypeError, "a", model=5
    )
    missing = tmp_path / "missing"
    assert f"model {str(missing)!r} is a path, but there is no such folder" in message(OSError, "a", model=missing)
    assert "cannot be loaded from this folder: there is no config.json in it: give the folder" in message(
        OSError, "a", model=tmp_path
    )
    for name in ("x.gguf", "checkpoint-5/config.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
        assert f"or {'the file ' if 'gguf' in name else ''}" in message(OSError, "a", model=tmp_path)
        assert repr(str(tmp_path / name.partition("/")[0])) in message(OSError, "a", model=tmp_path)
        (tmp_path / name).unlink()
    assert "(did you mean 'smollm2'?)" in message(OSError, "a", model="smolm2")
    assert "dtype must be one of auto, float32" in message(ValueError, "a", model=str(missing), dtype="float8")
    assert "dtype must be one of auto, float32" in message(TypeError, "a", model=str(missing), dtype=8)
    assert "on_unsupported must be 'error' or 'plain'" in message(ValueError, "a", model="x", on_unsupported="no")
    assert "model is a loaded engine: device cannot be changed" in message(ValueError, "a", device="cpu")
    model = llama(len(byte_level()))
    assert "without a name to find its tokenizer by; give tokenizer= too" in message(TypeError, "a", model=model)
    options = {"model": model, "tokenizer": byte_level()}
    assert "dtype='float16' is given, but the model's is torch.float32" in message(
        ValueError, "a", dtype="float16", **options
    )


def test_a_model_that_is_nowhere_says_where_was_looked(monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    text = message(copyspec.LoadError, "a", model="nobody/nothing-of-this-name")
    assert re.search(r"is neither a folder here nor in the cache .+, and HF_HUB_OFFLINE forbids", text)
    assert "nobody/nothing-of-this-name" in text


def test_no_model_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from copyspec.models import loading

    monkeypatch.setattr(_STATE, "configured", None)
    monkeypatch.setattr(loading, "BUNDLED", tmp_path)
    monkeypatch.setattr(loading, "is_ready", lambda alias: False)
    monkeypatch.setattr(_STATE, "defaults", {})
    monkeypatch.delenv("COPYSPEC_MODEL", raising=False)
    text = message(copyspec.LoadError, "a", model=None)
    assert "give model='a hub id or a folder', call copyspec.configure(model=...), or set COPYSPEC_MODEL" in text


def test_a_model_in_training_mode_is_refused() -> None:
    model = llama(len(byte_level()), seed=11)
    model.train()
    try:
        assert "call model.eval() first" in message(ValueError, "a", model=model, tokenizer=byte_level())
    finally:
        model.eval()


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
def test_what_is_in_use_is_neither_copied_nor_pickled(copied: Callable[[object], object]) -> None:
    with pytest.raises(TypeError, match=r"Engine\('.*'\) cannot be copied or pickled: .*copyspec\.load"):
        copied(engine())
    with pytest.raises(TypeError, match="a running call cannot be copied or pickled; its results can"):
        copied(engine().submit("a"))


def test_configure_and_load_check_their_arguments() -> None:
    with pytest.raises(TypeError, match="unknown option 'modle'; did you mean 'model'"):
        copyspec.configure(modle="x")  # type: ignore[call-arg]
    with pytest.raises(ValueError, match=r"configure needs model=\.\.\. beside dtype"):
        copyspec.configure(dtype="float32")
    for wrong in (0, True):
        with pytest.raises(ValueError, match=f"max_loaded must be an integer >= 1, got {wrong}"):
            copyspec.configure(max_loaded=wrong)
    with pytest.raises(TypeError, match="unknown option 'temperature'; options are adapter, device, dtype"):
        copyspec.load("x", temperature=1)  # type: ignore[call-arg]


def test_compare_says_when_there_is_nothing_to_compare() -> None:
    with pytest.raises(ValueError, match="compare needs drafts on one side"):
        copyspec.compare("a", model=engine(), drafter="none")
    with pytest.raises(ValueError, match="n=2 is not supported"):
        copyspec.compare("a", model=engine(), n=2, temperature=1.0)
    with pytest.raises(ValueError, match=r"needs whole outputs, and max_time=2\.0 may cut"):
        copyspec.compare("a", model=engine(), max_time=2.0)
    with pytest.raises(ValueError, match=r"compare has no deadline, and timeout=2\.0 would have no effect: leave it"):
        copyspec.compare("a", model=engine(), timeout=2.0)
