"""Compares calls whose drafts have no limit but their cost with calls of at most 32 draft nodes, in CPU time.

    python -m benchmarks.speed.draft_limits --model default smollm2 --json FILE

Prompts of every task are answered with the model's own outputs, `--tokens` each. Both ways, and the limited one a
second time as a control, take turns; of each prompt the least CPU time of `--repeat` counts. Outputs must be equal.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from time import process_time
from typing import Any

import copyspec
from kit import places
from kit.reporting import command_line, conditions, read_rows, write_json

TASKS = ("gec", "gec_document", "code_edit", "multiturn_edit", "rag", "chat")
WAYS: dict[str, dict[str, Any]] = {
    "32": {"max_draft_nodes": 32},
    "by cost": {},
    "32 again": {"max_draft_nodes": 32},
}


def measured(engine: copyspec.Engine, rows: Sequence[dict[str, Any]], tokens: int, repeat: int) -> dict[str, float]:
    """The CPU seconds of each way. Raises AssertionError if outputs differ."""
    total = dict.fromkeys(WAYS, 0.0)
    for row in rows:
        seconds, outputs = {name: list[float]() for name in WAYS}, set[tuple[int, ...]]()
        for turn in range(repeat):
            names = [*WAYS][turn % len(WAYS) :] + [*WAYS][: turn % len(WAYS)]
            for name in names:
                begun = process_time()
                result = engine.generate(
                    row["prompt"], references=row.get("references") or None, max_new_tokens=tokens, **WAYS[name]
                )
                seconds[name].append(process_time() - begun)
                outputs.add(tuple(result.token_ids))
        assert len(outputs) == 1, row["id"]
        for name, times in seconds.items():
            total[name] += min(times)
    return total


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    places.add_data(parser, "transcripts/")
    parser.add_argument("--model", nargs="+", default=["default"])
    parser.add_argument("--tasks", nargs="+", default=TASKS, choices=TASKS)
    parser.add_argument("--rows", type=int, default=6)
    parser.add_argument("--longest", type=int, default=2200, help="characters of a prompt, at most")
    parser.add_argument("--tokens", type=int, default=80)
    parser.add_argument("--repeat", type=int, default=4)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    figures: dict[str, dict[str, dict[str, float]]] = {}
    for model in options.model:
        engine = copyspec.load(model)
        engine.threads = 1
        for task in options.tasks:
            rows = read_rows(options.data / "transcripts" / f"{task}.jsonl.gz")
            rows = [row for row in rows if len(row["prompt"]) <= options.longest]
            rows = rows[:: max(1, len(rows) // options.rows)][: options.rows]
            seconds = measured(engine, rows, options.tokens, options.repeat)
            ratios = {name: time / seconds["32"] for name, time in seconds.items()}
            figures.setdefault(model, {})[task] = ratios
            print(f"{model} {task}: by cost {ratios['by cost']:.3f}, control {ratios['32 again']:.3f} of 32 nodes")
    if options.json is not None:
        made_by = {"command": command_line("benchmarks.speed.draft_limits", arguments), **conditions()}
        write_json(options.json, {**made_by, "cpu_time_over_32_nodes": figures})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
