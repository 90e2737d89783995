"""Renders the page of charts from the figures in benchmarks/results: SVG bars without scripts.

Pointing at a bar, or reaching it with the Tab key, shows its figures; a table below each chart contains all of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"

WIDTH, LABEL, BAR, GAP, ROOM = (
    760,
    190,
    14,
    10,
    70,
)  # user units of the drawing; ROOM: space for text after the longest bar

COLOURS = 6  # number of colours in site.css


@dataclass(frozen=True, slots=True)
class Bar:
    """One value with its tooltip."""

    series: str
    value: float
    tooltip: str


@dataclass(frozen=True, slots=True)
class Chart:
    """Groups of bars side by side. `base`: value at which a line is drawn, for equal speed."""

    title: str
    unit: str
    groups: Sequence[tuple[str, Sequence[Bar]]]
    source: str  # file name in benchmarks/results
    about: str = ""
    base: float | None = 1.0

    @property
    def series(self) -> list[str]:
        return list(dict.fromkeys(bar.series for _, bars in self.groups for bar in bars))


def svg(chart: Chart) -> str:
    """Render the chart as an SVG element for a page. The colours are those of site.css."""
    longest = max((bar.value for _, bars in chart.groups for bar in bars), default=1.0) or 1.0
    scale = (WIDTH - LABEL - ROOM) / longest
    pieces, y = [], 4
    for label, bars in chart.groups:
        middle = y + len(bars) * (BAR + 2) / 2 + 4
        pieces.append(f'<text x="{LABEL - 8}" y="{middle:.0f}" text-anchor="end">{escape(label)}</text>')
        for bar in bars:
            number = chart.series.index(bar.series) % COLOURS
            width = max(1.0, bar.value * scale)
            tooltip = escape(f"{label}, {bar.series}: {bar.tooltip}")
            pieces.append(
                f'<g class="bar" tabindex="0" role="img" aria-label="{tooltip}"><title>{tooltip}</title>'
                f'<rect class="s{number}" x="{LABEL}" y="{y}" width="{width:.1f}" height="{BAR}" rx="2"/>'
                f'<text class="value" x="{LABEL + width + 6:.1f}" y="{y + 11}">{bar.value:.3g}</text></g>'
            )
            y += BAR + 2
        y += GAP
    if chart.base is not None and chart.base <= longest:
        x = LABEL + chart.base * scale
        pieces.insert(0, f'<line class="line" x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{y}"/>')
    name = escape(f"{chart.title}: {chart.unit}")
    # The role is group and not img, since each bar can be reached by keyboard.
    return f'<svg class="chart" viewBox="0 0 {WIDTH} {y}" role="group" aria-label="{name}">{"".join(pieces)}</svg>'


def table(chart: Chart) -> str:
    """Format the same figures as a Markdown table."""
    lines = [f"| {chart.unit} | {' | '.join(chart.series)} |", f"|---|{'--:|' * len(chart.series)}"]
    for label, bars in chart.groups:
        values = {bar.series: f"{bar.value:.3g}" for bar in bars}
        lines.append(f"| {label} | {' | '.join(values.get(name, '') for name in chart.series)} |")
    return "\n".join(lines)


def section(chart: Chart) -> str:
    """Format a chart with its legend, its table and its source."""
    keys = "".join(
        f'<span><i class="s{index % COLOURS}"></i>{escape(name)}</span>' for index, name in enumerate(chart.series)
    )
    about = f"{chart.about}\n\n" if chart.about else ""
    return (
        f"## {chart.title}\n\n{about}"
        f"{chart.unit[0].upper()}{chart.unit[1:]}, from `benchmarks/results/{chart.source}`.\n\n"
        f'<p class="keys">{keys}</p>\n\n{svg(chart)}\n\n'
        f'<details markdown="1"><summary>The figures</summary>\n\n{table(chart)}\n\n</details>\n'
    )


def charts() -> Iterator[Chart]:
    """Yield the charts of the committed results; missing files are skipped."""
    for pattern, make in MAKERS:
        for path in sorted(RESULTS.glob(pattern)):
            chart = make(json.loads(path.read_text(encoding="utf-8")), path.name)
            if chart.groups:
                yield chart


def markdown() -> str:
    """Format the page."""
    head = (
        "# Charts\n\nMade from the committed results of the benchmarks when this site was built. Point at a bar to\n"
        "see its figures. [Benchmarks](benchmarks.md) says what each one runs, and what the words mean.\n"
    )
    return "\n".join([head, *map(section, charts()), "## All committed results\n", *_listed()]) + "\n"


def _listed() -> Iterator[str]:
    yield "| file | command | machine | date |\n|---|---|---|---|"
    for path in sorted(RESULTS.glob("*.json")):
        data = json.loads(path.read_text(encoding="utf-8"))
        data = data if isinstance(data, dict) else {}
        command = str(data.get("command", "")).replace("|", "\\|")
        yield (f"| `{path.name}` | {f'`{command}`' if command else ''} | {_machine(data)} | {data.get('date', '')} |")


def _machine(report: dict[str, Any]) -> str:
    machine = report.get("machine", "")
    if isinstance(machine, dict):
        return ", ".join(
            filter(None, [str(machine.get("processor", "")), f"{machine['cpus']} cores" if "cpus" in machine else ""])
        )
    return str(machine)


NAMES = {"hf": "generate", "hf-prompt-lookup": "prompt lookup", "lookup": "prompt lookup", "plain": "plain copyspec"}


def _speed(report: dict[str, Any], name: str) -> Chart:
    groups = []
    for group in report["sets"]:
        bars = [
            Bar(
                NAMES.get(method["method"], method["method"]),
                method["tokens_per_second"],
                f"{method['tokens_per_second']:.0f} tokens a second, {method['mean_acceptance_length']:.1f} a pass",
            )
            for method in group["methods"]
        ]
        groups.append((f"{group['name']}{' (replay)' if group['replay'] else ''}", bars))
    title = f"Whole runs, bundled model, {report['dtype']}"
    return Chart(title, "tokens per second", groups, name, about=_where(report), base=None)


def _real(report: dict[str, Any], name: str) -> Chart:
    from benchmarks.real.report import figures, published

    suffix, time = published(report)
    groups = []
    for task in dict.fromkeys(run["task"] for run in report["runs"]):
        runs = [run for run in report["runs"] if run["task"] == task]
        others = [method for method in runs[0]["methods"] if method != "copyspec"]
        ratios = figures(runs, others)
        bars = [
            Bar(
                f"over {NAMES.get(other, other)}",
                ratios[f"over {other}{suffix}"],
                f"{ratios[f'over {other}{suffix}']:.2f}x, {ratios['tokens a pass']:.1f} tokens a pass",
            )
            for other in others
        ]
        groups.append((task.replace("_", " "), bars))
    where = " (AVX2)" if "avx2" in name else ""
    title = f"A real model's own outputs: {report['model']}, {report['dtype']}{where}"
    return Chart(title, f"speed-up, in {time}", groups, name, about=_where(report))


def _files(report: dict[str, Any], name: str) -> Chart:
    groups = []
    for kind, methods in report["inputs"].items():
        own = methods["copied"]["cpu_seconds"]
        bars = [
            Bar(
                f"over {NAMES.get(other, other)}",
                methods[other]["cpu_seconds"] / own,
                f"{methods[other]['cpu_seconds']:.2f} s beside {own:.2f} s of the processor, {methods['texts']} texts",
            )
            for other in ("plain", "hf")
            if other in methods
        ]
        groups.append((kind, bars))
    title = f"Files corrected by copyspec gec, {report['model']}, {report['dtype']}"
    return Chart(title, "speed-up, in CPU time", groups, name)


def _survey(report: dict[str, Any], name: str) -> Chart:
    from benchmarks.spec_bench import lines

    groups = [
        (
            line.method,
            [
                Bar(
                    "over its plain form",
                    line.faster["all"],
                    f"{line.faster['all']:.2f}x, {line.tokens_per_pass:.2f} tokens a pass",
                )
            ],
        )
        for line in lines(report)
    ]
    title = f"Methods of the literature: {report['model']}, {report['dtype']}"
    return Chart(title, "speed-up, in CPU time", groups, name)


def _vllm(report: dict[str, Any], name: str) -> Chart:
    groups = []
    for number, measured in enumerate(report.get("sets") or report["launches"], 1):
        bars = [
            Bar(
                method,
                run["speedup"],
                f"{run['speedup']:.2f}x, {run['equal']} of {measured['texts']} equal",
            )
            for method, run in measured["methods"].items()
        ]
        launch = f", launch {number}" if "launches" in report else ""
        groups.append((f"{measured['task']}, {measured['batch_size']} at once{launch}", bars))
    title = f"Inside vLLM{', little to copy' if 'little' in name else ''}"
    return Chart(title, "speed-up over vLLM without drafts", groups, name, about=_where(report))


def _prices(report: dict[str, Any], name: str) -> Chart:
    groups = []
    for measured in report["tables"]:
        if measured["threads"] != report["tables"][0]["threads"]:
            continue
        base = measured["prices"]["torch's linear layers"][0]["cpu_seconds"]
        for at, price in enumerate(measured["prices"]["as it is run"]):
            bars = [
                Bar(
                    kind.replace("as it is run", "copyspec"),
                    rows[at]["cpu_seconds"] / base,
                    f"{1000 * rows[at]['cpu_seconds']:.0f} ms, {rows[at]['cpu_seconds'] / base:.2f} of a pass of one",
                )
                for kind, rows in measured["prices"].items()
                if at < len(rows)
            ]
            groups.append((f"{measured['dtype']}, {price['tokens']} tokens", bars))
    make = " (AVX2)" if "avx2" in name else " (Xeon)" if "xeon" in name else ""
    return Chart(f"What a pass costs on a CPU{make}", "CPU time, relative to PyTorch's pass of one token", groups, name)


def _where(report: dict[str, Any]) -> str:
    versions = report.get("versions", {"torch": report.get("torch", "")})
    parts = [
        _machine(report),
        *(f"{name} {number}" for name, number in versions.items() if number and name != "copyspec"),
    ]
    return "; ".join(filter(None, parts)) + "."


MAKERS: tuple[tuple[str, Callable[[dict[str, Any], str], Chart]], ...] = (
    ("real-*.json", _real),
    ("spec-bench.json", _survey),
    ("speed-*.json", _speed),
    ("gec-files*.json", _files),
    ("vllm-speed*.json", _vllm),
    ("node-prices*.json", _prices),
)
