"""Formats the replay's results for the width of the terminal."""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence

from benchmarks.replay.figures import Figures, Grid, by_limit, short

WIDTH = 80  # where the output is no terminal, unless $COLUMNS says more
LABEL = 31  # columns for the names of the sets
MIN_COLUMN = 7


def terminal(figures: Sequence[Figures]) -> str:
    """Format tokens per call by set and method, then the medians. Methods that do not fit side by side follow below."""
    parts, width = [], shutil.get_terminal_size((WIDTH, 24)).columns
    for limit, lines in by_limit(figures).items():
        grid = Grid(lines)
        for place, methods in enumerate(_blocks(grid.methods, width)):
            more = ", further methods" if place else ""
            parts.append("\n".join([f"Tokens per call, {limit}{more}", *_block(grid, methods)]))
    return "\n\n".join(parts)


def _block(grid: Grid, methods: Sequence[str]) -> list[str]:
    lines = _head(methods)
    for task, keys in grid.tasks.items():
        lines.append(task)
        for key in keys:
            cells = [f"{grid.cell(key, method).tokens_per_call:.2f}" for method in methods]
            lines.append(_line(f"  {grid.label(key)}", cells, methods))
    if grid.baseline is not None:
        lines += ["", f"Ratio to {grid.baseline}, median over the sets of a task"]
        for task in grid.tasks:
            lines.append(_line(f"  {task}", [f"{grid.ratio(task, method):.2f}" for method in methods], methods))
    lines += ["", "Median over all sets"]
    for name, field, digits in (("nodes per call", "nodes_per_call", 1), ("draft, microseconds", "draft_us_p50", 0)):
        cells = [f"{grid.median(method, field):.{digits}f}" for method in methods]
        lines.append(_line(f"  {name}", cells, methods))
    return lines


def _blocks(methods: Sequence[str], width: int) -> list[list[str]]:
    blocks: list[list[str]] = [[]]
    for method in methods:
        if blocks[-1] and LABEL + sum(_column(other) for other in [*blocks[-1], method]) > width:
            blocks.append([])
        blocks[-1].append(method)
    return blocks


def _head(methods: Sequence[str]) -> list[str]:
    """Return the header lines: names of methods, broken after hyphens, above their columns."""
    names = [_parts(method) for method in methods]
    height = max(len(name) for name in names)
    padded = [[""] * (height - len(name)) + name for name in names]
    return [_line("", [name[row] for name in padded], methods) for row in range(height)]


def _line(label: str, cells: Sequence[str], methods: Sequence[str]) -> str:
    columns = [f"{cell:>{_column(method)}}" for cell, method in zip(cells, methods, strict=True)]
    return f"{short(label, LABEL):<{LABEL}}{''.join(columns)}".rstrip()


def _column(method: str) -> int:
    return max(MIN_COLUMN, 1 + max(len(part) for part in _parts(method)))


def _parts(method: str) -> list[str]:
    return re.findall(r"[^-]+-?", method)
