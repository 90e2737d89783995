"""The figures of a replay and their grouping, used by table, chart and documentation."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from benchmarks.transcripts import ratio

BASELINES = ("prompt-lookup", "hf-prompt-lookup")
"""What ratios are given over, the first that was measured: both draft the same."""

TASKS = (
    "gec", "gec_document", "code_edit", "multiturn_edit", "rag", "summarization", "chat", "math", "translation",
)  # fmt: skip
"""The order of tasks: from those that copy most to those that copy least. Others follow."""


@dataclass(frozen=True, slots=True)
class Figures:
    """One line of the JSON: a method on a set."""

    task: str
    set: str
    model: str
    method: str
    nodes: int  # a call, at most
    rows: int
    output_tokens: int
    calls: int
    tokens_per_call: float
    nodes_per_call: float
    draft_us_p50: float
    draft_us_p99: float
    mean_nodes: float | None = None  # a call on average, at most; None: no such limit

    @property
    def key(self) -> tuple[str, str, str]:
        """What was replayed."""
        return self.task, self.set, self.model

    @property
    def limit(self) -> str:
        """The limit in words."""
        mean = f", {self.mean_nodes:g} on average" if self.mean_nodes else ""
        return f"at most {self.nodes} nodes a call{mean}"


def by_limit(figures: Iterable[Figures]) -> dict[str, list[Figures]]:
    """The figures of each limit of nodes."""
    found: dict[str, list[Figures]] = {}
    for line in figures:
        found.setdefault(line.limit, []).append(line)
    return found


def short(text: str, most: int) -> str:
    """`text` in at most `most` characters: models differ at both ends of their names, so the middle is left out."""
    if len(text) <= most:
        return text
    tail = (most - 1) // 2
    return f"{text[: most - 1 - tail]}…{text[-tail:]}"


class Grid:
    """The figures of one limit as a grid of sets and methods."""

    def __init__(self, figures: Sequence[Figures]) -> None:
        self.any = figures[0]  # for what they have in common
        self.methods = list(dict.fromkeys(line.method for line in figures))
        self.baseline = next((name for name in BASELINES if name in self.methods), None)
        self._cells = {(line.key, line.method): line for line in figures}
        order = {task: index for index, task in enumerate(TASKS)}
        keys = sorted(dict.fromkeys(line.key for line in figures), key=lambda key: order.get(key[0], len(TASKS)))
        self.tasks: dict[str, list[tuple[str, str, str]]] = {}
        for key in keys:
            self.tasks.setdefault(key[0], []).append(key)

    def cell(self, key: tuple[str, str, str], method: str) -> Figures:
        """Of one set and method."""
        return self._cells[key, method]

    def rows(self, key: tuple[str, str, str]) -> int:
        """How many outputs of the set were replayed."""
        return self.cell(key, self.methods[0]).rows

    def label(self, key: tuple[str, str, str]) -> str:
        """What tells the sets of a task apart: the model, and the set's name unless all share it."""
        task, name, model = key
        model = "model not stated" if model.startswith("not stated") else model
        alone = len({other[1] for other in self.tasks[task]}) == 1
        return model if alone and len(self.tasks[task]) > 1 else f"{name} {model}"

    def ratio(self, task: str, method: str, other: Grid | None = None) -> float | None:
        """Median over the sets of a task of tokens per call over the baseline's; None without a baseline.

        `other`: where the baseline is, if it was measured with another limit of nodes.
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
