"""Formats the tables of docs/replay.md about the prompt alone and about whole files, beside figures on the sample."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from statistics import median

from benchmarks.replay.figures import Figures, Grid

RESULTS = Path(__file__).parents[1] / "results"
OWN, LOOKUP = "copyspec", "prompt-lookup"
TASKS = ("gec", "gec_document", "code_edit", "multiturn_edit", "rag", "summarization", "chat")
WHOLE = {
    "file of 3,500 tokens": ("whole_3500", ""),
    "file of 400 tokens": ("whole_400", ""),
    "CanItEdit, Qwen2.5-Coder-7B": ("canitedit", "7B"),
    "CanItEdit, Qwen2.5-Coder-3B": ("canitedit", "3B"),
}
"""The rows of whole files: a set, and a part of its model's name."""


def _stored(name: str) -> list[Figures]:
    return [Figures(**line) for line in json.loads((RESULTS / name).read_text("utf-8"))]


def _sample(name: str) -> dict[str, float]:
    figures: dict[str, float] = json.loads((RESULTS / "sample.json").read_text("utf-8"))[name]
    return figures


def prompt_only() -> str:
    """Tokens per call relative to prompt lookup, where drafters see only the prompt."""
    grid, sample = Grid(_stored("replay-prompt-only.json")), _sample("prompt only")
    rows = []
    for task in TASKS:
        ratio = grid.ratio(task, OWN)
        of_sample = [
            value / sample[name.replace(f", {OWN},", f", hf-{LOOKUP},")]
            for name, value in sample.items()
            if name.startswith(f"{task} ") and f", {OWN}," in name
        ]
        rows.append([task, f"{ratio or 0:.2f}", f"{median(of_sample):.2f}" if of_sample else ""])
    return _table(["task", "ratio to prompt lookup", "sample"], rows)


def whole_files() -> str:
    """Tokens per call of whole files by the limit of nodes, with the sample's in the last row."""
    lines, sample = _stored("replay-whole-files.json"), _sample("whole files")
    nodes = sorted({line.nodes for line in lines})
    rows = []
    for title, (name, model) in WHOLE.items():
        cells = []
        for method, limit in [(f"hf-{LOOKUP}", nodes[0]), *((OWN, limit) for limit in nodes)]:
            matching = [
                line
                for line in lines
                if (line.set, line.method, line.nodes) == (name, method, limit) and model in line.model
            ]
            cells.append(sum(line.output_tokens for line in matching) / sum(line.calls for line in matching))
        rows.append([title, *(f"{cell:.1f}" for cell in cells)])
    last = []
    for method, limit in [(f"hf-{LOOKUP}", nodes[0]), *((OWN, limit) for limit in nodes)]:
        values = [value for name, value in sample.items() if name.endswith(f", {method}, {limit} nodes")]
        last.append(f"{values[0]:.1f}" if values else "")
    rows.append(["sample: file of 2,000 tokens", *last])
    return _table(["", "prompt lookup", f"{nodes[0]} nodes", *map(str, nodes[1:])], rows)


def _table(head: list[str], rows: Iterable[list[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] + ["--:"] * (len(head) - 1), *rows))


PARTS = (("prompt-only", prompt_only), ("whole-files", whole_files))
