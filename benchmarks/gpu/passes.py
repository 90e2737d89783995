"""Times single forward passes of one model: rows G0 to G3 and G7 of docs/gpu.md.

python -m benchmarks.gpu.passes --device cuda --model shape:llama-7b
python -m benchmarks.gpu.passes --device cpu --model shape:tiny-llama      # a test
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, cast

import torch

from benchmarks.speed.methods import synchronise
from benchmarks.speed.models import Model, load_model
from benchmarks.speed.report import bandwidth
from copyspec.options import StaticOptions
from copyspec.targets import wrap
from copyspec.targets.base import Session, Target
from copyspec.targets.static.settings import PAGE
from copyspec.targets.static.static_session import StaticSession
from copyspec.tree import DraftTree
from copyspec.verification.picking import best_picks
from kit.reporting import write_json

DYNAMIC = StaticOptions(use="never")
WARM_STEPS = 4
MOST_WARM_STEPS = 16


def tree(nodes: int) -> DraftTree:
    """Make a tree of two chains of `nodes` / 2 each; the accepted tokens are on the second one."""
    first = nodes // 2
    parents = [*range(-1, first - 1), *([-1, *range(first, nodes - 1)] if nodes > first else [])]
    return DraftTree([1 + node for node in range(nodes)], parents, [0.5] * nodes, [None] * nodes)


class Rows:
    """Rows of one session that are stepped with trees of one size."""

    def __init__(self, target: Target, rows: int, context: int, nodes: int, device: torch.device) -> None:
        prompt = [3 + token % 50 for token in range(context)]
        self.session: Session = target.open([prompt] * rows, 256)
        self._chains: list[list[int]] = [list(prompt)] * rows
        self._trees, self._rows, self._device = [tree(nodes)] * rows, rows, device
        self._path = [nodes // 2] if nodes else []

    def step(self) -> float:
        """Seconds of one pass, including the read of its result and the commit."""
        started = perf_counter()
        with torch.inference_mode():
            best_picks(self.session.score(self._chains, self._trees))
        self.session.keep([self._path] * self._rows)
        self._chains = [[9]] * self._rows
        synchronise(self._device)
        return perf_counter() - started

    def seconds(self, repeats: int) -> float:
        """Median seconds of the passes after prefill, warm-up and capture."""
        for done in range(1, MOST_WARM_STEPS):
            self.step()
            if done >= WARM_STEPS and self.session.is_settled:
                break
        return median(self.step() for _ in range(repeats))


def pass_seconds(target: Target, device: torch.device, rows: int, context: int, nodes: int, repeats: int) -> float:
    measured = Rows(target, rows, context, nodes, device)
    try:
        return measured.seconds(repeats)
    finally:
        measured.session.close()


def new_lengths(model: Model, device: torch.device, repeats: int) -> dict[str, float]:
    """G0: dynamic passes: the first one at each new length, and those at lengths that occurred before."""
    target = wrap(model.model, static=DYNAMIC)
    fresh, seen = [], []
    for context in (100, 700, 1300):
        rows = Rows(target, 1, context, 16, device)
        rows.step()
        fresh.append(rows.step())
        seen.append(rows.seconds(repeats))
        rows.session.close()
    ratio = median(one / other for one, other in zip(fresh, seen, strict=True))
    return {"first_ms": median(fresh) * 1e3, "seen_ms": median(seen) * 1e3, "ratio": ratio}


def graph_costs(model: Model, device: torch.device, context: int, attention: Any) -> dict[str, float]:
    """G7: cost of the first captures."""
    before = torch.cuda.memory_allocated() if device.type == "cuda" else 0
    target = wrap(model.model, static=StaticOptions(use="always", attention=attention))
    rows = Rows(target, 1, context, 32, device)
    times = [rows.step() for _ in range(6)]
    after = torch.cuda.memory_allocated() if device.type == "cuda" else 0
    size = cast(StaticSession, rows.session).pool.size
    buffers = size.layout.bytes_per_slot() * size.pages * PAGE
    rows.session.close()
    return {
        "capture_s": max(times[1:]) - min(times[1:]),
        "buffers_mb": buffers / 2**20,
        "memory_beyond_mb": (after - before - buffers) / 2**20,
    }


def measure(
    model: Model,
    context: int,
    long: int,
    repeats: int,
    *,
    compiled: bool,
    only: Sequence[str] = (),
    tell: Callable[[str], None],
) -> dict[str, Any]:
    """Measure G0 to G3 and G7.

    `context` and `long`: tokens before the passes, limited to what the model supports. `only`: kinds of passes."""
    device = model.model.device
    most = getattr(model.model.config, "max_position_embeddings", context) - 300
    context, long = min(context, most), min(long, most)
    weights = sum(parameter.numel() * parameter.element_size() for parameter in model.model.parameters())
    copy = bandwidth(weights, None, 1, device)["device_copy_gb_per_s"]
    report: dict[str, Any] = {"model": model.name, "weights_gb": weights / 1e9, "copy_gb_per_s": copy}
    report["G0"] = new_lengths(model, device, repeats)
    tell(f"G0 {report['G0']}")
    kinds = {
        "dynamic": DYNAMIC,
        "static": StaticOptions(use="always", graphs=False),
        "graph, masks, layers as they are": StaticOptions(use="always", attention="masks", fuse=False),
        "graph, masks": StaticOptions(use="always", attention="masks"),
        "graph, tree attention": StaticOptions(use="always", attention="tree"),
    }
    if compiled:
        kinds["compiled"] = StaticOptions(use="always", compile=True)
    for name, options in kinds.items():
        if only and name not in only:
            continue
        target = wrap(model.model, static=options)
        plain, usual, wide, far = (
            pass_seconds(target, device, 1, length, nodes, repeats) * 1e3
            for nodes, length in ((0, context), (32, context), (64, context), (32, long))
        )
        report[name] = {
            "ms": {"1": plain, "33": usual, "65": wide, "33, long": far},
            "G1_share_of_copy": weights / 1e9 / (usual / 1e3) / copy,
            "G1_64_nodes_over_plain": wide / plain,
            "G3_long_over_short": far / usual,
        }
        tell(f"{name}: {json.dumps(report[name])}")
    report["G7"] = graph_costs(model, device, context, "auto")
    tell(f"G7 {report['G7']}")
    return report


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu.passes", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--model", default="shape:llama-7b")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--context", type=int, default=1000)
    parser.add_argument("--long", type=int, default=8000)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--only", nargs="+", default=(), metavar="KIND", help="kinds of passes, such as 'graph, masks'")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    model = load_model(options.model, options.device, getattr(torch, options.dtype))
    report = measure(
        model, options.context, options.long, options.repeats, compiled=options.compile, only=options.only, tell=print
    )
    if options.json:
        write_json(options.json, report)
    return 0


if __name__ == "__main__":
    sys.exit(main())
