"""Draws the replay's chart as SVG or PNG: one row per set, one mark per method at its tokens per call."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from benchmarks.replay.figures import BASELINES, Figures, Grid, by_limit, short

COLOURS = ("#0b57d0", "#c2410c", "#5f6670", "#15803d", "#a21caf", "#8a6100", "#0e7490", "#b91c5c")
"""Colours of the methods, in order, on a light background; `html.DARK` has those for a dark one."""

MARKERS = ("o", "s", "D", "^", "v", "P", "X", "<")
"""matplotlib's names of the shapes in SHAPES."""

SHAPES = (
    '<circle r="5"/>',
    '<path d="M-4-4H4V4H-4Z"/>',
    '<path d="M0-5.5 5.5 0 0 5.5-5.5 0Z"/>',
    '<path d="M0-5.2 5 4.2H-5Z"/>',
    '<path d="M0 5.2 5-4.2H-5Z"/>',
    '<path d="M-1.8-5H1.8V-1.8H5V1.8H1.8V5H-1.8V1.8H-5V-1.8H-1.8Z"/>',
    '<path d="M-5-3-3-5 0-2 3-5 5-3 2 0 5 3 3 5 0 2-3 5-5 3-2 0Z"/>',
    '<path d="M-5.2 0 4.2-5V5Z"/>',
)
"""SVG paths centred on (0, 0). Methods differ in shape as well as in colour."""

LEFT, WIDTH, LINE, GAP, HEAD, FOOT = 310, 940, 19, 30, 58, 44
"""SVG dimensions in user units: label width and total width; heights of a row, a task heading, the legend and the
axis."""

AXIS = "tokens per call of the model (1 = plain decoding)"


@dataclass(frozen=True, slots=True)
class Chart:
    """Chart data: for each task, the label of each set and the tokens per call of each method."""

    title: str
    methods: list[str]
    tasks: dict[str, list[tuple[str, list[float]]]]

    @classmethod
    def of(cls, figures: Sequence[Figures]) -> Chart:
        """Build the chart for the first node limit. The two prompt lookups draft the same, so only one of them is
        shown."""
        grid = Grid(next(iter(by_limit(figures).values())))
        twice = set(BASELINES) <= set(grid.methods)
        methods = [name for name in grid.methods if not (twice and name == BASELINES[0])]
        tasks = {
            task: [(grid.label(key), [grid.cell(key, name).tokens_per_call for name in methods]) for key in keys]
            for task, keys in grid.tasks.items()
        }
        return cls(f"Tokens per call by set and method, {figures[0].limit}", methods, tasks)

    @property
    def ticks(self) -> list[float]:
        """Tick positions of the axis, from 1 to at least the largest value."""
        values = [value for rows in self.tasks.values() for _, cells in rows for value in cells]
        top = max([2.0, *values])
        step = next(step for step in (0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 25.0, 100.0, math.inf) if top - 1 <= 10 * step)
        if math.isinf(step):
            step = top - 1
        return [1 + step * index for index in range(math.ceil((top - 1) / step - 1e-9) + 1)]


