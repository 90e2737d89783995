"""Formats the results of `benchmarks.real` as a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kit.reporting import ratio

OWN = "copyspec"


def table(report: Mapping[str, Any]) -> str:
    """Format totals per task as Markdown: the time of each method divided by copyspec's, with CPU time in brackets."""
    runs = report["runs"]
    others = [name for name in runs[0]["methods"] if name != OWN] if runs else []
    title = f"{report['model']}, {report['dtype']}, threads {report['threads']}, batch {report['batch']}"
    head = ["task", "prompts", "tokens a pass", *(f"over {name}" for name in others), "in passes", "drafting", "equal"]
    lines = [title, "", f"| {' | '.join(head)} |", f"|---|{'--:|' * (len(head) - 1)}"]
    tasks = list(dict.fromkeys(run["task"] for run in runs))
    for task in tasks:
        lines.append(_row(task, [run for run in runs if run["task"] == task], others))
    if len(tasks) > 1:
        lines.append(_row("all", runs, others))
    return "\n".join(lines) + "\n"


def published(report: Mapping[str, Any]) -> tuple[str, str]:
    """Return the suffix of the ratios in `figures` that README and charts show, and its name.

    CPU time of one thread hardly depends on other work of the machine. That of several threads includes the time in
    which they wait for each other, so wall time is shown.
    """
    return (", processor", "CPU time") if report["threads"] == 1 else ("", "wall time")


def figures(runs: Sequence[Mapping[str, Any]], others: Sequence[str]) -> dict[str, float]:
    """Summarise `runs`: `over NAME` and `over NAME, processor` for each other method, and the table's other columns."""
    own = [run["methods"][OWN] for run in runs]
    seconds, cpu = sum(run["seconds"] for run in own), sum(run["cpu_seconds"] for run in own)
    values = {
        "tokens a pass": ratio(sum(run["tokens"] for run in own), sum(run["passes"] for run in own)),
        "in passes": ratio(sum(run["parts"]["passes"] for run in own), seconds),
        "drafting": ratio(sum(run["parts"]["drafting"] for run in own), seconds),
    }
    for name in others:
        theirs = [run["methods"][name] for run in runs]
        values[f"over {name}"] = ratio(sum(run["seconds"] for run in theirs), seconds)
        values[f"over {name}, processor"] = ratio(sum(run["cpu_seconds"] for run in theirs), cpu)
    return values


def equal(runs: Sequence[Mapping[str, Any]]) -> str:
    """Count copyspec's outputs that were equal in all repeats.

    In older reports, `parted` is that of the first repeat: if it is None in an entry that is not equal, a later one
    differed, and all outputs of the entry count as different."""
    outputs: list[bool] = []
    for method in (run["methods"][OWN] for run in runs):
        known = method["equal"] or any(at is not None for at in method["parted"])
        outputs += [known and at is None for at in method["parted"]]
    return f"{sum(outputs)} of {len(outputs)}"


def _row(name: str, runs: Sequence[Mapping[str, Any]], others: Sequence[str]) -> str:
    values = figures(runs, others)
    cells = [name, str(sum(len(run["ids"]) for run in runs)), f"{values['tokens a pass']:.2f}"]
    cells += [f"{values[f'over {other}']:.2f}x ({values[f'over {other}, processor']:.2f}x)" for other in others]
    cells += [f"{values['in passes']:.0%}", f"{values['drafting']:.0%}", equal(runs)]
    return f"| {' | '.join(cells)} |"
