"""The model's current state is used in every call: its generation_config, tokens, sizes and adapters."""

from __future__ import annotations

import re
import threading
from copy import deepcopy
from typing import Any

import pytest
import torch
from transformers import GenerationConfig

from copyspec import Engine
from copyspec.engine.asking.call_options import check_options
from copyspec.engine.logits.language import Language
from tests.helpers.tiny import tiny_engine

PROMPT = "some text that the model goes on with"


@pytest.fixture(autouse=True)
def _no_ngrams(monkeypatch: pytest.MonkeyPatch) -> None:
    """They would take a third of a second per engine; tests/drafters/test_ngrams.py tests them."""
    monkeypatch.setattr(Language, "ngrams", None)


@pytest.fixture
def tiny() -> Engine:
    return tiny_engine()


def plain(engine: Engine, **options: Any) -> list[int]:
    """Return the model's own output with its current config."""
    ids = torch.tensor([engine.tokenizer(PROMPT)["input_ids"]])
    with torch.inference_mode():
        output = engine.model.generate(ids, do_sample=False, max_new_tokens=16, **options)  # type: ignore[operator]
    return [int(token) for token in output[0, ids.shape[1] :]]


def written(engine: Engine, **options: Any) -> list[int]:
    return list(engine.generate(PROMPT, max_new_tokens=16, **options).token_ids)


CHANGES: list[dict[str, Any]] = [
    {"eos_token_id": 40},
    {"repetition_penalty": 1.7},
    {"suppress_tokens": list(range(100, 200))},
    {"forced_eos_token_id": 7, "min_new_tokens": 5},
    {"bad_words_ids": [[token] for token in range(60, 120)]},
    {"no_repeat_ngram_size": 1},
]


@pytest.mark.parametrize("replaced", [False, True])
def test_each_call_reads_the_config_that_the_model_has_then(tiny: Engine, replaced: bool) -> None:
    original = deepcopy(tiny.model.generation_config)
    assert original is not None
    seen = set()
    for changes in [{}, *CHANGES, {}]:
        config = deepcopy(original) if replaced else tiny.model.generation_config
        assert config is not None
        for name in {name for names in CHANGES for name in names}:
            setattr(config, name, changes.get(name, getattr(original, name)))
        tiny.model.generation_config = config
        expected = plain(tiny)
        assert written(tiny) == written(tiny, drafter="none") == expected
        seen.add(tuple(expected))
    assert len(seen) > 3, "the changes change something"


def test_an_end_of_sequence_and_stop_strings_that_are_set_later(tiny: Engine) -> None:
    free = tiny.generate(PROMPT, max_new_tokens=16, ignore_eos=True)
    config = tiny.model.generation_config
    assert config is not None
    config.eos_token_id = [free.token_ids[5], 0]
    ended = tiny.generate(PROMPT, max_new_tokens=16)
    assert (
        ended.finish_reason == "stop"
        and ended.token_ids == free.token_ids[: free.token_ids.index(ended.token_ids[-1]) + 1]
    )
    config.eos_token_id = torch.tensor(free.token_ids[5])
    assert tiny.generate(PROMPT, max_new_tokens=16).token_ids == ended.token_ids
    config.eos_token_id = None
    assert tiny.generate(PROMPT, max_new_tokens=16).token_ids == free.token_ids
    config.eos_token_id = -1  # means "none" in some checkpoints
    assert tiny.generate(PROMPT, max_new_tokens=16).token_ids == free.token_ids
    stop = free.text.strip("\ufffd")[-2:]
    config.stop_strings = stop
    assert tiny.generate(PROMPT, max_new_tokens=16).stop_reason == stop


@pytest.mark.parametrize(
    ("config", "error", "message"),
    [
        (None, ValueError, r"it has no generation_config; set model\.generation_config"),
        ({"eos_token_id": 3}, TypeError, r"must be a transformers GenerationConfig, got dict: \{'eos_token_id': 3\}"),
    ],
)
def test_what_is_no_config_is_named(tiny: Engine, config: Any, error: type[Exception], message: str) -> None:
    tiny.model.generation_config = config
    with pytest.raises(error, match=message):
        tiny.generate(PROMPT)
    with pytest.raises(error, match=message):
        Engine(tiny.model, tiny.tokenizer)


@pytest.mark.parametrize("eos", ["</s>", 1.5, ["</s>"], True])
def test_what_is_no_end_of_sequence_is_named(tiny: Engine, eos: Any) -> None:
    config = GenerationConfig()
    config.eos_token_id = eos
    tiny.model.generation_config = config
    with pytest.raises(ValueError, match=r"generation_config\.eos_token_id must be a token id or a list of them, got"):
        tiny.generate(PROMPT)


def test_what_is_not_applied_is_told_once_for_each_config(tiny: Engine, caplog: pytest.LogCaptureFixture) -> None:
    for penalty in (0.5, 0.5, 0.7, 0.5):
        tiny.model.generation_config = GenerationConfig(penalty_alpha=penalty)
        for _ in range(2):
            tiny.generate(PROMPT, max_new_tokens=2)
    warnings = [record.getMessage() for record in caplog.records if "penalty_alpha" in record.getMessage()]
    assert warnings == [f"generation_config has penalty_alpha={value}, which is not applied" for value in (0.5, 0.7)]


