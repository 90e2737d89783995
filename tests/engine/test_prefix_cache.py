"""The prefix cache: outputs equal plain decoding and transformers, whatever earlier calls have stored."""

from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import nn

import copyspec
from copyspec.engine.asking.inputs import CopyEncodings
from copyspec.targets.hooks.model_state import ModelState
from copyspec.targets.rows.prefixes import BLOCK_TOKENS, Layers, PrefixCache
from kit import architectures
from tests.helpers.both_ways import tokenizer
from tests.helpers.models import BORDER_NAME, LONGROPE, Adapted, random_ids, tiny
from tests.helpers.texts import bart, byte_level, new_engine

OPTIONS: dict[str, Any] = {"max_new_tokens": 12, "ignore_eos": True}


def engine_of(name: str) -> copyspec.Engine:
    return copyspec.Engine(tiny(name, vocab_size=len(byte_level())), byte_level(), on_unsupported="plain")


@pytest.fixture(scope="module")
def shared() -> copyspec.Engine:
    return engine_of("llama")


@pytest.fixture
def engine(shared: copyspec.Engine) -> copyspec.Engine:
    shared.prefix_cache.clear()
    shared.prefix_cache.max_bytes = 1 << 20
    return shared


@pytest.mark.parametrize("name", ["llama", "mistral", "gemma2", "llama4_text", "deepseek_v3", "bloom", "mpt"])
def test_turns_of_a_chat_against_plain_and_transformers(name: str) -> None:
    engine = engine_of(name)
    prompt = random_ids(70)
    for turn in range(3):
        plain = engine.generate(prompt, drafter="none", **OPTIONS)
        result = engine.generate(prompt, prefix_cache=True, **OPTIONS)
        again = engine.generate(prompt, prefix_cache=True, **OPTIONS)
        ids = torch.tensor([prompt])
        own = engine.model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=12, eos_token_id=None, do_sample=False
        )
        assert result.token_ids == again.token_ids == plain.token_ids == tuple(own[0, len(prompt) :].tolist())
        assert plain.stats.num_cached_tokens == 0
        assert again.stats.num_cached_tokens == (len(prompt) - 1) // BLOCK_TOKENS * BLOCK_TOKENS
        assert (result.stats.num_cached_tokens > 0) == (turn > 0)
        prompt = [*prompt, *result.token_ids, *random_ids(9, seed=turn)]


def test_sampling_and_penalties_see_the_whole_prompt(engine: copyspec.Engine) -> None:
    prompt, options = (
        random_ids(80),
        {**OPTIONS, "temperature": 1.0, "seed": 3, "repetition_penalty": 1.4, "logprobs": 1},
    )
    plain = engine.generate(prompt, [prompt[:40]], **options)
    for _ in range(2):
        result = engine.generate(prompt, [prompt[:40]], prefix_cache=True, **options)
        assert result.token_ids == plain.token_ids
        assert [logprob.logprob for logprob in result.logprobs] == pytest.approx(
            [logprob.logprob for logprob in plain.logprobs], abs=1e-4
        )


@pytest.mark.parametrize("name", ["llama", "mpt"])
def test_prompts_of_a_batch_share_what_they_begin_with(name: str) -> None:
    engine = engine_of(name)
    prompts = [random_ids(100)[:90] + random_ids(length, seed=length) for length in (5, 40, 1)]
    plain = engine.generate(prompts, **OPTIONS)
    results = engine.generate(prompts, prefix_cache=True, **OPTIONS)
    assert [result.token_ids for result in results] == [result.token_ids for result in plain]
    assert [result.stats.num_cached_tokens for result in results] == [64, 64, 64]
    mixed = [*prompts, random_ids(50, seed=9), prompts[0][:70]]
    for size in (2, 8):
        results = engine.generate(mixed, prefix_cache=True, batch_size=size, **OPTIONS)
        assert [result.token_ids for result in results] == [
            result.token_ids for result in engine.generate(mixed, **OPTIONS)
        ]


