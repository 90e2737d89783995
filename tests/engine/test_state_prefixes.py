"""The prefix cache of models with recurrent states: outputs are those without it, whatever was stored, and prompts are
read from the last state that is theirs."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from functools import cache, partial
from typing import Any, cast

import pytest
import torch
from transformers import CONFIG_MAPPING

import copyspec
from copyspec.decoding.loop import DecodeSettings, decode
from copyspec.decoding.requests import Request
from copyspec.options import SamplingOptions
from copyspec.targets.hooks.model_state import ModelState
from copyspec.targets.hooks.recurrence import mixers
from copyspec.targets.rows.prefixes import BLOCK_TOKENS, PrefixCache
from copyspec.targets.static.static_session import StaticSession
from kit import architectures
from tests.helpers.both_ways import tokenizer
from tests.helpers.cpu_graph import CpuGraph
from tests.helpers.models import STATEFUL, random_ids, tiny

torch.set_num_threads(1)

NEMOTRON = "nemotron_h"  # reads prompts with other steps than single tokens
NAMES = [name for name in ("qwen3_next", "lfm2", "mamba", "falcon_h1", NEMOTRON) if name in CONFIG_MAPPING]
STATIC = copyspec.StaticOptions(use="always", new_graph=CpuGraph)
OPTIONS: dict[str, Any] = {"max_new_tokens": 8, "ignore_eos": True}


@cache
def engine_of(name: str, *, is_static: bool = False) -> copyspec.Engine:
    if name in STATEFUL or name == "mamba":
        model = tiny(name)
    else:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(architectures, "POSITIONS", 512)
            model = architectures.tiny(name, 8)
        model.generation_config.pad_token_id = 0
    return copyspec.Engine(model, tokenizer(), static=STATIC if is_static else None)


@cache
def written(name: str, prompt: tuple[int, ...]) -> tuple[int, ...]:
    """What `generate` writes."""
    ids, model = torch.tensor([prompt]), cast(Any, engine_of(name).model)
    own = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=8, eos_token_id=None, do_sample=False)
    return tuple(own[0, len(prompt) :].tolist())


def emptied(engine: copyspec.Engine, max_bytes: int = 1 << 24) -> copyspec.Engine:
    engine.prefix_cache.clear()
    engine.prefix_cache.max_bytes = max_bytes
    return engine


@pytest.mark.parametrize("is_static", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_turns_of_a_chat(name: str, is_static: bool) -> None:
    if is_static and name == "mamba":
        pytest.skip("no static passes")
    engine = emptied(engine_of(name, is_static=is_static))
    prompt, before = random_ids(150), 0
    for turn in range(3):
        own = written(name, tuple(prompt))
        for _ in range(2):
            kept = engine.generate(prompt, prefix_cache=True, **OPTIONS)
            assert kept.token_ids == own
            # What the last turn read and wrote, but for the tokens of its last pass, or the whole blocks of the prompt.
            if name == NEMOTRON and turn:  # which would read the last turn's output in another way
                before = 128
            assert kept.stats.num_cached_tokens in range(before and before - 8, before + 1)
            before = kept.stats.num_cached_tokens if turn else 128
        prompt = [*prompt, *kept.token_ids, *random_ids(9, seed=turn)]
        before = len(prompt) - 10


@pytest.mark.parametrize("kind", ["eager", "static", "replaced"])
@pytest.mark.parametrize("name", [name for name in (NEMOTRON, "falcon_h1") if name in CONFIG_MAPPING])
def test_steps_of_prompts_within_limits(name: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of outputs are not limited: no token of a prompt is read as one of an output, nor the other way round."""
    engine = engine_of.__wrapped__(name, is_static=kind == "static")
    for _, mixer in mixers(engine.model):
        monkeypatch.setattr(mixer, "time_step_limit", (0.9, 1.3))
        if kind == "replaced":
            monkeypatch.setattr(mixer, "forward", partial(type(mixer).forward, mixer), raising=False)
    for length in (97, 98, 129, 150):
        emptied(engine)
        prompt, cached = random_ids(length), list[int]()
        for _ in range(3):
            plain = engine.generate(prompt, drafter="none", logprobs=0, **OPTIONS)
            kept = engine.generate(prompt, prefix_cache=True, logprobs=0, **OPTIONS)
            assert kept.token_ids == plain.token_ids
            for ours, theirs in zip(kept.logprobs or (), plain.logprobs or (), strict=True):
                assert ours.logprob == pytest.approx(theirs.logprob, abs=1e-4)
            cached.append(kept.stats.num_cached_tokens)
            if len(cached) == 2:
                prompt = [*prompt, *kept.token_ids, *random_ids(9, seed=length)]
        assert cached == [0, *[0 if kind == "replaced" else (length - 1) // 32 * 32] * 2]


@pytest.mark.parametrize("length", [100, 300])
@pytest.mark.parametrize("name", ["qwen3_next", "lfm2"])
def test_rows_begin_with_states_while_others_run(name: str, length: int) -> None:
    """Static passes then need space for more rows, where others have tokens that their states are yet to take."""
    engine, prompts = emptied(engine_of(name, is_static=True)), [random_ids(30, seed=6), random_ids(length, seed=5)]

    def outputs(requests: Sequence[Request | None]) -> list[list[int]]:
        tokens: list[list[int]] = [[] for request in requests if request is not None]
        for step in decode(engine._target, iter(requests), DecodeSettings(batch_size=4)):
            for of_row in step:
                tokens[of_row.row] += of_row.tokens
        return tokens

    cache = engine.prefix_cache
    plain = [outputs([Request(prompt, 12, SamplingOptions())])[0] for prompt in prompts]
    first = Request(prompts[0], 12, SamplingOptions())
    second = Request(prompts[1], 12, SamplingOptions(), prefixes=cache)
    outputs([second])
    for wait in (1, 2, 5):
        assert outputs([first, *[None] * wait, second]) == plain
    assert len(cache) >= length


@pytest.mark.parametrize("most", [None, 96])
@pytest.mark.parametrize("is_static", [False, True])
def test_weights_that_change_between_pieces_of_a_prompt(
    is_static: bool, most: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is read from then on is not stored, and rows that join later do not wait for its stops."""
    engine = emptied(engine_of.__wrapped__("qwen3_next", is_static=is_static))
    prompt, cache, stored = random_ids(300), engine.prefix_cache, list[int]()
    if is_static:
        monkeypatch.setattr(StaticSession, "most_tokens", 48)
    engine.generate([*prompt[:100], *random_ids(60, seed=3)], prefix_cache=True, **OPTIONS)

    def requests() -> Iterator[Request | None]:
        yield Request(prompt, 6, SamplingOptions(), prefixes=cache, most_kept=most)
        yield None
        stored.append(len(cache))
        with torch.no_grad():
            engine.model.get_input_embeddings().weight.mul_(1.5)  # as in training
        yield from [None] * 3
        stored.append(len(cache))
        yield Request(random_ids(120, seed=9), 6, SamplingOptions(), prefixes=cache)

    steps = [step for step, _ in zip(decode(engine._target, requests(), DecodeSettings()), range(60), strict=False)]
    assert len(steps) < 60 and stored[0] == stored[1]


@pytest.mark.parametrize("is_static", [False, True])
def test_prompts_that_leave_a_common_one(is_static: bool) -> None:
    """The first that leaves it is read up to there, and what others do so begin with is stored."""
    engine, common, cached = emptied(engine_of("qwen3_next", is_static=is_static)), random_ids(130), list[int]()
    for seed in range(4):
        prompt = [*common[:100], *random_ids(90 - 20 * seed, seed=seed)]
        kept = engine.generate(prompt, prefix_cache=True, **OPTIONS)
        assert kept.token_ids == engine.generate(prompt, **OPTIONS).token_ids
        cached.append(kept.stats.num_cached_tokens)
    assert cached == [0, 0, 96, 96]


def test_prompts_of_a_list_share_what_they_begin_with() -> None:
    engine = emptied(engine_of("qwen3_next"))
    prompts = [random_ids(100)[:90] + random_ids(length, seed=length) for length in (5, 140, 1)]
    kept = engine.generate(prompts, prefix_cache=True, **OPTIONS)
    assert [each.token_ids for each in kept] == [each.token_ids for each in engine.generate(prompts, **OPTIONS)]
    assert [each.stats.num_cached_tokens for each in kept] == [64, 64, 64]


@pytest.mark.parametrize("most", [70, 96, 300])
def test_only_the_beginning_is_kept(most: int) -> None:
    engine, prompt = emptied(engine_of("qwen3_next")), random_ids(140)
    for turn in range(2):
        kept = engine.generate([*prompt, *random_ids(30, seed=turn)], prefix_cache=most, **OPTIONS)
        assert kept.stats.num_cached_tokens == (0, min(most, 96 + 32 * (most == 300)))[turn] or turn == most // 300
    assert len(engine.prefix_cache) <= most


@pytest.mark.parametrize("is_static", [False, True])
@pytest.mark.parametrize("name", ["qwen3_next", NEMOTRON, "lfm2"])
def test_random_calls(name: str, is_static: bool) -> None:
    """Prompts that continue, leave and repeat others, in batches whose rows join and leave, in caches of any size."""
    engine, drawn, hits = engine_of(name, is_static=is_static), random.Random(name), 0
    texts = [random_ids(drawn.randrange(40, 120), seed=seed) for seed in range(2)]
    for call in range(8):
        if call % 4 == 0:
            emptied(engine, drawn.choice([1 << 24, 60_000]))
        prompts = []
        for _ in range(drawn.choice([1, 4])):
            text = drawn.choice(texts)
            prompts.append([*text[: drawn.randrange(1, len(text))], *random_ids(drawn.randrange(60), seed=call)])
        options = {**OPTIONS, "batch_size": drawn.choice([1, 2, 4])}
        if drawn.random() < 0.3:
            options |= {"temperature": 1.0, "seed": call}
        references = [[prompt[3:40]] for prompt in prompts]
        kept = engine.generate(prompts, references, prefix_cache=drawn.choice([True, True, 80]), **options)
        plain = engine.generate(prompts, references, drafter="none", **options)
        assert [each.token_ids for each in kept] == [each.token_ids for each in plain]
        hits += sum(each.stats.num_cached_tokens > 0 for each in kept)
        texts += [[*prompt, *each.token_ids] for prompt, each in zip(prompts, kept, strict=True)]
    assert hits


def test_states_count_towards_the_size_and_leave_with_their_blocks() -> None:
    engine = emptied(engine_of("qwen3_next"))
    sizes = []
    for seed in range(6):
        engine.generate(random_ids(100, seed=seed), prefix_cache=True, **OPTIONS)
        sizes.append(engine.prefix_cache.num_bytes)
        if seed == 2:
            engine.prefix_cache.max_bytes = sizes[1]
    blocks = engine.prefix_cache._blocks.values()
    states = [each.nbytes for block in blocks for state in block.states for each in state.values()]
    keys = [2 * layer[0].nbytes for block in blocks for layer in block.layers if layer is not None]
    assert engine.prefix_cache.num_bytes == sum(states) + sum(keys) and states
    assert sizes[0] < sizes[1] < sizes[2] and max(sizes[3:]) <= sizes[1]
    engine.prefix_cache.max_bytes = 0
    engine.generate(random_ids(100), prefix_cache=True, **OPTIONS)
    assert engine.prefix_cache.num_bytes == len(engine.prefix_cache) == 0


@pytest.mark.parametrize("seed", range(5))
def test_a_cache_finds_the_last_state_that_it_was_given(seed: int) -> None:
    """Against a list of all that was stored."""
    model = torch.nn.Linear(1, 1)  # kept alive: entries of a deleted model are dropped
    drawn, state = random.Random(seed), ModelState(model)  # type: ignore[arg-type]
    prefixes, stored = PrefixCache(), dict[tuple[int, ...], torch.Tensor]()
    alphabet = [[drawn.randrange(2) for _ in range(5)] for _ in range(2)]

    def text(most: int) -> tuple[int, ...]:
        return tuple(token for _ in range(drawn.randrange(1, most)) for token in drawn.choice(alphabet))

    for number in range(60):
        tokens = text(26)
        if len(tokens) >= BLOCK_TOKENS:
            states = [{("recurrent_states", 0): torch.tensor([float(number)])}]
            prefixes.add(state, tokens, lambda start, stop: [(torch.ones(1, stop - start, 1),) * 2], states=states)
            stored.setdefault(tokens, states[0][("recurrent_states", 0)])
        wanted = text(30)
        prefix, shared = prefixes.find(state, wanted, with_states=True)
        fitting = [known for known in stored if len(known) < len(wanted) and wanted[: len(known)] == known]
        assert prefix.length == max(map(len, fitting), default=0)
        assert sum(piece[0][0].shape[1] for piece in prefix.pieces if piece[0] is not None) == prefix.length
        if fitting:
            assert prefix.states[0][("recurrent_states", 0)] is stored[wanted[: prefix.length]]
        assert shared % BLOCK_TOKENS == 0
