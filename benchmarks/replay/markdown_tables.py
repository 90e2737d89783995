"""Reads the stored figures of the documented replay, and formats the tables of docs/replay.md."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks.replay.figures import Figures, Grid, by_limit
from benchmarks.replay.quoted import PEERS, quoted

ROOT = Path(__file__).parent.parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "replay-llama3.json"
SAMPLE = ROOT / "benchmarks" / "results" / "sample.json"
OWN = "copyspec"
COPIES = "copies"  # copyspec without n-grams, compared at equal node limits only
LEFT_OUT = "prompt-lookup"  # omitted if Hugging Face's own class is in the table


@dataclass(frozen=True, slots=True)
class Report:
    """Contents of the JSON file."""

    command: str
    date: str
    machine: dict[str, str | int]
    versions: dict[str, str]
    rows: int  # maximum per set
    figures: list[Figures]  # all methods at NODES[0]; copyspec also at the others
    mean_figures: list[Figures]  # copyspec with MEAN_NODES on average
    few_rows: int
    few_figures: list[Figures]  # copyspec on fewer rows: at NODES[0], and with MEAN_NODES on average
    peer_figures: list[Figures]  # peers' own code on the rows of `figures`, at NODES[0]; may be empty


def read(file: Path = RESULTS) -> Report | None:
    """Read the stored figures; None if there are none."""
    if not file.is_file():
        return None
    content = json.loads(file.read_text(encoding="utf-8"))
    for name in ("figures", "mean_figures", "few_figures", "peer_figures"):
        content[name] = [Figures(**line) for line in content[name]]
    return Report(**content)


def read_sample() -> dict[str, float]:
    """Return tokens per call on the sample of the repository, by task, set, model and method (benchmarks.figures)."""
    figures: dict[str, float] = json.loads(SAMPLE.read_text("utf-8"))["replay"]
    return figures


def task_table(report: Report) -> str:
    """Format the ratios to prompt lookup, as medians over the sets of each task."""
    grids = _grids(report.figures)
    first = grids[0]
    others = [name for name in first.methods if name not in (OWN, *_prompt_lookups(first))]
    sizes = sorted(grids, key=_most)
    head = ["task", *(_title(name) for name in others), *(f"copyspec, {_most(grid)} nodes" for grid in sizes)]
    head.append(f"sample, {_most(first)} nodes")
    sample, rows = read_sample(), []
    for task in first.tasks:
        cells = [first.ratio(task, name) for name in others] + [grid.ratio(task, OWN, first) for grid in sizes]
        ratios = [
            value / sample[name.replace(f", {OWN},", f", {_prompt_lookups(first)[0]},")]
            for name, value in sample.items()
            if name.startswith(f"{task} ") and f", {OWN}," in name
        ]
        rows.append([task, *(_times(cell) for cell in [*cells, median(ratios) if ratios else None])])
    return _table(head, rows)


def set_table(report: Report) -> str:
    """Format tokens per call on every set, and list where another method is ahead."""
    grids = _grids(report.figures)
    first = grids[0]
    names = [name for name in first.methods if name not in (OWN, LEFT_OUT)]
    sizes = sorted(grids, key=_most)
    head = ["set", "rows", *(_title(name) for name in names), *(f"copyspec, {_most(grid)}" for grid in sizes)]
    head.append(f"sample, {_most(first)}")
    sample, rows = read_sample(), []
    for task, keys in first.tasks.items():
        rows.append([f"**{task}**"])
        for key in keys:
            cells = [first.cell(key, name).tokens_per_call for name in names]
            cells += [grid.cell(key, OWN).tokens_per_call for grid in sizes]
            _, name, model = key
            of_sample = sample.get(f"{task} {name} {model.split(' (')[0]}, {OWN}, {_most(first)} nodes")
            last = "" if of_sample is None else f"{of_sample:.2f}"
            rows.append([first.label(key), str(first.rows(key)), *(f"{cell:.2f}" for cell in cells), last])
    lines = [
        f"{report.rows} rows of each set, or all if it has fewer. Published rules run with at most {_most(first)} "
        "nodes per call, copyspec with the number in the column head.",
        "",
        _table(head, rows),
        "",
        _medians(first, [*names, OWN]),
        "",
        *(_behind(grid, first) for grid in sizes),
    ]
    return "\n".join(lines).rstrip()


def peer_table(report: Report) -> str:
    """Format the quoted figures of the peers' own code beside copyspec's, and list where copyspec is behind."""
    columns = {
        f"{_most(few)} nodes, {report.few_rows} rows": few for few in _grids(report.few_figures) if not _mean(few)
    }
    columns |= {f"mean {_mean(few):g}, {report.few_rows} rows": few for few in _grids(report.few_figures) if _mean(few)}
    many, mean = _grids(report.figures)[0], _grids(report.mean_figures)[0]
    columns |= {f"{_most(many)} nodes, {report.rows} rows": many, f"mean {_mean(mean):g}, {report.rows} rows": mean}
    rows, behind = [], []
    for task, keys in many.tasks.items():
        peers = {key: quoted(key) for key in keys}
        if not any(peers.values()):
            continue
        rows.append([f"**{task}**"])
        for key in keys:
            best, arctic = max(peers[key].values()), peers[key][PEERS[0]]
            own = {name: grid.cell(key, OWN).tokens_per_call for name, grid in columns.items()}
            cells = [*(f"{peers[key][peer]:.2f}" for peer in PEERS), *(f"{value:.2f}" for value in own.values())]
            rows.append([many.label(key), *cells])
            for name, value in own.items():
                bar = arctic if name.startswith("mean") else best
                if value < bar and name.endswith(f"{report.rows} rows"):
                    behind.append(f"{task}, {many.label(key)}: {value:.2f} against {bar:.2f} ({name})")
    said = (
        f"Sets where copyspec on {report.rows} rows is behind the better of the two, or with a mean of "
        f"{_mean(mean):g} nodes behind {PEERS[0]}:"
    )
    head = ["set", *(f"{peer}, 20 rows" for peer in PEERS), *(f"copyspec, {name}" for name in columns)]
    return "\n".join([_table(head, rows), "", *_listed(said, behind)]).rstrip()


def same_rows_table(report: Report) -> str:
    """Format figures of the peers' own code on the same rows, if measured, and list where it is ahead."""
    if not report.peer_figures:
        return ""
    most, mean = _grids(report.figures)[0], _grids(report.mean_figures)[0]
    limits = {_mean(own): own for own in (most, mean)}
    peers = {_mean(grid): grid for grid in _grids(report.peer_figures) if _mean(grid) in limits}
    columns = [(name, limit) for limit, grid in peers.items() for name in grid.methods if name not in most.methods]
    rows, behind = [], []
    for task, keys in most.tasks.items():
        rows.append([f"**{task}**"])
        for key in keys:
            theirs = [(name, limit, peers[limit].cell(key, name)) for name, limit in columns]
            cells = [line for _, _, line in theirs] + [own.cell(key, OWN) for own in limits.values()]
            rows.append([most.label(key), *(f"{one.tokens_per_call:.2f} [{one.nodes_per_call:.1f}]" for one in cells)])
            for name, limit, line in theirs:
                own = limits[limit].cell(key, OWN).tokens_per_call
                if line.tokens_per_call > own:
                    said = f"{own:.2f} against {line.tokens_per_call:.2f} of {_title(name)}"
                    behind.append(f"{task}, {most.label(key)}: {said} ({limits[limit].any.limit})")
    names = [(_title(name), limit) for name, limit in [*columns, *((OWN, limit) for limit in limits)]]
    head = ["set", *(f"{name}, {_words(limit, most)}" for name, limit in names)]
    said = f"Tokens per call on the same {report.rows} rows of each set; nodes per call in brackets."
    return "\n".join(
        [said, "", _table(head, rows), "", *_listed("Sets where copyspec is behind at the same limit:", behind)]
    ).rstrip()


