"""The methods of the speed benchmark: functions from a batch of prompts to a timed run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING

import torch

from benchmarks.speed.models import Model, Replay, ReplayTarget
from benchmarks.speed.prompts import Case
from copyspec.budget import CostModel
from copyspec.decoding.loop import DecodeSettings, decode
from copyspec.decoding.requests import Request
from copyspec.decoding.stats import Stats
from copyspec.drafters import create
from copyspec.options import DraftOptions, SamplingOptions
from copyspec.targets import wrap
from kit.reporting import generate_padded

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from copyspec.drafters.base import Drafter
    from copyspec.targets.base import Target

METHODS = ("plain", "hf", "hf-static", "hf-prompt-lookup", "hf-assistant", "copyspec")

LOOKUP_TOKENS = 10
"""Usual length of a prompt-lookup draft (apoorvumang/prompt-lookup-decoding, and transformers' own examples)."""


@dataclass(slots=True)
class Run:
    """One batch decoded once by one method."""

    outputs: list[list[int]] = field(default_factory=list)  # [B], up to and including the end of sequence
    total_seconds: float = 0.0
    prefill_seconds: float = 0.0  # up to the end of the first forward pass
    calls: int = 0  # forward passes of the target
    row_calls: int = 0  # the same, counted once per row in the pass
    drafted: int = 0  # draft nodes
    draft_seconds: float = 0.0  # this and the two below: only for copyspec's own decoding
    target_seconds: float = 0.0
    verify_seconds: float = 0.0
    stats: list[Stats] = field(default_factory=list)  # per row; only for copyspec's own decoding

    @property
    def decode_seconds(self) -> float:
        return self.total_seconds - self.prefill_seconds


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits shared by all methods."""

    max_new_tokens: int
    eos_token_ids: frozenset[int]
    draft_nodes: int | None = None


Method = Callable[[Sequence[Case], Limits], Run]


class Methods:
    """The methods by name, all on the same model object."""

    def __init__(self, model: Model, assistant: PreTrainedModel | None = None) -> None:
        self._model = model.model
        self._assistant = assistant
        self._replay = Replay(model.model)
        self._passes = _Passes(model.model)
        self._replayed = ReplayTarget(wrap(model.model), self._replay)
        self._target: Target = self._replayed  # type: ignore[assignment]
        # The costs of a pass are learned across runs, as in an engine that serves one model.
        self._costs = {"plain": CostModel(), "copyspec": CostModel()}

    def get(self, name: str) -> Method:
        """Return a method. Raises ValueError if the name is unknown, or needs an assistant that was not given."""
        if name in self._costs:
            return lambda cases, limits: self._timed(cases, lambda: self._own(name, cases, limits))
        if name == "hf-assistant" and self._assistant is None:
            raise ValueError("hf-assistant needs --assistant DIR, a smaller model with the same tokenizer")
        extra: dict[str, dict[str, object]] = {
            "hf": {},
            "hf-static": {"cache_implementation": "static"},  # transformers compiles this automatically on CUDA
            "hf-prompt-lookup": {"prompt_lookup_num_tokens": LOOKUP_TOKENS},
            "hf-assistant": {"assistant_model": self._assistant},
        }
        if name not in extra:
            raise ValueError(f"no method {name!r}: one of {', '.join(METHODS)}")
        return lambda cases, limits: self._timed(cases, lambda: self._hf(cases, limits, extra[name]))

    def own(self, drafter: Callable[[Case, frozenset[int]], Drafter], nodes: int | None) -> Method:
        """Make a method that decodes with copyspec and the given drafter, at most `nodes` nodes per call."""
        costs = CostModel()

        def method(cases: Sequence[Case], limits: Limits) -> Run:
            requests = [make_request(case, limits, partial(drafter, case, limits.eos_token_ids)) for case in cases]
            return self._timed(cases, lambda: self._decoded(requests, nodes, costs))

        return method

    def close(self) -> None:
        """Remove the hooks from the model."""
        self._replay.remove()
        self._passes.remove()

    def _timed(self, cases: Sequence[Case], run: Callable[[], Run]) -> Run:
        recorded = [case.recorded for case in cases]
        if None in recorded:
            self._replay.stop()
        else:
            self._replay.start([[*case.prompt, *(case.recorded or ())] for case in cases])
        self._replayed.restart()
        self._passes.restart()
        synchronise(self._model.device)
        started = perf_counter()
        result = run()
        synchronise(self._model.device)
        result.total_seconds = perf_counter() - started
        if not result.prefill_seconds:
            result.prefill_seconds = self._passes.first_ended - started
        result.calls = self._passes.count
        result.row_calls = result.row_calls or self._passes.rows
        return result

    def _own(self, name: str, cases: Sequence[Case], limits: Limits) -> Run:
        if name == "plain":
            return self._decoded([make_request(case, limits, None) for case in cases], 0, self._costs[name])
        drafters = [partial(create, case.sources, limits.eos_token_ids, ngrams=case.ngrams) for case in cases]
        requests = [make_request(case, limits, make) for case, make in zip(cases, drafters, strict=True)]
        return self._decoded(requests, limits.draft_nodes, self._costs[name])

    def _decoded(self, requests: Sequence[Request], nodes: int | None, costs: CostModel) -> Run:
        settings = DecodeSettings(DraftOptions(max_nodes=nodes), batch_size=len(requests))
        outputs: list[list[int]] = [[] for _ in requests]
        stats: list[Stats] = []
        for step in decode(self._target, requests, settings, costs):
            for output in step:
                outputs[output.row].extend(output.tokens)
                if output.stats is not None:
                    stats.append(output.stats)
        # All rows begin together, so the row with the most calls was in every step of the batch.
        longest = max(stats, key=lambda row: row.num_passes)
        return Run(
            outputs=outputs,
            prefill_seconds=longest.prefill_seconds,
            row_calls=sum(row.num_passes for row in stats),
            drafted=sum(row.num_draft_tokens for row in stats),
            draft_seconds=longest.draft_seconds,
            target_seconds=longest.prefill_seconds + longest.target_seconds,
            verify_seconds=longest.verify_seconds,
            stats=stats,
        )

    def _hf(self, cases: Sequence[Case], limits: Limits, extra: dict[str, object]) -> Run:
        outputs = generate_padded(
            self._model,
            [case.prompt for case in cases],
            limits.eos_token_ids,
            pad=min(limits.eos_token_ids, default=0),
            max_new_tokens=limits.max_new_tokens,
            eos_token_id=sorted(limits.eos_token_ids) or None,
            **extra,
        )
        return Run(outputs)


class _Passes:
    """Counts a model's forward passes, and records when the first one of a run ended."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.count = self.rows = 0
        self.first_ended = 0.0
        self._device = model.device
        self._handle = model.register_forward_hook(self._note, with_kwargs=True)

    def restart(self) -> None:
        self.count = self.rows = 0

    def remove(self) -> None:
        self._handle.remove()

    def _note(self, module: object, args: tuple[object, ...], kwargs: dict[str, object], output: object) -> None:
        self.count += 1
        tokens = kwargs.get("input_ids")
        self.rows += tokens.shape[0] if isinstance(tokens, torch.Tensor) else 1
        if self.count == 1:
            synchronise(self._device)
            self.first_ended = perf_counter()


def synchronise(device: torch.device) -> None:
    """Wait for the device; otherwise only the time of queueing the work would be measured."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def make_request(case: Case, limits: Limits, drafter: Callable[[], Drafter] | None) -> Request:
    return Request(
        prompt=case.prompt,
        max_new_tokens=limits.max_new_tokens,
        sampling=SamplingOptions(),
        eos_token_ids=limits.eos_token_ids,
        sources=case.sources,
        drafter=drafter,
    )