def test_callers_at_the_same_time_and_those_that_leave(engine: copyspec.Engine) -> None:
    begins = [random_ids(64, seed=seed) for seed in range(2)]
    prompts = [begins[i % 2] + random_ids(5 + 3 * i, seed=10 + i) for i in range(8)]
    plain = [engine.generate(prompt, **OPTIONS).token_ids for prompt in prompts]
    engine.prefix_cache.max_bytes = 100 * 1024  # so small that entries are evicted all the time

    def ask(i: int) -> tuple[int, ...]:
        if i % 3 == 0:  # the caller leaves after the first chunk
            stream = engine.stream(prompts[i], prefix_cache=True, **OPTIONS)
            next(stream)
            stream.close()
        return engine.generate(prompts[i], prefix_cache=i % 5 > 0, **OPTIONS).token_ids

    with ThreadPoolExecutor(8) as pool:
        for _ in range(3):
            assert list(pool.map(ask, range(8))) == plain
    assert engine.prefix_cache.num_bytes <= 100 * 1024


def test_other_weights_are_another_model() -> None:
    engine = engine_of("llama")
    prompt = random_ids(70)
    engine.generate(prompt, prefix_cache=True, **OPTIONS)
    before = ModelState(engine.model)
    with torch.no_grad():
        engine.model.model.layers[0].self_attn.k_proj.weight.mul_(-1.0)
    assert ModelState(engine.model) != before
    plain = engine.generate(prompt, **OPTIONS)
    result = engine.generate(prompt, prefix_cache=True, **OPTIONS)
    assert result.token_ids == plain.token_ids and result.stats.num_cached_tokens == 0
    assert len(engine.prefix_cache) == 64  # states computed with the old weights are gone
    layer, rotary = engine.model.model.layers[0].mlp, engine.model.model.rotary_emb
    forward, frequencies = layer.forward, rotary.inv_freq
    for change in (
        lambda: vars(layer).update(forward=lambda hidden: -forward(hidden)),
        lambda: setattr(rotary, "inv_freq", frequencies / 2),
        lambda: (vars(layer).pop("forward"), setattr(layer, "act_fn", nn.Tanh())),
    ):
        change()
        plain = engine.generate(prompt, **OPTIONS)
        assert engine.generate(prompt, prefix_cache=True, **OPTIONS).token_ids == plain.token_ids


def test_adapters_that_are_switched_in_the_middle() -> None:
    engine = engine_of("llama")
    attention = engine.model.model.layers[0].self_attn
    attention.v_proj = adapter = Adapted(attention.v_proj)
    prompt = random_ids(70)
    outputs = {}
    for off in (False, True, False, True):
        adapter.disable_adapters = off
        plain = engine.generate(prompt, **OPTIONS)
        cached = engine.generate(prompt, prefix_cache=True, **OPTIONS)
        assert cached.token_ids == plain.token_ids
        assert cached.stats.num_cached_tokens == (64 if off in outputs else 0)
        outputs[off] = cached.token_ids
    assert outputs[False] != outputs[True]
    # A row decoded with both models is not stored, since its cache contains keys of both.
    longer = random_ids(61, seed=7)
    stream = engine.stream(longer, prefix_cache=True, **{**OPTIONS, "max_new_tokens": 20})
    next(stream)
    adapter.disable_adapters = False
    next(stream)
    adapter.disable_adapters = True
    result = [chunk.result for chunk in stream][-1]
    assert result is not None
    going_on = [*longer, *result.token_ids]
    assert (
        engine.generate(going_on, prefix_cache=True, **OPTIONS).token_ids
        == engine.generate(going_on, **OPTIONS).token_ids
    )


def test_frequencies_that_longrope_writes_in_every_pass_are_no_state() -> None:
    rope = LONGROPE | {BORDER_NAME: 256}
    model = tiny("llama", vocab_size=len(byte_level()), max_position_embeddings=512, rope_parameters=rope)
    engine, prompt, before = copyspec.Engine(model, byte_level()), random_ids(70), ModelState(model)
    plain = engine.generate(prompt, **OPTIONS)
    assert ModelState(model) == before
    for cached in (0, 64):
        result = engine.generate(prompt, prefix_cache=True, **OPTIONS)
        assert result.token_ids == plain.token_ids and result.stats.num_cached_tokens == cached
    model.model.rotary_emb.original_inv_freq.mul_(0.5)  # type: ignore[union-attr, operator]
    assert ModelState(model) != before


