"""What a call returns of an output is its text after the prompt, wherever it is shown."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from transformers import T5Config, T5ForConditionalGeneration, set_seed

from copyspec import Engine
from copyspec.cli.showing import _Pieces
from copyspec.engine.asking.call_options import check_options
from copyspec.engine.comparison import compare_jobs
from copyspec.engine.drafting.output_cache import OutputCache
from tests.helpers.decoders import MAKERS, codec_of
from tests.helpers.texts import bart, llama

INST = "{% for m in messages %}[INST] {{ m['content'] }} [/INST]{% endfor %}"
LINE = "{% for m in messages %}{{ m['content'] }}\n{% endfor %}"


class Says:
    """Forces the model to output tokens, and then to end."""

    def __init__(self, tokens: list[int], end: int) -> None:
        self.tokens, self.start = [*tokens, end], -1

    def __call__(self, ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self.start = ids.shape[1] if self.start < 0 else self.start
        forced = torch.full_like(scores, -1e9)
        forced[:, self.tokens[min(ids.shape[1] - self.start, len(self.tokens) - 1)]] = 0
        return forced


def engine_of(kind: str, template: str | None = None) -> Engine:
    tokenizer = MAKERS[kind]()
    if template is not None:
        tokenizer = tokenizer.from_str(tokenizer.to_str()) if hasattr(tokenizer, "from_str") else tokenizer
        tokenizer.chat_template = template
    return Engine(llama(len(tokenizer)), tokenizer, name=kind)


def said(engine: Engine, prompt: object, tokens: list[int], **options: Any) -> str:
    """The text of an output of these tokens, after checking that all ways to it agree."""
    end = engine.tokenizer.eos_token_id

    def says() -> Says:
        return Says(tokens, end)

    options = {"max_new_tokens": 40, "stop_token_ids": [end], **options}
    result = engine.generate(prompt, logits_processor=says(), logprobs=2, **options)
    assert result.token_ids[: len(tokens)] == tuple(tokens) or "stop" in options
    chunks = list(engine.generate(prompt, logits_processor=says(), stream=True, **options))
    assert "".join(chunk.text for chunk in chunks) == result.text == chunks[-1].result.text
    pieces = _Pieces(engine.codec)
    assert "".join(piece for chunk in chunks for piece, _ in pieces.push(chunk)) == result.text
    if "stop" not in options:
        joined = "".join(logprob.token for logprob in result.logprobs)
        assert joined[chunks[-1].skipped :] == result.text
        checked = check_options({"logits_processor": says(), **options})
        (comparison,) = compare_jobs(engine, prompt, None, checked)
        for run in comparison.runs:
            assert "".join(landing.text for landing in run.landings) == run.result.text == result.text
    return result.text


@pytest.mark.parametrize("kind", ["byte-level", "llama 2", "mistral", "gemma", "t5", "word pieces"])
@pytest.mark.parametrize("prompt", ["the", "the cat", "the ", "the\n"])
def test_a_completion_continues_its_prompt(kind: str, prompt: str) -> None:
    engine = engine_of(kind)
    codec = engine.codec
    ids = codec.encode(prompt, wrap=True).ids
    for text in (" a", "  a the", "the", "\n a", " é"):
        tokens = codec.encode(text).ids
        known, whole = codec.decode(ids), codec.decode([*ids, *tokens])
        if tokens and whole.startswith(known):
            assert said(engine, ids, tokens) == whole[len(known) :]


@pytest.mark.parametrize("kind", ["llama 2", "mistral"])
def test_chats(kind: str) -> None:
    vocabulary = codec_of(kind).tokenizer.get_vocab()
    space, a, th = vocabulary["▁"], vocabulary["▁a"], vocabulary["th"]
    chat = [{"role": "user", "content": "the"}]
    engine = engine_of(kind, INST)
    assert said(engine, chat, [a, th]) == "ath", "the template leaves the space to the answer"
    assert said(engine, chat, [space, a, th]) == " ath", "one space"
    assert said(engine, chat, [th]) == "th"
    assert said(engine, [*chat, {"role": "assistant", "content": "the"}], [a]) == " a"
    assert said(engine_of(kind, LINE), chat, [space, a]) == "  a", "an indented line"


def test_stop_strings_begin_at_the_space() -> None:
    engine = engine_of("llama 2")
    vocabulary = engine.tokenizer.get_vocab()
    tokens = [vocabulary["▁a"], vocabulary["▁th"], vocabulary["e"]]
    assert said(engine, "the", tokens) == " a the"
    assert said(engine, "the", tokens, stop=[" th"]) == " a"
    assert said(engine, "the", tokens, stop=[" a "], include_stop=True) == " a "
    assert said(engine, "the", tokens, stop=[" a"]) == ""


def test_the_same_letters_with_and_without_a_space_are_told_apart() -> None:
    engine = engine_of("mistral")
    vocabulary = engine.tokenizer.get_vocab()
    tokens = [vocabulary["▁true"], vocabulary["true"]]
    result = engine.generate("the", logits_processor=Says(tokens, engine.tokenizer.eos_token_id), logprobs=0)
    assert [logprob.token for logprob in result.logprobs][:2] == [" true", "true"]


@pytest.mark.parametrize("text", ["naïve — “quoted”", "Crème brûlée", "🙂é", "東京 a", "ab"])
def test_bytes_of_characters_are_streamed(text: str) -> None:
    codec = codec_of("bytes")
    set_seed(0)
    config = T5Config(
        vocab_size=384, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_decoder_layers=1, num_heads=2,
        decoder_start_token_id=0, pad_token_id=0, eos_token_id=1,
    )  # fmt: skip
    tokens = codec.encode(text).ids
    for model in (T5ForConditionalGeneration(config).eval(), llama(384)):
        engine = Engine(model, codec.tokenizer, name="bytes")
        assert said(engine, "copy", tokens, max_new_tokens=60) == text
        for sign in sorted(set(text), reverse=True)[:6]:
            assert said(engine, "copy", tokens, max_new_tokens=60, stop=[sign]) == text[: text.index(sign)]


def test_an_output_cache_holds_the_text() -> None:
    engine = engine_of("llama 2")
    tokens = engine.codec.encode("a the a the").ids
    cache = OutputCache("texts")
    says = Says(tokens, engine.tokenizer.eos_token_id)
    result = engine.generate("the coast", logits_processor=says, output_cache=cache)
    assert [reference.text for reference in cache.references("the coast")] == [result.text] == [" a the a the"]
    assert engine.codec.encode_copy(result.text, " ").ids == tokens, "it is copied with the tokens that it had"
    again = Says(tokens, engine.tokenizer.eos_token_id)
    assert engine.generate("the coast", logits_processor=again, output_cache=cache).text == result.text


def test_openai_bytes_join_to_the_text() -> None:
    pytest.importorskip("langchain_core")
    from copyspec.pipelines.langchain.calls import Answers

    for kind in ("byte-level", "llama 2", "bytes", "mistral"):
        engine = engine_of(kind)
        tokens = engine.codec.encode(" é🙂 th").ids
        says = Says(tokens, engine.tokenizer.eos_token_id)
        options: dict[str, object] = {"logits_processor": says, "logprobs": 1, "max_new_tokens": 30}
        answers = Answers((engine, kind), ["the"], [[]], options, None)
        (result,) = answers.results()
        metadata = json.loads(json.dumps(answers.metadata(result)["logprobs"]))
        own = [token["bytes"] for token in metadata["content"]]
        assert bytes(byte for part in own for byte in part).decode() == result.text


@pytest.mark.parametrize("kind", ["llama 2", "mistral", "gemma", "t5", "byte-level"])
@pytest.mark.parametrize("decodes_only", [True, False])
def test_constraints_hold_for_the_text(kind: str, *, decodes_only: bool) -> None:
    pytest.importorskip("llguidance")
    codec = codec_of(kind)
    size, end = len(codec.tokenizer), codec.tokenizer.eos_token_id
    model = llama(size) if decodes_only else bart(size)
    engine = Engine(model, codec.tokenizer, name=kind)
    for choices in (["the cat", "sea"], [" the"], ["the"], ["a", " a", "  a"]):
        for seed in range(4):
            options: dict[str, Any] = {"choices": choices, "temperature": 1.5, "seed": seed, "stop_token_ids": [end]}
            result = engine.generate("the", max_new_tokens=20, **options)
            assert result.finish_reason == "stop" and result.text in choices
    matched = engine.generate("the", regex="(the|a)( the)*", stop_token_ids=[end], max_new_tokens=20, seed=0)
    assert matched.text.startswith(("the", "a"))
