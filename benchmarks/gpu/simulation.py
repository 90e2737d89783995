"""Simulates batches on a GPU in time: recorded outputs, real drafts, real choice of sizes, and pass times of an H200.

    python -m benchmarks.gpu.simulation shared/data/transcripts --tokenizer llama3.tokenizer.json.gz --batch 32

No model and no GPU is needed, and the figures are the same in every run: the controller, the costs that it learns, and
what captures of CUDA graphs and padding cost in the first calls. Times are those of `benchmarks/results/gpu-h200.json`
at the size of Llama-2-7B and of the bundled model: passes of 1, 33 and 65 columns, 32 rows of 1 and of 9, 1,056 tokens
in one pass, captures. Columns that a pass needs to move accepted tokens are left out. Plain decoding comes first; every
method makes the same call several times, as a service would, with what it has learned and captured before.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from benchmarks.gpu.transcripts import together
from benchmarks.speed import simulation
from benchmarks.speed.prompts import Case, TranscriptOptions, transcript_cases
from benchmarks.speed.simulation import Clock, Device
from copyspec.budget import CostModel
from copyspec.decoding.loop import DecodeSettings, decode
from copyspec.decoding.meter import costs_on
from copyspec.decoding.requests import Request
from copyspec.drafters import create
from copyspec.options import DraftOptions, SamplingOptions, StaticOptions
from copyspec.targets.base import Session
from copyspec.targets.scores import Scores
from copyspec.targets.static.running import ProgramRunner, Size
from copyspec.targets.static.settings import WARM_PASSES, node_bucket, padded_tokens, row_bucket
from copyspec.tree import DraftTree
from kit.reporting import command_line, write_json

SLOTS = 4096
TASKS = ("gec_document", "code_edit", "rag", "summarization")


@dataclass(frozen=True, slots=True)
class Times:
    """Milliseconds of what a pass consists of."""

    weights: float  # a captured pass over one token, which reads all weights
    column: float  # more for each computed token, while the weights take longer
    token: float  # for each computed token, when products take longer than reading
    cached: float  # for a row's attention to 1,000 cached tokens
    host: float  # for each row, between two passes
    eager: float  # the least that a pass takes without a graph
    capture: float
    draft: float = 0.05

    def captured(self, size: Size, rows: int, cached: float) -> float:
        """`cached`: tokens of all `rows` rows."""
        tokens = size[0] * size[1]
        products = max(self.weights + self.column * tokens, self.token * tokens + 2 * self.host)
        return products + self.cached * cached / 1000 + self.host * rows

    def prompts(self, tokens: int) -> float:
        return max(self.eager, self.token * tokens)


MODELS: Mapping[str, Times] = {
    "7B": Times(weights=5.1, column=0.019, token=0.027, cached=0.13, host=0.03, eager=25.0, capture=70.0),
    "bundled": Times(weights=0.6, column=0.0004, token=0.0004, cached=0.01, host=0.015, eager=6.0, capture=60.0),
}


class Runner(ProgramRunner):
    """Chooses sizes and captures them as on a GPU, but computes nothing, and drops no captures."""

    def __init__(self, times: Times) -> None:
        options = StaticOptions(use="always", new_graph=lambda: SimpleNamespace())
        super().__init__(lambda size: SimpleNamespace(), torch.device("cpu"), options, nullcontext)  # type: ignore[arg-type, return-value]
        self._times = times

    @property
    def captures(self) -> int:
        return len(self._steps)

    def milliseconds(self, size: Size, rows: int, cached: float) -> float:
        """The time of a pass of this size, with a capture if it is due."""
        found = self._times.captured(size, rows, cached)
        self.is_settled = self._is_captured(size)
        if self.is_settled:
            return found
        found = max(self._times.eager, found)
        if self._asked[size] >= WARM_PASSES:
            self._steps[size] = SimpleNamespace(graph=self)  # type: ignore[assignment]
            del self._asked[size], self._padding[size]
            found += self._times.capture
        return found


class _Target(simulation._Target):
    def __init__(self, dense: simulation._Dense, times: Times, clock: Clock, runner: Runner, all_rows: int) -> None:
        super().__init__(dense, Device(0.0, {0: 0.0, 1: 0.0}, 0.0), clock, random.Random(0))
        self.times, self.runner, self.all_rows = times, runner, all_rows

    def open(self, prompts: Sequence[Sequence[int]], new_tokens: int = 0, *, keeps_states: bool = False) -> Session:
        opened = super().open(prompts, new_tokens)
        assert isinstance(opened, simulation._Session)
        return _Session(self, opened._rows)


class _Session(simulation._Session):
    def __init__(self, target: _Target, rows: list[int]) -> None:
        super().__init__(target, rows)
        self._static = target

    def padded(self, nodes: int) -> int:
        return padded_tokens(len(self._rows), nodes)

    def score(self, uncached: Sequence[Sequence[int]], trees: Sequence[DraftTree]) -> Scores:
        scores, target, rows = super().score(uncached, trees), self._static, len(uncached)
        if max(map(len, uncached)) > 1:
            self.is_settled = False
            target.clock.now += 1e-3 * target.times.prompts(sum(map(len, uncached)))
            return scores
        computed = row_bucket(rows)
        asked = computed, node_bucket(1 + max(map(len, trees)), computed), SLOTS
        size = target.runner.choose(asked, max(self.lengths), row_bucket(target.all_rows))
        target.clock.now += 1e-3 * target.runner.milliseconds(size, rows, sum(self.lengths))
        self.is_settled, self.computed = target.runner.is_settled, (size[0], size[0] * size[1])
        return scores


def run(
    cases: Sequence[Case], times: Times, costs: CostModel, runner: Runner, *, nodes: int, tokens: int, batch: int
) -> tuple[float, int]:
    """Seconds and passes of one call, whose outputs are checked."""
    dense, clock = simulation._Dense(cases), Clock()
    costs.clock = clock
    target: Any = _Target(dense, times, clock, runner, batch)
    requests = []
    for case, recorded in zip(dense.cases, dense.outputs, strict=True):
        eos = frozenset({recorded[-1]})
        make = partial(simulation._slow, _copies, case, eos, clock, 1e-3 * times.draft) if nodes else None
        requests.append(Request(case.prompt, min(tokens, len(recorded)), SamplingOptions(), eos, case.sources, make))
    outputs: list[list[int]] = [[] for _ in cases]
    passes = 0
    for step in decode(target, requests, DecodeSettings(DraftOptions(nodes), batch), costs):
        passes += 1
        for output in step:
            outputs[output.row].extend(output.tokens)
    assert outputs == [row[:tokens] for row in dense.outputs], "a simulated run must say what was recorded"
    return clock.now, passes


def _copies(case: Case, eos: frozenset[int]) -> Any:
    return create(case.sources, eos)


def measure(
    cases: Sequence[Case], times: Times, *, nodes: int, tokens: int, batch: int, calls: int
) -> dict[str, dict[str, Any]]:
    """Seconds of each call, without and with drafts, the passes of the last one, and the captures held after it."""
    found = {}
    for name, most in (("plain", 0), ("copyspec", nodes)):
        costs, runner = costs_on("cuda"), Runner(times)
        ran = [run(cases, times, costs, runner, nodes=most, tokens=tokens, batch=batch) for _ in range(calls)]
        seconds = [round(second, 3) for second, _ in ran]
        found[name] = {"seconds": seconds, "passes": ran[-1][1], "captures": runner.captures}
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu.simulation",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("transcripts", nargs="+", help="files of transcripts, or folders that hold them")
    parser.add_argument("--tokenizer", required=True, help="tokenizer.json with which the texts are cut")
    parser.add_argument("--tasks", nargs="*", default=TASKS)
    parser.add_argument("--rows", type=int, default=10, help="prompts per task")
    parser.add_argument("--prompts", type=int, help="prompts of a call (default: --batch)")
    parser.add_argument("--batch", type=int, default=32, help="rows that are decoded together")
    parser.add_argument("--tokens", type=int, default=150, help="outputs are cut here")
    parser.add_argument("--longest", type=int, default=2500, help="maximum tokens of a prompt")
    parser.add_argument("--nodes", type=int, default=32, help="maximum draft nodes of a row")
    parser.add_argument("--calls", type=int, default=6)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args(arguments)
    chosen = TranscriptOptions(
        given.transcripts, given.tokenizer, given.tasks, given.rows, max_prompt_tokens=given.longest
    )
    wanted = given.prompts or given.batch
    by_set, end = transcript_cases(chosen)
    sets: dict[str, list[Case]] = {}
    for (task, _, _), cases in by_set.items():
        sets.setdefault(task, cases)  # the first set of each task
    if wanted > sum(map(len, sets.values())):
        parser.error(f"{wanted} prompts are wanted, and there are {sum(map(len, sets.values()))}: raise --rows")
    (prompts, *_), _ = together(sets, wanted, end)
    found = {
        name: measure(prompts, times, nodes=given.nodes, tokens=given.tokens, batch=given.batch, calls=given.calls)
        for name, times in MODELS.items()
    }
    for name, methods in found.items():
        for method, each in methods.items():
            seconds = " ".join(f"{second:7.3f}" for second in each["seconds"])
            print(f"{name:8} {method:9}{seconds} s, {each['passes']} passes, {each['captures']} captures")
    if given.json:
        write_json(given.json, {"command": command_line("benchmarks.gpu.simulation", arguments), "found": found})
    return 0


if __name__ == "__main__":
    sys.exit(main())
