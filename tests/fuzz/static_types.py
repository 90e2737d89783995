"""Lists which architectures support static passes (replayed, with tree attention, compiled), compared with `generate`.

    python -m tests.fuzz.static_types                       # all architectures of the test helpers; takes minutes
    python -m tests.fuzz.static_types --only llama gemma2 t5 --markdown

Each architecture is a tiny model with random weights (`tests/helpers/models.py`). Three rows run at a time, and join
and leave; seven draft tokens of ten are right, some off the first chain. On a CPU, a recorded pass is replayed operator
by operator, as a CUDA graph would be (`tests/helpers/cpu_graph.py`). `compiled` means `torch.compile(fullgraph=True,
backend="eager")` of the whole program: one graph, or an error.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import transformers

from kit.reporting import resumed, write_json

LENGTHS = (14, 30, 9, 20)  # output tokens per row


class _Records(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


def examine(name: str, *, compiled: bool) -> dict[str, Any]:
    """Test each kind of static pass; report how the last pass was made, or the reason why it was not."""
    from copyspec.options import StaticOptions
    from tests.helpers import models
    from tests.helpers.cpu_graph import CpuGraph
    from tests.targets.static.test_static_equal import expected_of, run

    model = models.tiny(name)
    expected = expected_of(model, LENGTHS)
    report: dict[str, Any] = {"type": name}
    ways = {"replayed": StaticOptions(use="always", new_graph=CpuGraph)}
    ways["tree attention"] = StaticOptions(use="always", attention="tree", new_graph=CpuGraph)
    for way, options in ways.items():
        handler = _Records()
        logging.getLogger("copyspec").addHandler(handler)
        try:
            outputs, stats = run(model, options, expected)
        finally:
            logging.getLogger("copyspec").removeHandler(handler)
        runners = {stat.runner for stat in stats}
        best = next(runner for runner in ("graph", "static", "eager") if runner in runners)
        masks = any("takes masks" in record.getMessage() for record in handler.records)
        report[way] = "differs" if outputs != expected else "masks" if masks else best
    if compiled:
        report["compiled"] = _graphs(model) if report["replayed"] != "eager" else "eager"
    return report


def _graphs(model: Any) -> str:
    from copyspec.options import StaticOptions
    from copyspec.targets import wrap
    from copyspec.tree import DraftTree

    torch._dynamo.reset()
    counters = torch._dynamo.utils.counters["stats"]
    before, eager = counters["unique_graphs"], StaticOptions(use="always", graphs=False)
    tree, logits = DraftTree([20, 21, 22], [-1, 0, -1], [0.5] * 3, [None] * 3), []
    options = StaticOptions(use="always", graphs=False, compile=True, compiler="eager")
    for way in (options, eager):
        target = wrap(model, static=way)
        session = target.open([[5, 6, 7, 8]])
        try:
            first = session.score([target.start([5, 6, 7, 8])], [tree])[0].clone()
            session.keep([[2]])
            logits += [[first, session.score([[9]], [tree])[0].clone()]]
        except Exception as error:
            return f"{type(error).__name__}: {error}".splitlines()[0][:80]
        finally:
            session.close()
    graphs = counters["unique_graphs"] - before
    same = all(torch.allclose(one, other, atol=1e-4) for one, other in zip(*logits, strict=True))
    if session.runner == "static" and not graphs:
        return "not compiled"
    return "differs" if not same else "one graph" if graphs == 1 else f"{graphs} graphs"


def markdown(rows: Sequence[dict[str, Any]]) -> str:
    """Format the table of docs/gpu.md."""
    lines = ["| | types |", "|---|---|"]
    for way in ("replayed", "tree attention", "compiled"):
        for outcome in sorted({row[way] for row in rows if way in row}):
            names = [f"`{row['type']}`" for row in rows if row.get(way) == outcome]
            lines.append(f"| {way}: {outcome}, {len(names)} | {', '.join(names)} |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz.static_types", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--only", nargs="+", metavar="TYPE")
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("--json", type=Path, help="results file; an existing one is resumed")
    options = parser.parse_args(arguments)
    from tests.helpers import models

    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    head = {"transformers": transformers.__version__, "torch": torch.__version__, "compiled": not options.no_compile}
    rows: list[dict[str, Any]] = resumed(options.json, head).get("types", [])
    for name in options.only or [*models.CAUSAL, *models.SEQ2SEQ, *models.STATEFUL]:
        if name in {row["type"] for row in rows}:
            continue
        rows.append(examine(name, compiled=not options.no_compile))
        print(json.dumps(rows[-1]), flush=True)
        if options.json:
            write_json(options.json, {**head, "types": rows})
    if options.markdown:
        print(markdown(rows))
    return int(any("differs" in row.values() for row in rows))


if __name__ == "__main__":
    sys.exit(main())