def test_only_the_frequencies_of_layers_with_longrope_are_no_state() -> None:
    rotary = nn.Module()
    rotary.rope_type = {"full": "longrope", "sliding": "default"}  # type: ignore[assignment]
    for layers in rotary.rope_type:  # type: ignore[union-attr]
        rotary.register_buffer(f"{layers}_inv_freq", torch.ones(4))
        rotary.register_buffer(f"{layers}_original_inv_freq", torch.ones(4))
    for name, buffer in rotary.named_buffers():
        before = ModelState(rotary)  # type: ignore[arg-type]
        buffer.copy_(torch.ones(4))
        assert (ModelState(rotary) == before) == (name == "full_inv_freq")  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["deepseek_v32", "bart"])
def test_models_whose_rows_cannot_begin_elsewhere(name: str) -> None:
    vocabulary = len(byte_level())
    made = bart(vocabulary) if name == "bart" else architectures.tiny(name, 8)  # its indexer has keys of its own
    engine = copyspec.Engine(made, byte_level() if name == "bart" else tokenizer(), on_unsupported="plain")
    prompt = random_ids(50)
    for _ in range(2):
        result = engine.generate(prompt, prefix_cache=True, **OPTIONS)
        assert result.token_ids == engine.generate(prompt, **OPTIONS).token_ids and result.stats.num_cached_tokens == 0
    assert len(engine.prefix_cache) == 0


def test_comparisons_and_text() -> None:
    engine = new_engine()
    chat = [{"role": "user", "content": "The cat sat on the mat. " * 6}]
    assert engine.generate(chat, prefix_cache=True, max_new_tokens=4).stats.num_cached_tokens == 0
    streamed = list(engine.stream(chat, prefix_cache=True, max_new_tokens=4))[-1].result
    assert (
        streamed is not None and streamed.stats.to_dict()["num_cached_tokens"] == streamed.stats.num_cached_tokens > 0
    )
    comparison = copyspec.compare(
        chat, model=engine.model, tokenizer=engine.tokenizer, prefix_cache=True, max_new_tokens=8
    )
    assert comparison.equal and comparison.copied.stats.num_cached_tokens == 0
    with pytest.raises(TypeError, match="prefix_cache must be True, False or a number of tokens; got str: 'all'"):
        engine.generate(chat, prefix_cache="all")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="prefix_cache must be an integer >= 1, got 0"):
        engine.generate(chat, prefix_cache=0)


def test_only_the_beginning_of_prompts_is_kept(engine: copyspec.Engine) -> None:
    template = random_ids(2 * BLOCK_TOKENS + 5)
    prompts = [[*template, *random_ids(40 + i, seed=i)] for i in range(5)]
    plain = engine.generate(prompts, drafter="none", **OPTIONS)
    results = engine.generate(prompts, prefix_cache=len(template), batch_size=2, **OPTIONS)
    assert [result.token_ids for result in results] == [result.token_ids for result in plain]
    assert len(engine.prefix_cache) == len(template), "the last block is shorter"
    assert results[-1].stats.num_cached_tokens == len(template)
    engine.generate(prompts[0], prefix_cache=True, **OPTIONS)
    for keeps in (True, len(template)):
        assert engine.generate(prompts[0], prefix_cache=keeps, **OPTIONS).stats.num_cached_tokens == 3 * BLOCK_TOKENS
    engine.prefix_cache.clear()
    few = engine.generate(prompts, prefix_cache=BLOCK_TOKENS - 1, **OPTIONS)
    assert [result.token_ids for result in few] == [result.token_ids for result in plain]
    assert len(engine.prefix_cache) == few[-1].stats.num_cached_tokens == BLOCK_TOKENS - 1


