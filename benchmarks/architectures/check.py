"""Compares one model with its own `generate`: ragged batches, rows that join and leave, right and wrong drafts."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from transformers import PreTrainedModel

from copyspec.decoding.loop import DecodeSettings, decode
from copyspec.decoding.requests import Request
from copyspec.drafters import create
from copyspec.options import DraftOptions, SamplingOptions
from copyspec.sources import Source
from copyspec.targets.base import Target
from copyspec.targets.model.generation import settings
from kit.architectures import TIE

LENGTHS = (3, 14, 40, 27, 6, 52, 9)
"""Prompt lengths in tokens: shorter than, equal or close to, and longer than the windows of 8 and 24."""

OUTPUT = 24
RUNS = ((1, 0.2), (3, 0.0), (3, 0.2), (4, 1.0), (4, 0.2))
"""(batch size, fraction of a reference's tokens that are replaced).

Drafts are thus right, sometimes right or wrong, and rows leave and join the batch."""


@dataclass(frozen=True, slots=True)
class Case:
    prompt: Sequence[int]
    truth: Sequence[int]


def cases(model: PreTrainedModel, vocab_size: int) -> list[Case]:
    """Make prompts, and decode each of them alone with `generate`."""
    draw = random.Random(0)
    prompts = [_prompt(draw, length, vocab_size) for length in LENGTHS]
    return [Case(prompt, _generated(model, prompt)[0]) for prompt in prompts]


def differences(model: PreTrainedModel, target: Target, cases: Sequence[Case]) -> Iterator[str | None]:
    """Yield one entry per output: None if it equals that of `generate`, "tie", or a description of the difference."""
    for round_, (batch_size, noise) in enumerate(RUNS if target.supports_drafts else RUNS[:2]):
        draw = random.Random(round_)
        requests = [_request(target, case, noise, draw) for case in cases]
        for case, output in zip(cases, _decoded(target, requests, batch_size), strict=True):
            yield _difference(model, case, output, target)


def _prompt(draw: random.Random, length: int, vocab_size: int) -> list[int]:
    """Make a prompt of repeated phrases, so that there is something to copy."""
    phrase = [draw.randrange(5, vocab_size) for _ in range(max(2, length // 3))]
    return [*phrase, *phrase, *(draw.randrange(5, vocab_size) for _ in range(length))][:length]


def _request(target: Target, case: Case, noise: float, draw: random.Random) -> Request:
    size = target.vocab_size
    reference = [draw.randrange(size) if draw.random() < noise else token for token in case.truth]
    sources = [Source(reference, "reference"), Source(case.prompt, "prompt")]
    request = Request(case.prompt, OUTPUT - draw.randrange(4), SamplingOptions(), sources=sources)
    if target.supports_drafts:
        request.drafter = partial(create, sources, (), continues_prompt=not target.is_encoder_decoder)
    return request


def _decoded(target: Target, requests: Sequence[Request], batch_size: int) -> list[list[int]]:
    outputs: list[list[int]] = [[] for _ in requests]
    options = DecodeSettings(draft=DraftOptions(max_nodes=12, adaptive=False), batch_size=batch_size)
    for step in decode(target, requests, options):
        for output in step:
            outputs[output.row] += output.tokens
    return outputs


def _difference(model: PreTrainedModel, case: Case, output: Sequence[int], target: Target) -> str | None:
    started = len(target.start(case.prompt))
    room = OUTPUT - 3 if target.max_length is None else min(OUTPUT - 3, target.max_length - started + 1)
    if len(output) < room:
        return f"{len(output)} tokens after {started}"
    if list(output) == list(case.truth[: len(output)]):
        return None
    place = next(index for index, token in enumerate(output) if token != case.truth[index])
    logits = _generated(model, case.prompt)[1][place]
    gap = float((logits[case.truth[place]] - logits[output[place]]).abs() / logits.std())
    return "tie" if gap <= TIE else f"token {place} after {started}: {gap:.2g} deviations apart"


@torch.no_grad()
def _generated(model: PreTrainedModel, prompt: Sequence[int]) -> tuple[list[int], torch.Tensor]:
    """Return the new tokens of greedy `generate` and the logits of each."""
    ids = torch.tensor([list(prompt)])
    options = settings(model, new_tokens=OUTPUT, output_logits=True, return_dict_in_generate=True)
    generation: Any = model
    output = generation.generate(ids, attention_mask=torch.ones_like(ids), generation_config=options)
    return output.sequences[0, -OUTPUT:].tolist(), torch.cat(output.logits)
