"""Holds the figures of a replay and groups them for tables, chart and documentation."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kit.reporting import ratio

BASELINES = ("prompt-lookup", "hf-prompt-lookup")
"""Baselines for ratios, in order of preference; both draft the same."""

TASKS = (
    "gec", "gec_document", "code_edit", "multiturn_edit", "rag", "summarization", "chat", "math", "translation",
)  # fmt: skip
"""Order of the tasks, from those that copy most to those that copy least. Other tasks come after them."""


@dataclass(frozen=True, slots=True)
class Figures:
    """Figures of one method on one set: one line of the JSON."""

    task: str
    set: str
    model: str
    method: str
    nodes: int  # maximum per call
    rows: int
    output_tokens: int
    calls: int
    tokens_per_call: float
    nodes_per_call: float
    draft_us_p50: float
    draft_us_p99: float
    mean_nodes: float | None = None  # maximum average per call; None: no such limit

    @property
    def key(self) -> tuple[str, str, str]:
        """(task, set, model) that was replayed."""
        return self.task, self.set, self.model

    @property
    def limit(self) -> str:
        """The node limit in words."""
        mean = f", {self.mean_nodes:g} on average" if self.mean_nodes else ""
        return f"at most {self.nodes} nodes a call{mean}"


def by_limit(figures: Iterable[Figures]) -> dict[str, list[Figures]]:
    """Group figures by node limit."""
    grouped: dict[str, list[Figures]] = {}
    for line in figures:
        grouped.setdefault(line.limit, []).append(line)
    return grouped


def short(text: str, most: int) -> str:
    """Shorten `text` to `most` characters by omitting its middle, since model names differ at both ends."""
    if len(text) <= most:
        return text
    tail = (most - 1) // 2
    return f"{text[: most - 1 - tail]}…{text[-tail:]}"


class Grid:
    """The figures of one node limit as a grid of sets and methods."""

    def __init__(self, figures: Sequence[Figures]) -> None:
        self.any = figures[0]  # any of them, for the fields that they share
        self.methods = list(dict.fromkeys(line.method for line in figures))
        self.baseline = next((name for name in BASELINES if name in self.methods), None)
        self._cells = {(line.key, line.method): line for line in figures}
        order = {task: index for index, task in enumerate(TASKS)}
        keys = sorted(dict.fromkeys(line.key for line in figures), key=lambda key: order.get(key[0], len(TASKS)))
        self.tasks: dict[str, list[tuple[str, str, str]]] = {}
        for key in keys:
            self.tasks.setdefault(key[0], []).append(key)

    def cell(self, key: tuple[str, str, str], method: str) -> Figures:
        """Return the figures of one method on one set."""
        return self._cells[key, method]

    def rows(self, key: tuple[str, str, str]) -> int:
        """Number of outputs replayed in the set."""
        return self.cell(key, self.methods[0]).rows

    def label(self, key: tuple[str, str, str]) -> str:
        """Label of the set within its task: the model, and the set's name unless all sets of the task share it."""
        task, name, model = key
        model = "model not stated" if model.startswith("not stated") else model
        alone = len({other[1] for other in self.tasks[task]}) == 1
        return model if alone and len(self.tasks[task]) > 1 else f"{name} {model}"

    def ratio(self, task: str, method: str, other: Grid | None = None) -> float | None:
        """Median over a task's sets of tokens per call divided by the baseline's; None without a baseline.

        `other`: the grid that contains the baseline, if it was measured with another node limit.
        """
        grid = other or self
        baseline = grid.baseline
        if baseline is None:
            return None
        return statistics.median(
            ratio(self.cell(key, method).tokens_per_call, grid.cell(key, baseline).tokens_per_call)
            for key in self.tasks[task]
        )

    def median(self, method: str, field: str) -> float:
        """Median of a field over all sets."""
        keys = [key for keys in self.tasks.values() for key in keys]
        return statistics.median(float(getattr(self.cell(key, method), field)) for key in keys)
