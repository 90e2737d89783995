"""What strangers write first, out of habit of other libraries, gets an answer that says what to write here."""

from __future__ import annotations

import copy
import json
import logging
from dataclasses import asdict
from pathlib import Path

import pytest
from transformers.utils.logging import enable_progress_bar

import copyspec
from copyspec import Engine
from kit.gguf_files import write_llama
from tests.helpers.models import tiny
from tests.helpers.texts import byte_level
from tests.helpers.tiny import tiny_engine, tiny_model, tiny_tokenizer

LOADING = {
    "attn_implementation": "sdpa",
    "device_map": "auto",
    "token": "hf_x",
    "quantization_config": {},
    "cache_dir": "x",
    "local_files_only": True,
    "load_in_4bit": True,
    "load_in_8bit": True,
}
HINTS: dict[str, tuple[object, str]] = {
    **{name: (value, rf"copyspec\.load\(model, model_kwargs=.*{name!r}") for name, value in LOADING.items()},
    "torch_dtype": ("auto", r"copyspec\.load\(model, dtype="),
    "frequency_penalty": (0.1, "repetition_penalty is, and a logits_processor"),
    "presence_penalty": (0.1, "repetition_penalty is, and a logits_processor"),
    "base_url": ("http://x", "the model runs in this process"),
    "enable_thinking": (False, "chat_template_kwargs={'enable_thinking': ...}"),
    "reasoning_effort": ("low", "chat_template_kwargs={'reasoning_effort': ...}"),
    "max_length": (9, "max_new_tokens, which counts without the prompt"),
    "low_cpu_mem_usage": (True, "not needed"),
    "response_format": ({}, "json_schema"),
    "guided_json": ({}, "here it is json_schema"),
    "guided_regex": ("a", "here it is regex"),
    "guided_choice": (["a"], "here it is choices"),
    "guided_grammar": ("a", "here it is grammar"),
    "guided_decoding": ({}, "json_schema, regex, choices or grammar"),
    "structured_outputs": ({}, "json_schema, regex, choices or grammar"),
    "sampling_params": ({}, "temperature, top_p, stop and others are options"),
    "max_model_len": (64, "max_new_tokens limits an output"),
    "n_ctx": (64, "max_new_tokens limits an output"),
    "gpu_memory_utilization": (0.5, "not supported"),
    "skip_special_tokens": (True, "a text holds no special tokens"),
    "max_completion_tokens": (4, "here it is max_new_tokens"),
    "num_predict": (4, "here it is max_new_tokens"),
    "min_tokens": (4, "here it is min_new_tokens"),
    "repeat_penalty": (1.1, "here it is repetition_penalty"),
    "logits_processors": ([], "here it is logits_processor"),
    "top_logprobs": (2, "here it is logprobs"),
    "best_of": (2, "here it is n"),
    "return_full_text": (False, "a result's text is the output alone"),
}


@pytest.fixture(scope="module")
def engine() -> Engine:
    return tiny_engine(name="tiny")


@pytest.mark.parametrize("name", HINTS)
def test_arguments_of_other_libraries_are_explained(engine: Engine, name: str) -> None:
    value, hint = HINTS[name]
    for call in (
        lambda: engine.generate("a", **{name: value}),  # type: ignore[call-overload]
        lambda: copyspec.generate("a", model=engine, **{name: value}),  # type: ignore[call-overload]
        lambda: copyspec.load(tiny_model(), **{name: value}),  # type: ignore[arg-type]
    ):
        with pytest.raises(TypeError, match=hint) as caught:
            call()
        assert "hf_x" not in str(caught.value)


@pytest.mark.parametrize("name", HINTS)
def test_so_they_are_for_langchain(engine: Engine, name: str) -> None:
    pytest.importorskip("langchain_core")
    from copyspec.pipelines.langchain import ChatCopySpec

    value, hint = HINTS[name]
    with pytest.raises(ValueError, match=hint):
        ChatCopySpec(model=engine, **{name: value})  # type: ignore[arg-type]


def test_a_models_path_as_the_prompt_is_noticed(
    engine: Engine, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tiny_model().save_pretrained(tmp_path / "model")
    (tmp_path / "empty").mkdir()
    (tmp_path / "a.gguf").write_bytes(b"GGUF")
    cases = [("model", True), ("a.gguf", True), ("empty", False), ("absent", False), ("model\n", False)]
    for name, warns in cases:
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            engine.generate([str(tmp_path / name)], max_new_tokens=1)
        assert ("give it as model=" in caplog.text) is warns, name
    with pytest.raises(TypeError, match="given as model="):
        engine.generate(tmp_path, max_new_tokens=1)  # type: ignore[call-overload]


OPTIONS: list[dict[str, object]] = [
    {},
    {"n": 2, "temperature": 1.0},
    {"trace": True},
    {"logprobs": 2},
    {"chat": True},
]


@pytest.mark.parametrize("options", OPTIONS)
def test_results_become_dicts_and_copies(options: dict[str, object]) -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    engine = Engine(tiny_model(), tokenizer, name="tiny")
    result = engine.generate("the cat sat", ["the cat sat on"], max_new_tokens=6, **options)  # type: ignore[call-overload]
    fields = asdict(result)
    assert fields["text"] == result.text and fields["token_ids"] == result.token_ids
    assert len(fields["samples"]) == len(result.samples)
    assert json.loads(json.dumps(result.to_dict()))["text"] == result.text
    assert copy.deepcopy(result).spans == result.spans and asdict(result)["text"] == result.text


def test_token_ids_of_json_bias_as_integers_do(engine: Engine) -> None:
    for bias in ({7: 100.0}, {7: -100.0, 9: 3.0}, {0: 50.0}):
        text = json.loads(json.dumps({"logit_bias": bias}))["logit_bias"]
        plain = engine.generate("a", max_new_tokens=4, logit_bias=bias)
        assert engine.generate("a", max_new_tokens=4, logit_bias=text).token_ids == plain.token_ids
    for wrong in ("x", "-1", "1.5", "\u0663", "9" * 40, " 7", ""):
        with pytest.raises(ValueError, match="a token id must be an integer"):
            engine.generate("a", logit_bias={wrong: 1.0})  # type: ignore[dict-item]
    with pytest.raises(ValueError, match="two values for token id 7"):
        engine.generate("a", logit_bias={7: 1.0, "7": 2.0})  # type: ignore[dict-item]


def test_the_repr_of_langchains_models_shows_their_model(engine: Engine) -> None:
    pytest.importorskip("langchain_core")
    from copyspec.pipelines.langchain import ChatCopySpec, CopySpecLLM

    for kind in (ChatCopySpec, CopySpecLLM):
        assert repr(kind(model=engine)).startswith(f"{kind.__name__}(model='tiny'")
        assert "model='a/b'" in repr(kind(model="a/b"))
        assert "model='copyspec-default'" in repr(kind(model="default"))


@pytest.mark.parametrize("kind", ["folder", "gguf"])
def test_no_bars_in_pipes(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    model = tmp_path / "model"
    if kind == "gguf":
        pytest.importorskip("gguf")
        model = tmp_path / "model.gguf"
        write_llama(model, tiny("llama", vocab_size=len(byte_level()), tie_word_embeddings=True), byte_level())
    else:
        tiny_model().save_pretrained(model)
        tiny_tokenizer().save_pretrained(model)
    monkeypatch.setenv("COPYSPEC_CACHE", str(tmp_path / "cache"))
    enable_progress_bar()  # type: ignore[no-untyped-call]  # as in a program that has loaded nothing yet
    capfd.readouterr()
    copyspec.load(model)
    assert capfd.readouterr() == ("", "")
