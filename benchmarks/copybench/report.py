"""Formats the report of the copy benchmark as tables and a chart."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import exp, log
from pathlib import Path
from statistics import mean, median
from typing import Any

from benchmarks.copybench.peers import CHAIN, COPIES, OURS, OWN, TOLD
from benchmarks.replay.chart import Chart, png
from benchmarks.replay.figures import Figures, Grid

LLAMA = "llama.cpp"
SHOWN = ("transformers", "vLLM", "Arctic", "SGLang", LLAMA, "SAM-Decoding")
"""Peers in the table of sets and the chart. `LLAMA` stands for the best of its kinds on each set."""


MADE = "whole_"
"""Begins the names of sets that `benchmarks.replay.whole_files` makes. Their calls would leave the chart no room."""


def overall(lines: Iterable[Figures]) -> float:
    """Geometric mean over the sets of tokens per call."""
    return exp(mean(log(line.tokens_per_call) for line in lines))


def of_budget(report: Mapping[str, Any], nodes: int) -> Grid:
    return Grid([Figures(**line) for line in report["figures"] if line["nodes"] == nodes])


def budgets(report: Mapping[str, Any]) -> list[int]:
    return sorted({line["nodes"] for line in report["figures"]})


def keys(grid: Grid) -> list[tuple[str, str, str]]:
    return [key for rows in grid.tasks.values() for key in rows]


def behind(report: Mapping[str, Any], nodes: int, *, chains: bool = False) -> list[tuple[tuple[str, str, str], str]]:
    """The sets on which a peer is ahead, with that peer. `chains`: copyspec's chains beside peers that draft chains."""
    grid, pairs = of_budget(report, nodes), []
    peers = [name for name in grid.methods if name not in {*OURS, TOLD}]
    peers = [name for name in peers if not (chains and report["methods"][name]["trees"])]
    for key in keys(grid):
        best = max(peers, key=lambda name: grid.cell(key, name).tokens_per_call)
        if grid.cell(key, best).tokens_per_call > grid.cell(key, CHAIN if chains else OWN).tokens_per_call:
            pairs.append((key, best))
    return pairs


def tables(report: Mapping[str, Any]) -> str:
    """All tables, in Markdown."""
    limits = budgets(report)
    parts = [methods_table(report)]
    for nodes in limits:
        parts.append(f"Most nodes of a call: {nodes}. Tokens per call of each set:\n\n{sets_table(report, nodes)}")
        for chains, what in ((False, "copyspec"), (True, "copyspec's chains are behind a chain")):
            pairs = behind(report, nodes, chains=chains)
            grid = of_budget(report, nodes)
            listed = "; ".join(f"{key[0]}, {grid.label(key)} ({name})" for key, name in pairs) or "none"
            parts.append(f"Sets where {what if chains else 'copyspec is behind'}, {nodes} nodes: {listed}.")
    parts.append("\n".join(f"- Not run: {name}: {why}." for name, why in report["not_run"].items()))
    return "\n\n".join(parts)


def methods_table(report: Mapping[str, Any]) -> str:
    """One line per method: its geometric mean at each budget, setting, cost and check."""
    limits = budgets(report)
    grids = {nodes: of_budget(report, nodes) for nodes in limits}
    most = limits[-1]
    head = ["method", "drafts", *(f"{nodes} nodes" for nodes in limits), f"nodes used of {most}"]
    head += ["us a draft", "KB a row", f"setting at {most}, shipped", "drafts checked"]
    rows = []
    for name in [TOLD, *report["methods"]]:
        method = report["methods"].get(name, {"trees": True, "best": {}, "shipped": {}, "check": {}, "kilobytes": None})
        cells = [grids[nodes].cell(key, name) for nodes in (most,) for key in keys(grids[nodes])]
        means = [overall(grids[nodes].cell(key, name) for key in keys(grids[nodes])) for nodes in limits]
        best = method["best"].get(str(most), method["best"].get(most, {}))
        check = method["check"]
        rows.append(
            [
                name,
                "trees" if method["trees"] else "chains",
                *(f"{value:.2f}" for value in means),
                f"{median(cell.nodes_per_call for cell in cells):.1f}",
                f"{median(cell.draft_us_p50 for cell in cells):.0f}",
                "" if method["kilobytes"] is None else f"{method['kilobytes']:,.0f}",
                f"{_setting(best)}; {_setting(method['shipped'])}" if best else "",
                f"{check['equal']:,} of {check['drafts']:,} equal to {check['against']}" if check else "",
            ]
        )
    return _table(head, rows)


def sets_table(report: Mapping[str, Any], nodes: int) -> str:
    """Tokens per call of each set. llama.cpp's kinds share a column, their best on that set."""
    grid = of_budget(report, nodes)
    shown = [OWN, COPIES, CHAIN, *SHOWN]
    shown = [name for name in shown if _kinds(grid, name)]
    rows: list[list[str]] = []
    for task, sets in grid.tasks.items():
        rows.append([f"**{task}**"])
        for key in sets:
            values = [max(grid.cell(key, kind).tokens_per_call for kind in _kinds(grid, name)) for name in shown]
            values.append(grid.cell(key, TOLD).tokens_per_call)
            rows.append([grid.label(key), str(grid.rows(key)), *(f"{value:.2f}" for value in values)])
    return _table(["set", "rows", *shown, TOLD], rows)


def draw(report: Mapping[str, Any], file: Path) -> None:
    """Draw the chart of the largest budget."""
    nodes = budgets(report)[-1]
    grid = of_budget(report, nodes)
    shown = [OWN, CHAIN, *(name for name in SHOWN if _kinds(grid, name))]
    tasks = {
        task: [
            (
                grid.label(key),
                [max(grid.cell(key, kind).tokens_per_call for kind in _kinds(grid, name)) for name in shown],
            )
            for key in sets
            if not key[1].startswith(MADE)
        ]
        for task, sets in grid.tasks.items()
    }
    png(Chart(f"Tokens per call, from the prompt alone, at most {nodes} nodes a call", shown, tasks), file)


def _kinds(grid: Grid, name: str) -> list[str]:
    return [method for method in grid.methods if method == name or (name == LLAMA and method.startswith(f"{name} "))]


def _setting(setting: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}".removesuffix(".0") for name, value in setting.items())


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---", *["--:"] * (len(head) - 1)]]
    lines += [[*row, *[""] * (len(head) - len(row))] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