def svg(chart: Chart) -> str:
    """Render the chart as an SVG element without colours: the page styles its classes `m0`, `m1`, ..."""
    ticks = chart.ticks
    scale = (WIDTH - LEFT - 30) / (ticks[-1] - 1)
    bottom = HEAD + sum(GAP + LINE * len(rows) for rows in chart.tasks.values())

    def x(value: float) -> str:
        return f"{LEFT + (value - 1) * scale:.1f}"

    parts = [
        f'<svg viewBox="0 0 {WIDTH} {bottom + FOOT}" role="img" aria-labelledby="chart-title chart-text">',
        f'<title id="chart-title">{escape(chart.title)}</title>',
        '<desc id="chart-text">The table below the chart holds the same figures.</desc>',
        *_legend(chart.methods),
    ]
    for tick in ticks:
        parts.append(f'<path class="grid" d="M{x(tick)} {HEAD}V{bottom}"/>')
        parts.append(f'<text class="tick" x="{x(tick)}" y="{bottom + 16}">{tick:g}</text>')
    parts.append(f'<text class="tick" x="{x((1 + ticks[-1]) / 2)}" y="{bottom + 36}">{AXIS}</text>')
    y = HEAD
    for task, rows in chart.tasks.items():
        y += GAP
        parts.append(f'<text class="task" x="0" y="{y - 6}">{escape(task)}</text>')
        for label, cells in rows:
            middle = y + LINE / 2
            parts.append(f'<text class="set" x="12" y="{middle + 4}">{escape(short(label, 42))}</text>')
            parts.append(f'<path class="span" d="M{x(min(cells))} {middle}H{x(max(cells))}"/>')
            for index in reversed(range(len(cells))):  # the first method is drawn last, on top
                said = f"{chart.methods[index]}, {label}: {cells[index]:.2f}"
                parts.append(
                    f'<g class="m{index % len(SHAPES)}" transform="translate({x(cells[index])} {middle})">'
                    f"<title>{escape(said)}</title>{SHAPES[index % len(SHAPES)]}</g>"
                )
            y += LINE
    return "\n".join([*parts, "</svg>"])


def _legend(methods: Sequence[str]) -> list[str]:
    parts, at, y = [], LEFT, 14
    for index, method in enumerate(methods):
        width = 34 + 8 * len(method)
        if at + width > WIDTH and at > LEFT:
            at, y = LEFT, y + 22
        parts.append(
            f'<g transform="translate({at + 6} {y})"><g class="m{index % len(SHAPES)}">'
            f'{SHAPES[index % len(SHAPES)]}</g><text class="set" x="12" y="4">{escape(method)}</text></g>'
        )
        at += width
    return parts


def need_matplotlib() -> None:
    """Raise ImportError, naming the extra that installs it, if matplotlib is missing."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise ImportError('the chart is drawn by matplotlib: pip install -e ".[benchmarks]"') from None


def png(chart: Chart, file: str | Path) -> None:
    """Draw the chart with matplotlib. Raises ImportError if it is missing."""
    need_matplotlib()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    lines = sum(len(rows) + 1 for rows in chart.tasks.values())
    figure = Figure(figsize=(8.4, 1.3 + 0.2 * lines), dpi=100, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    _draw(axes, chart)
    axes.set_title(chart.title, fontsize=10, loc="left", pad=34)
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1.0), ncol=4, fontsize=8, frameon=False, borderaxespad=0.2)
    figure.savefig(file, format="png", metadata={"Software": None})


def _draw(axes: Any, chart: Chart) -> None:
    names: list[tuple[float, str, bool]] = []
    points: list[list[tuple[float, float]]] = [[] for _ in chart.methods]
    y = 0.0
    for task, rows in chart.tasks.items():
        names.append((y, task, True))
        for label, cells in rows:
            y += 1
            names.append((y, short(label, 42), False))
            axes.plot([min(cells), max(cells)], [y, y], color="#c4c8cd", lw=1, zorder=1)
            for index, value in enumerate(cells):
                points[index].append((value, y))
        y += 1
    for index, method in enumerate(chart.methods):
        colour, marker = COLOURS[index % len(COLOURS)], MARKERS[index % len(MARKERS)]
        order = 10 + len(chart.methods) - index  # the first method is drawn on top
        across, down = zip(*points[index], strict=True)
        axes.scatter(across, down, s=26, c=colour, marker=marker, label=method, zorder=order, linewidths=0)
    axes.set_yticks([at for at, _, _ in names], [name for _, name, _ in names], fontsize=8)
    for text, (_, _, is_task) in zip(axes.get_yticklabels(), names, strict=True):
        text.set_fontweight("bold" if is_task else "normal")
    axes.set_ylim(y - 0.3, -0.7)
    axes.set_xticks(chart.ticks, [f"{tick:g}" for tick in chart.ticks], fontsize=8)
    axes.set_xlim(0.9, chart.ticks[-1])
    axes.set_xlabel(AXIS, fontsize=9)
    axes.grid(axis="x", color="#e3e5e8", lw=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(axis="y", length=0)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
