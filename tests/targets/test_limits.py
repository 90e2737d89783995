"""Models whose passes depend on the largest position: output equals plain decoding up to the limit."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from copyspec.decoding.requests import Request
from copyspec.options import SamplingOptions
from copyspec.sources import Source
from copyspec.targets import wrap
from tests.helpers import models
from tests.helpers.decoded import decoded
from tests.helpers.fakes import ScriptedDrafter
from tests.helpers.trees import Rows, fingerprint

torch.set_num_threads(1)

BORDER = 24
LONGROPE = {"max_position_embeddings": 96, "rope_parameters": models.LONGROPE | {models.BORDER_NAME: BORDER}}
DYNAMIC = {
    "max_position_embeddings": BORDER,
    "rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0},
}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "phi3-longrope": ("phi3", LONGROPE | {models.BORDER_NAME: BORDER}),
    "llama-longrope": ("llama", LONGROPE),
    "llama-dynamic": ("llama", DYNAMIC),
    "phi-dynamic": ("phi", DYNAMIC | {"rope_parameters": DYNAMIC["rope_parameters"] | {"partial_rotary_factor": 0.5}}),
}


def limited(case: str) -> PreTrainedModel:
    name, overrides = CASES[case]
    return models.tiny(name, **overrides)


def generated(model: PreTrainedModel, prompt: Sequence[int], length: int) -> list[int]:
    ids = torch.tensor([list(prompt)])
    output = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=length)
    tokens: list[int] = output[0, len(prompt) :].tolist()
    return tokens


def drafted(model: PreTrainedModel, prompts: Sequence[Sequence[int]], scripts: Sequence[list[int]]) -> list[list[int]]:
    """Decode up to the model's limit, with drafts that are mostly right and otherwise branch."""
    requests = []
    for row, (prompt, script) in enumerate(zip(prompts, scripts, strict=True)):
        sources = [Source(script, "reference"), Source(prompt, "prompt")]
        request = Request(prompt, 64, SamplingOptions(), eos_token_ids=frozenset(), sources=sources)
        request.drafter = partial(ScriptedDrafter, script, models.VOCAB_SIZE, 0.8, seed=row)
        requests.append(request)
    return [tokens for tokens, _ in decoded(wrap(model), requests, 8, batch_size=len(requests))]


@pytest.mark.parametrize("case", CASES)
def test_equal_to_generate_up_to_the_border(
    case: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("copyspec.targets.eager.causal.PREFILL_CHUNK", 8)
    model = limited(case)
    with caplog.at_level(logging.WARNING):
        target = wrap(model)
    assert target.max_length == BORDER
    assert caplog.text.count(f"beyond {BORDER} positions") == 1
    prompts = [models.random_ids(length, seed=length) for length in (4, 13, BORDER)]
    # One more, since the last token is the output of the last position and needs no position itself.
    truths = [generated(model, prompt, BORDER - len(prompt) + 1) for prompt in prompts]
    scripts = [truth + models.random_ids(8, seed=9) for truth in truths]
    assert drafted(model, prompts, scripts) == truths
    for prompt, script, truth in zip(prompts, scripts, truths, strict=True):
        assert drafted(model, [prompt], [script]) == [truth]


@torch.inference_mode()
def test_beyond_the_border_the_first_tokens_would_differ() -> None:
    """The rope factors in these tests differ enough to reveal a wrong choice."""
    model, prompt = limited("llama-longrope"), models.random_ids(BORDER + 1)
    logits = [model(input_ids=torch.tensor([prompt[:end]])).logits[0, BORDER - 1] for end in (BORDER, BORDER + 1)]
    assert float((logits[0] - logits[1]).abs().max()) > 0.1


def test_longrope_of_one_type_of_layers_limits_the_model() -> None:
    rope = {"full_attention": LONGROPE["rope_parameters"], "sliding_attention": {"rope_theta": 1e4}}
    model = models.tiny("gemma3_text")
    model.config.rope_parameters = rope
    assert wrap(model).max_length == BORDER


def test_other_scaling_limits_nothing() -> None:
    rope = {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}
    assert wrap(models.tiny("llama", rope_parameters=rope)).max_length == 512


@pytest.mark.parametrize("floor_scale", [8, 3])
def test_attention_temperature_counts_positions(floor_scale: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("copyspec.targets.eager.causal.PREFILL_CHUNK", 8)
    model = models.tiny("llama4_text", floor_scale=floor_scale, attn_scale=0.9)
    before = fingerprint(model)
    prompts = [models.random_ids(length, seed=length) for length in (4, 13)]
    truths = [generated(model, prompt, 64) for prompt in prompts]
    assert drafted(model, prompts, truths) == truths
    rows = Rows(model, wrap(model), (5, 17))
    assert max(rows.step() for _ in range(3)) < 1e-5
    assert fingerprint(model) == before