def test_tokens_that_are_added_later_are_control_tokens_then(tiny: Engine) -> None:
    tokenizer, model = tiny.tokenizer, tiny.model
    before = tiny.generate("a<|new|>b", max_new_tokens=4)
    tokenizer.add_special_tokens({"additional_special_tokens": [*tokenizer.all_special_tokens, "<|new|>"]})
    with torch.no_grad():
        model.resize_token_embeddings(len(tokenizer))
    new = tokenizer.convert_tokens_to_ids("<|new|>")
    fresh = Engine(model, tokenizer)
    for prompt in ("a<|new|>b", [5, new, 6]):
        result = tiny.generate(prompt, max_new_tokens=6, draft_model="layers:1")
        assert result.token_ids == fresh.generate(prompt, max_new_tokens=6).token_ids
    assert tiny.generate("a<|new|>b", max_new_tokens=4).prompt_tokens == before.prompt_tokens, "text stays text"
    assert tiny.generate([new], max_new_tokens=3, logit_bias={new: 100.0}).token_ids == (new,) * 3


def test_tokens_that_are_added_in_training_are_control_tokens_afterwards(tiny: Engine) -> None:
    tokenizer, model = tiny.tokenizer, tiny.model
    tokenizer.add_special_tokens({"additional_special_tokens": [*tokenizer.all_special_tokens, "<|new|>"]})
    with torch.no_grad():
        model.resize_token_embeddings(len(tokenizer))
    model.train()
    with pytest.raises(ValueError, match="training mode"):
        tiny.generate("a")
    model.eval()
    result = tiny.generate("a<|new|>b", max_new_tokens=6)
    assert result.token_ids == Engine(model, tokenizer).generate("a<|new|>b", max_new_tokens=6).token_ids


def test_a_template_that_is_set_later(tiny: Engine) -> None:
    tokenizer = tiny.tokenizer
    tokenizer.chat_template = "{% for m in messages %}<s1>{{ m['content'] }}{% endfor %}"
    tokenizer.add_tokens(["<s1>"])
    tiny.model.resize_token_embeddings(len(tokenizer))
    control = tokenizer.convert_tokens_to_ids("<s1>")
    ids = tiny.codec.encode_chat([{"role": "user", "content": "a<s1>b"}]).ids
    jobs, _ = tiny.jobs([{"role": "user", "content": "a<s1>b"}], None, check_options({}))
    assert ids.count(control) == 2 and list(jobs[0].request.prompt).count(control) == 1


def test_one_of_several_templates_that_is_set_later(tiny: Engine) -> None:
    chat, options = [{"role": "user", "content": "a<s1>b"}], check_options({})
    tokenizer = tiny.tokenizer
    tokenizer.add_tokens(["<s1>"])
    tiny.model.resize_token_embeddings(len(tokenizer))
    control = tokenizer.convert_tokens_to_ids("<s1>")
    templates = {"default": "{{ messages[0]['content'] }}", "tool_use": ""}
    tokenizer.chat_template = templates

    def count() -> int:
        return list(tiny.jobs(chat, None, options)[0][0].request.prompt).count(control)

    assert count() == 1, "no template has it, so it is no control token"
    templates["default"] += "<s1>"
    assert tokenizer.chat_template is templates and count() == 1, "the template's"


def test_a_call_goes_on_with_what_it_began_with(tiny: Engine) -> None:
    free = written(tiny, ignore_eos=True)
    stream = tiny.stream(PROMPT, max_new_tokens=16, ignore_eos=True, drafter="none")
    first = next(stream)
    config = tiny.model.generation_config
    assert config is not None
    config.eos_token_id = free[8]
    tiny.tokenizer.add_tokens(["<later>"])
    tiny.generate(PROMPT, max_new_tokens=2)
    rest = list(stream)
    assert rest[-1].result is not None and list(rest[-1].result.token_ids) == free
    assert first.text + "".join(chunk.text for chunk in rest) == rest[-1].result.text


def test_dropout_and_weights_of_another_kind_are_noticed(tiny: Engine) -> None:
    tiny.model.train()
    with pytest.raises(ValueError, match=r"training mode"):
        tiny.generate(PROMPT)
    tiny.model.eval()
    before = written(tiny)
    tiny.model.to(torch.float64)  # type: ignore[arg-type]
    assert written(tiny) == plain(tiny)
    tiny.model.to(torch.float32)  # type: ignore[arg-type]
    tiny.model.set_attn_implementation("eager")
    assert written(tiny) == plain(tiny) == before


def test_unload_while_another_thread_decodes(tiny: Engine) -> None:
    expected = written(tiny)
    stream = tiny.stream(PROMPT, max_new_tokens=16)
    next(stream)
    errors: list[BaseException] = []
    begun = threading.Event()

    def work() -> None:
        try:
            while True:
                assert written(tiny) == expected
                begun.set()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    assert begun.wait(60)
    tiny.unload()
    for thread in threads:
        thread.join(60)
    assert [type(error) for error in errors] == [RuntimeError] * 3
    assert all(re.search(r"was unloaded.*; load the model again", str(error)) for error in errors), errors
    assert [chunk.result for chunk in stream][-1].token_ids == tuple(expected)  # type: ignore[union-attr]
