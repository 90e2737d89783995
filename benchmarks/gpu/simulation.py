"""Simulates batches on a GPU in time: recorded outputs, real drafts, real choice of sizes, and pass times of an H200.

    python -m benchmarks.gpu.simulation --batch 32

No model and no GPU is needed, and the figures are the same in every run: the controller, the costs that it learns,
prompts that are read beside other rows, and what captures of CUDA graphs and padding cost in the first calls. Times are
those of `benchmarks/results/gpu-h200.json` at the size of Llama-2-7B and of the bundled model: passes of 1 to 1,056
computed tokens fall on one curve, whichever rows they are of. Those of Llama-3-8B were measured up to 65 tokens and
are assumed to grow like Llama-2-7B's beyond. Attention costs what its tiles do: 33 tokens after 7,800 were measured.
Drafts are those of `copyspec.generate`: copies, and n-grams of English. Plain decoding comes first; every method makes
the same call several times, as a service would, with what it has learned and captured before.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.speed import simulation
from benchmarks.speed.prompts import Case, TranscriptOptions, transcript_cases
from benchmarks.speed.simulation import Clock, Device
from copyspec.budget import CostModel
from copyspec.decoding.loop import DecodeSettings, decode
from copyspec.decoding.meter import costs_on
from copyspec.decoding.requests import Request
from copyspec.drafters import create
from copyspec.options import DraftOptions, SamplingOptions
from copyspec.targets.base import Scores, Session
from copyspec.targets.static.settings import MAX_PADDED, PREFILL_TOKENS, RARE, WARM_PASSES, size_of
from copyspec.tree import DraftTree
from kit import places
from kit.reporting import command_line, write_json

TASKS = ("gec_document", "code_edit", "rag", "summarization")


@dataclass(frozen=True, slots=True)
class Times:
    """Milliseconds of what a pass consists of."""

    tokens: tuple[int, ...]
    products: tuple[float, ...]  # of a captured pass over so many computed tokens, without attention
    cached: float  # for attention to 1,000 cached tokens, bound by reading them
    tile: float  # for each tile of a row's tokens that attends to 1,000 cached ones
    queries: int  # tokens of a tile
    host: float  # for each row, between two passes
    eager: float  # the least that a pass takes without a graph
    capture: float
    draft: float = 0.04
    node: float = 0.0006  # for each draft node

    def captured(self, size: int, rows: int, attention: float) -> float:
        """`attention`: its milliseconds for all `rows` rows."""
        beyond = max(0, size - self.tokens[-1]) * self.products[-1] / self.tokens[-1]
        products = float(np.interp(size, self.tokens, self.products)) + beyond
        return products + attention + self.host * rows

    def attention(self, tokens: int, cached: int) -> float:
        """Of one row's `tokens` in a pass."""
        return 1e-3 * cached * max(self.cached, self.tile * -(-tokens // self.queries))


MODELS: Mapping[str, Times] = {
    "7B": Times(
        *((1, 33, 70, 140, 268, 288, 1056), (5.2, 5.7, 6.0, 7.2, 10.3, 10.9, 26.2)), 0.13, 0.065, 32, 0.03, 25.0, 70.0
    ),
    "8B": Times(
        *((1, 33, 65, 140, 268, 288, 1056), (5.4, 6.1, 6.3, 7.5, 10.7, 11.3, 27.2)), 0.033, 0.042, 8, 0.03, 25.0, 70.0
    ),
    "bundled": Times((1, 1056), (0.6, 1.02), 0.01, 0.005, 32, 0.015, 6.0, 60.0),
}


class Captures:
    """The sizes that were captured so far."""

    def __init__(self, times: Times) -> None:
        self.times = times
        self.asked: Counter[int] = Counter()
        self.rare: Counter[int] = Counter()

    def __len__(self) -> int:
        return sum(asked >= WARM_PASSES for asked in self.asked.values())

    def milliseconds(self, size: int, rows: int, attention: float) -> float:
        """The time of a pass of this size, with a capture if it is due. Rare sizes run in larger ones."""
        times = self.times
        most = max(MAX_PADDED, 2 * size)
        larger = [other for other, asked in self.asked.items() if size < other <= most and asked > WARM_PASSES]
        if self.asked[size] < WARM_PASSES and larger and self.rare[size] < RARE:
            self.rare[size] += 1
            return times.captured(min(larger), rows, attention)
        self.asked[size] += 1
        captured = times.captured(size, rows, attention)
        if self.asked[size] > WARM_PASSES:
            return captured
        return max(times.eager, captured) + times.capture * (self.asked[size] == WARM_PASSES)


class _Target(simulation._Target):
    def __init__(self, dense: simulation._Dense, clock: Clock, captures: Captures) -> None:
        super().__init__(dense, Device(0.0, {0: 0.0, 1: 0.0}, 0.0), clock, random.Random(0))
        self.captures, self.stalls = captures, list[float]()
        self.needed = self.computed = 0  # tokens
        self.reading = 0.0  # seconds of passes that read prompts

    def open(self, prompts: Sequence[Sequence[int]], new_tokens: int = 0, *, keeps_states: bool = False) -> Session:
        return _Session(self, prompts)


class _Session(simulation._Session):
    most_tokens = PREFILL_TOKENS

    def __init__(self, target: _Target, prompts: Sequence[Sequence[int]]) -> None:
        super().__init__(target, prompts)
        self._static, self.computes = target, size_of

    def score(self, uncached: Sequence[Sequence[int]], trees: Sequence[DraftTree]) -> Scores:
        scores, target = super().score(uncached, trees), self._static
        tokens = sum(map(len, uncached)) + sum(map(len, trees))
        size = size_of(tokens)
        target.needed, target.computed = target.needed + tokens, target.computed + size
        self.is_settled = target.captures.asked[size] >= WARM_PASSES
        rows = zip(uncached, trees, self.lengths, strict=False)  # some rows wait
        attention = sum(target.captures.times.attention(len(new) + len(tree), length) for new, tree, length in rows)
        milliseconds = target.captures.milliseconds(size, len(uncached), attention)
        target.clock.now += 1e-3 * milliseconds
        if sum(map(len, uncached)) > len(uncached):
            target.reading += 1e-3 * milliseconds
        if self.is_settled and len(uncached) > 1:
            target.stalls.append(milliseconds)
        return scores


def run(
    cases: Sequence[Case], costs: CostModel, captures: Captures, *, nodes: int | None, tokens: int, batch: int
) -> tuple[float, int, float, float, float]:
    """Seconds and passes of one call, whose outputs are checked, the milliseconds of its longest captured pass, the
    tokens that its passes compute over those that they were given, and output tokens per second of passes that read no
    prompts."""
    dense, clock, times = simulation._Dense(cases), Clock(), captures.times
    costs.clock = clock
    target: Any = _Target(dense, clock, captures)
    requests = []
    for case, recorded in zip(dense.cases, dense.outputs, strict=True):
        eos = frozenset({recorded[-1]})
        make = partial(simulation._slow, _copies, case, eos, clock, 1e-3 * times.draft, 1e-3 * times.node)
        requests.append(
            Request(
                case.prompt,
                min(tokens, len(recorded)),
                SamplingOptions(),
                eos,
                case.sources,
                make if nodes != 0 else None,
            )
        )
    outputs: list[list[int]] = [[] for _ in cases]
    passes = 0
    for step in decode(target, requests, DecodeSettings(DraftOptions(nodes), batch), costs):
        passes += 1
        for output in step:
            outputs[output.row].extend(output.tokens)
    assert outputs == [row[:tokens] for row in dense.outputs], "a simulated run must say what was recorded"
    written = sum(map(len, outputs)) / (clock.now - target.reading)
    return clock.now, passes, max(target.stalls, default=0.0), target.computed / target.needed, written


def _copies(case: Case, eos: frozenset[int]) -> Any:
    return create(case.sources, eos, ngrams=case.ngrams)


def measure(
    cases: Sequence[Case], times: Times, *, nodes: int | None, tokens: int, batch: int, calls: int
) -> dict[str, dict[str, Any]]:
    """Seconds of each call, without and with drafts, the passes of the last one, and the captures held after it."""
    results = {}
    for name, most in (("plain", 0), ("copyspec", nodes)):
        costs, captures = costs_on("cuda"), Captures(times)
        ran = [run(cases, costs, captures, nodes=most, tokens=tokens, batch=batch) for _ in range(calls)]
        seconds = [round(second, 3) for second, *_ in ran]
        results[name] = {
            "seconds": seconds,
            "passes": ran[-1][1],
            "captures": len(captures),
            "longest_ms": round(max(stall for _, _, stall, *_ in ran), 1),
            "computed_over_needed": round(ran[-1][3], 3),
            "tokens_per_second_without_prompts": round(ran[-1][4]),
        }
    return results


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu.simulation",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    places.add_transcripts(parser)
    places.add_tokenizer(parser)
    parser.add_argument("--tasks", nargs="*", default=TASKS)
    parser.add_argument("--rows", type=int, default=130, help="prompts per task")
    parser.add_argument("--prompts", type=int, help="prompts of a call (default: three times --batch)")
    parser.add_argument("--batch", type=int, default=32, help="rows that are decoded together")
    parser.add_argument("--tokens", type=int, default=200, help="outputs are cut here")
    parser.add_argument("--longest", type=int, default=2500, help="maximum tokens of a prompt")
    parser.add_argument("--nodes", type=int, help="maximum draft nodes of a row (default: as many as pay)")
    parser.add_argument("--calls", type=int, default=6)
    parser.add_argument("--models", nargs="*", choices=MODELS, default=[*MODELS])
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    chosen = TranscriptOptions(
        options.transcripts, options.tokenizer, options.tasks, options.rows, max_prompt_tokens=options.longest
    )
    wanted = options.prompts or 3 * options.batch
    by_set, _ = transcript_cases(chosen)
    sets: dict[str, list[Case]] = {}
    for (task, _, _), cases in by_set.items():
        sets.setdefault(task, []).extend(cases)
    for cases in sets.values():  # models in turn
        random.Random(0).shuffle(cases)
    if wanted > sum(map(len, sets.values())):
        parser.error(f"{wanted} prompts are wanted, and there are {sum(map(len, sets.values()))}: raise --rows")
    prompts = [case for cases in zip_longest(*sets.values()) for case in cases if case is not None][:wanted]
    results = {
        name: measure(
            prompts, times, nodes=options.nodes, tokens=options.tokens, batch=options.batch, calls=options.calls
        )
        for name, times in MODELS.items()
        if name in options.models
    }
    for name, methods in results.items():
        for method, figures in methods.items():
            seconds = " ".join(f"{second:7.3f}" for second in figures["seconds"])
            counts = f"{figures['passes']} passes, {figures['captures']} captures, longest {figures['longest_ms']} ms"
            counts += f", {figures['computed_over_needed']:.2f} tokens computed for one needed"
            counts += f", {figures['tokens_per_second_without_prompts']} tokens a second without prompts"
            print(f"{name:8} {method:9}{seconds} s, {counts}")
    if options.json:
        write_json(options.json, {"command": command_line("benchmarks.gpu.simulation", arguments), "found": results})
    return 0


if __name__ == "__main__":
    sys.exit(main())