def _words(limit: float, grid: Grid) -> str:
    return f"mean {limit:g}" if limit else f"{_most(grid)} nodes"


def provenance(report: Report) -> str:
    """Describe how and where the figures were measured."""
    where, versions = report.machine, report.versions
    return (
        f"`{report.command}`, {report.date}; {where['processor']}, {where['cpus']} cores; copyspec "
        f"{versions['copyspec']}, transformers {versions['transformers']}, Python {versions['python']}."
    )


PARTS = (
    ("tasks", task_table),
    ("sets", set_table),
    ("peers", peer_table),
    ("same-rows", same_rows_table),
    ("provenance", provenance),
)


def _grids(figures: Iterable[Figures]) -> list[Grid]:
    return [Grid(lines) for lines in by_limit(figures).values()]


def _most(grid: Grid) -> int:
    return grid.any.nodes


def _mean(grid: Grid) -> float:
    """Mean nodes per call of the grid's limit; 0.0 without such a limit."""
    return grid.any.mean_nodes or 0.0


def _prompt_lookups(grid: Grid) -> list[str]:
    return [name for name in grid.methods if name.endswith("prompt-lookup")]


def _title(method: str) -> str:
    return {
        "hf-prompt-lookup": "prompt lookup", "longest-suffix": "longest suffix", "sad": "SAD", "llma": "LLMA",
        "arctic": "Arctic", COPIES: "copies alone", "sglang": "SGLang",
    }.get(method, method)  # fmt: skip


def _times(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}x"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(head)} |", f"|---|{'--:|' * (len(head) - 1)}"]
    lines += [f"| {' | '.join([*row, *[''] * (len(head) - len(row))])} |" for row in rows]
    return "\n".join(lines)


def _medians(grid: Grid, methods: Sequence[str]) -> str:
    nodes = ", ".join(f"{_title(name)} {grid.median(name, 'nodes_per_call'):.1f}" for name in methods)
    times = ", ".join(f"{_title(name)} {grid.median(name, 'draft_us_p50'):.0f}" for name in methods)
    by_task = ", ".join(
        f"{task} {median(grid.cell(key, OWN).draft_us_p50 for key in keys):.0f}" for task, keys in grid.tasks.items()
    )
    return (
        f"Nodes per call with at most {_most(grid)}, median over the sets: {nodes}. Microseconds per draft of these "
        f"implementations on one machine, median over the sets: {times}. copyspec by task: {by_task}."
    )


def _behind(grid: Grid, first: Grid) -> str:
    """List the sets where another method, at the node limit of `first`, is ahead of copyspec at that of `grid`."""
    lines = []
    for task, keys in grid.tasks.items():
        for key in keys:
            own = grid.cell(key, OWN).tokens_per_call
            for name in first.methods:
                other = first.cell(key, name).tokens_per_call
                if other > own and name not in (OWN, LEFT_OUT) and (name != COPIES or grid is first):
                    lines.append(f"{task}, {grid.label(key)}: {own:.2f} against {other:.2f} of {_title(name)}")
    said = f"Sets where copyspec with {_most(grid)} nodes is behind one of these methods:"
    return "\n".join(_listed(said, lines))


def _listed(said: str, lines: Sequence[str]) -> list[str]:
    return [said, "", *(f"- {line}" for line in lines), ""] if lines else [f"{said} none.", ""]