def test_a_bounded_cache_finds_what_it_was_given() -> None:
    """Compared with a list of all entries; keys are numbers that identify their tokens."""
    model = nn.Linear(1, 1)  # kept alive: entries of a deleted model are dropped
    draw, state = random.Random(0), ModelState(model)  # type: ignore[arg-type]
    size = 2 * BLOCK_TOKENS * 4
    cache = PrefixCache(7 * size)

    def held(tokens: list[int], start: int, stop: int) -> Layers:
        keys = torch.tensor([[hash(tuple(tokens[: i + 1])) % 1000] for i in range(start, stop)], dtype=torch.float32)
        return [(keys.unsqueeze(0), -keys.unsqueeze(0)), None]

    for _ in range(300):
        blocks = draw.choices(range(2), k=draw.randrange(1, 6))
        tokens = [block for block in blocks for _ in range(BLOCK_TOKENS)][: draw.randrange(1, 170)]
        if draw.random() < 0.5:
            cache.add(state, tokens, lambda start, stop, tokens=tokens: held(tokens, start, stop))  # type: ignore[misc]
        pieces = cache.find(state, tokens)[0].pieces
        assert len(pieces) * BLOCK_TOKENS < len(tokens) and cache.num_bytes <= cache.max_bytes
        for i, layers in enumerate(pieces):
            wanted = held(tokens, i * BLOCK_TOKENS, (i + 1) * BLOCK_TOKENS)[0]
            assert layers[1] is None and layers[0] is not None and wanted is not None
            assert torch.equal(layers[0][0], wanted[0]) and torch.equal(layers[0][1], wanted[1])
    assert len(cache) == cache.num_bytes // size * BLOCK_TOKENS > 0
    threading.Thread(target=cache.clear).run()
    assert len(cache) == cache.num_bytes == 0


def test_references_are_encoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = new_engine()
    counted: list[int] = []
    encode = engine.codec.encode_copy
    monkeypatch.setattr(
        engine.codec, "encode_copy", lambda text, lead: (counted.append(len(text)), encode(text, lead))[1]
    )
    texts = ["The cat sat on the mat. " * 100, "The sea. " * 300, "short"]
    first = engine.generate("The cat", texts, max_new_tokens=8)
    again = engine.generate("The cat", texts, max_new_tokens=8)
    assert again.token_ids == first.token_ids and again.spans == first.spans
    assert counted == [2400, 2700, 5, 5]
    memory = CopyEncodings(engine.codec, 5_000)
    for text in (texts[0], texts[1], texts[0], "x" * 6_000):
        assert memory.encode(text, " ").ids == encode(text, " ").ids
    assert sorted(map(len, (text for text, _ in memory._held))) == [2400]


def test_references_that_prompts_share_are_encoded_once_however_long(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = new_engine()
    encoder, encode, counted = engine._job_maker._encoder, engine.codec.encode_copy, list[int]()
    monkeypatch.setattr(encoder, "_copies", CopyEncodings(engine.codec, 5_000))
    monkeypatch.setattr(
        engine.codec, "encode_copy", lambda text, lead: (counted.append(len(text)), encode(text, lead))[1]
    )
    texts = [(word * 1_500)[:length] for word, length in (("cat ", 3_000), ("sea ", 3_000), ("dog ", 6_000))]
    engine.generate(["The cat", "The dog", "The sea"], texts, max_new_tokens=2)
    assert counted == [3_000, 3_000, 6_000]


def test_an_answer_is_kept_even_if_its_prompt_is_the_oldest() -> None:
    model = nn.Linear(1, 1)
    state, zeros = ModelState(model), torch.zeros(1, 1, BLOCK_TOKENS)  # type: ignore[arg-type]
    cache = PrefixCache(3 * 2 * BLOCK_TOKENS * 4)
    first, second = [1] * BLOCK_TOKENS, [2] * 2 * BLOCK_TOKENS
    for tokens in (first, second, first + [3] * BLOCK_TOKENS):
        cache.add(state, tokens, lambda start, stop: [(zeros.clone(), zeros.clone())])
    assert len(cache.find(state, [*first, *[3] * BLOCK_TOKENS, 4])[0].pieces) == 2
    assert len(cache.find(state, [*second, 4])[0].pieces) == 1, "the oldest block of another text made room"
