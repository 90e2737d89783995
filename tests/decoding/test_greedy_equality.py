"""Greedy output equals `model.generate` token for token, float32, over architectures and random cases."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cache, partial
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from transformers import PreTrainedModel

from copyspec.decoding.requests import Request
from copyspec.drafters import create
from copyspec.options import SamplingOptions
from copyspec.sources import Source
from copyspec.targets import wrap
from copyspec.targets.rows.passes import BLOCK
from tests.helpers.decoded import decoded
from tests.helpers.fakes import ScriptedDrafter
from tests.helpers.models import CAUSAL, SEQ2SEQ, VOCAB_SIZE, tiny

CASES_PER_ARCHITECTURE = 12
LONG_PROMPT, LONG_OUTPUT = 200, 150
ARCHITECTURES = [name for name in [*CAUSAL, *SEQ2SEQ] if name not in ("blenderbot", "pegasus", "marian", "mt5")]

_models: dict[str, PreTrainedModel] = {}


def model_of(name: str) -> PreTrainedModel:
    if name not in _models:
        _models[name] = tiny(name)
    return _models[name]


def generated(model: PreTrainedModel, prompt: Sequence[int], length: int, eos: list[int]) -> list[int]:
    """Return the new tokens of transformers' greedy search."""
    return generated_rows(model, [prompt], length, eos)[0]


def generated_rows(
    model: PreTrainedModel, prompts: Sequence[Sequence[int]], length: int, eos: list[int]
) -> list[list[int]]:
    """Return the new tokens of each prompt; the prompts are of equal length."""
    ids = torch.tensor([list(prompt) for prompt in prompts])
    output = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        do_sample=False,
        max_new_tokens=length,
        eos_token_id=eos or None,
        pad_token_id=0,
    )
    start = 1 if model.config.is_encoder_decoder else ids.shape[1]
    tokens: list[list[int]] = output[:, start:].tolist()
    return tokens


@pytest.mark.parametrize("name", ["llama", "t5"])
def test_an_end_token_cuts_what_generate_writes(name: str) -> None:
    """So `make_request` may cut its truth."""
    model, prompt = model_of(name), [5, 9, 7] * 4
    truth = generated(model, prompt, 16, [])
    for end in truth:
        assert generated(model, prompt, 16, [end]) == truth[: truth.index(end) + 1]


@st.composite
def cases(draw: st.DrawFn) -> dict[str, Any]:
    return {
        "seed": draw(st.integers(0, 10_000)),
        "rows": draw(st.sampled_from([1, 1, 2, 3, 8])),
        "batch_size": draw(st.integers(1, 8)),
        "max_nodes": draw(st.sampled_from([1, 3, 8, 24])),
        "drafter": draw(st.sampled_from(["copy", "scripted"])),
        "accuracy": draw(st.sampled_from([0.3, 0.8, 1.0])),
        "length": draw(st.integers(1, 16)),
        "phrase": draw(st.integers(1, 8)),
        "repeats": draw(st.integers(1, 3)),
        "end": draw(st.booleans()),
        "adaptive": draw(st.booleans()),
    }


def prompts_of(case: dict[str, Any]) -> list[tuple[int, ...]]:
    """Make a repetitive prompt for each row. Two rows share a length, so that `generate` can write both at once."""
    prompts = []
    for row in range(case["rows"]):
        rng = random.Random(case["seed"] + 1000 * row)
        phrase = [rng.randrange(3, VOCAB_SIZE) for _ in range(max(1, case["phrase"] - row // 2))]
        prompts.append(tuple(phrase * case["repeats"]))
    return prompts


@cache
def truths(model: PreTrainedModel, prompts: tuple[tuple[int, ...], ...], length: int) -> list[list[int]]:
    """Return what `generate` writes after each prompt; prompts of equal length in one call, without padding."""
    outputs: dict[tuple[int, ...], list[int]] = {}
    for size in {len(prompt) for prompt in prompts}:
        alike = [prompt for prompt in prompts if len(prompt) == size]
        outputs.update(zip(alike, generated_rows(model, alike, length, []), strict=True))
    return [outputs[prompt] for prompt in prompts]


def make_request(
    model: PreTrainedModel, case: dict[str, Any], row: int, prompt: Sequence[int], truth: list[int]
) -> tuple[Request, list[int]]:
    """Make a request and its expected output: references contain parts of the output."""
    rng = random.Random(case["seed"] + 1000 * row)
    phrase = prompt[: len(prompt) // case["repeats"]]
    truth = truth[: max(1, case["length"] - row)]
    eos = [truth[rng.randrange(len(truth))]] if case["end"] else []
    expected = truth
    if eos:
        expected = truth[: truth.index(eos[0]) + 1]
    script = truth + [rng.randrange(VOCAB_SIZE) for _ in range(6)]
    wrong = [token if rng.random() < case["accuracy"] else rng.randrange(VOCAB_SIZE) for token in script]
    sources = [Source(wrong, rng.choice(["edit", "reference"])), Source(phrase, "reference"), Source(prompt, "prompt")]
    request = Request(list(prompt), len(truth), SamplingOptions(), eos_token_ids=frozenset(eos), sources=sources)
    if case["drafter"] == "copy":
        continues = not model.config.is_encoder_decoder
        request.drafter = partial(create, sources, request.eos_token_ids, continues_prompt=continues)
    else:
        request.drafter = partial(ScriptedDrafter, script, VOCAB_SIZE, case["accuracy"], seed=case["seed"])
    return request, expected


def check(name: str, case: dict[str, Any]) -> list[list[int]]:
    """Decode the case's rows and compare them; return the outputs."""
    model = model_of(name)
    prompts = prompts_of(case)
    written = truths(model, tuple(prompts), case["length"])
    rows = zip(prompts, written, strict=True)
    pairs = [make_request(model, case, row, prompt, truth) for row, (prompt, truth) in enumerate(rows)]
    requests = [request for request, _ in pairs]
    options = {name: case[name] for name in ("batch_size", "adaptive")}
    outputs = [tokens for tokens, _ in decoded(wrap(model), requests, case["max_nodes"], **options)]
    assert outputs == [expected for _, expected in pairs]
    return outputs


@pytest.mark.parametrize("name", ARCHITECTURES)
@hypothesis_settings(max_examples=CASES_PER_ARCHITECTURE)
@given(case=cases())
def test_against_generate(name: str, case: dict[str, Any]) -> None:
    check(name, case)


@pytest.mark.parametrize("drafter", ["copy", "scripted"])
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt2", "t5", "bart"])
def test_long_rows_against_generate(name: str, rows: int, drafter: str) -> None:
    """Outputs exceed the cache's initial buffer and the drafters' limits on match lengths, in rows of diverging
    lengths."""
    case = {
        "seed": 7 * rows,
        "rows": rows,
        "batch_size": rows,
        "max_nodes": 24,
        "drafter": drafter,
        "accuracy": 0.9,
        "length": LONG_OUTPUT,
        "phrase": LONG_PROMPT // 2,
        "repeats": 2,
        "end": False,
        "adaptive": False,
    }
    outputs = check(name, case)
    assert [len(output) for output in outputs] == [LONG_OUTPUT - row for row in range(rows)]
    assert len(outputs[0]) > 2 * BLOCK
