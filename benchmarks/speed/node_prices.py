"""Measures the cost of a target's forward pass by its number of tokens: the chain's last token and draft nodes.

python -m benchmarks.speed.node_prices --model smollm2 --threads 1 2 --dtypes float32 bfloat16 --json prices.json

Passes of all sizes take turns, so that other load affects all of them; each figure is the median of many. The cost of a
size is its median divided by that of a single token, in wall time and in the process's CPU time.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import TYPE_CHECKING

import torch
from torch import nn

import copyspec
from copyspec.targets import wrap
from copyspec.targets.base import Session, Target
from copyspec.targets.cpu.linears import FastLinears
from copyspec.targets.eager.causal import WrappedModel
from copyspec.tree import ROOT, DraftTree
from copyspec.verification.picking import best_picks
from kit.reporting import machine, ratio, write_json

if TYPE_CHECKING:
    from transformers import PreTrainedModel

NODES = (1, 2, 4, 6, 8, 12, 16, 24, 32)
CONTEXT = 200


@dataclass(frozen=True, slots=True)
class Price:
    """Cost of the passes of one size."""

    tokens: int
    seconds: float
    cpu_seconds: float


def tree_of(nodes: int, branches: int) -> DraftTree:
    """Make a tree of a most likely chain and, if `branches` is above 1, branches of half its length from the root."""
    chain = max(1, nodes if branches < 2 else (nodes + 1) // 2)
    parents, tokens = [], []
    for node in range(nodes):
        parents.append(node - 1 if 0 < node < chain or node > chain else ROOT)
        tokens.append(300 + node)
    return DraftTree(tokens, parents, [0.9**node for node in range(nodes)])


@dataclass(frozen=True, slots=True)
class Passes:
    """The passes to measure."""

    sizes: Sequence[int] = NODES  # tokens per pass, including the last token of the chain
    context: int = CONTEXT
    repeats: int = 15
    rows: int = 1
    branches: int = 2


def prices(targets: Sequence[Target], passes: Passes) -> list[list[Price]]:
    """Measure every target at every size."""
    rows = passes.rows
    prompts = [[200 + (7 * row + 13 * place) % 5000 for place in range(passes.context)] for row in range(rows)]
    times: dict[tuple[int, int], list[tuple[float, float]]] = {}
    with ExitStack() as stack:
        sessions = []
        for target in targets:
            session = target.open(prompts)
            stack.callback(session.close)
            session.score(prompts, [DraftTree() for _ in prompts])
            session.keep([[] for _ in prompts])
            sessions.append(session)
        for repeat in range(passes.repeats + 2):
            for size in passes.sizes:
                for index, session in enumerate(sessions):
                    time = _timed(session, [tree_of(size - 1, passes.branches)] * rows)
                    if repeat >= 2:  # the first passes allocate memory
                        times.setdefault((index, size), []).append(time)
    return [
        [Price(size, *(median(values) for values in zip(*times[index, size], strict=True))) for size in passes.sizes]
        for index in range(len(targets))
    ]


def targets_of(model: PreTrainedModel) -> dict[str, Target]:
    """Return targets for the model with torch's own linear layers and with those that copyspec uses."""
    plain = wrap(model)
    assert isinstance(plain, WrappedModel)
    plain.linears = FastLinears(nn.Module())
    return {"torch's linear layers": plain, "as it is run": wrap(model)}


def _timed(session: Session, trees: Sequence[DraftTree]) -> tuple[float, float]:
    """Wall and CPU time of one pass, its argmax, and a commit that keeps only the chain."""
    lengths = list(session.lengths)
    wall, cpu = perf_counter(), process_time()
    best_picks(session.score([[500] for _ in trees], trees))
    session.keep([[] for _ in trees])
    result = perf_counter() - wall, process_time() - cpu
    session.trim(lengths)
    return result


def _show(tables: Mapping[str, Sequence[Price]]) -> None:
    for name, listed in tables.items():
        one = listed[0]
        print(f"  {name}")
        for price in listed:
            wall, cpu = ratio(price.seconds, one.seconds), ratio(price.cpu_seconds, one.cpu_seconds)
            print(
                f"    {price.tokens:>3} tokens {1e3 * price.seconds:8.1f} ms, {wall:5.2f}"
                f"   processor {1e3 * price.cpu_seconds:8.1f} ms, {cpu:5.2f}",
                flush=True,
            )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--threads", nargs="+", type=int, default=[1])
    parser.add_argument(
        "--sizes", nargs="+", type=int, default=NODES, help="tokens per pass, including the last token of the chain"
    )
    parser.add_argument("--context", type=int, default=CONTEXT)
    parser.add_argument("--rows", type=int, default=1)
    parser.add_argument("--branches", type=int, default=2, help="branches of the draft tree; 1: chains only")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    tables = []
    passes = Passes(options.sizes, options.context, options.repeats, options.rows, options.branches)
    for dtype in options.dtypes:
        targets = targets_of(copyspec.load(options.model, dtype=dtype).model)
        for threads in options.threads:
            torch.set_num_threads(threads)
            by_target = dict(zip(targets, prices(list(targets.values()), passes), strict=True))
            print(f"{dtype}, {threads} threads, {options.rows} rows, {options.context} tokens before")
            _show(by_target)
            by_name = {name: [asdict(price) for price in listed] for name, listed in by_target.items()}
            tables.append({"dtype": dtype, "threads": threads, "rows": options.rows, "prices": by_name})
    if options.json is not None:
        write_json(options.json, {"model": options.model, "machine": machine(), "tables": tables})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
