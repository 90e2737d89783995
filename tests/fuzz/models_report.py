"""Counts and writes the outcomes of `tests.fuzz.models`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from kit.reporting import write_json

FAILURES = ("executed", "asked", "outside", "raw", "hang", "memory", "crash")


@dataclass(frozen=True, slots=True)
class Ending:
    """Outcome of a case."""

    family: str
    kind: str
    entrance: str
    outcome: str
    said: str
    seconds: float


def keep(path: str, endings: Sequence[Ending], *, left: int) -> None:
    """Write the report so far, so that an interrupted run keeps its results."""

    def counted(by: str) -> dict[str, dict[str, int]]:
        rows = dict.fromkeys(getattr(each, by) for each in endings)
        return {row: dict(Counter(each.outcome for each in endings if getattr(each, by) == row)) for row in rows}

    report = {
        "cases": len(endings),
        "kinds": len({each.kind for each in endings}),
        "kinds_left": left,
        "outcomes": Counter(each.outcome for each in endings),
        "by_family": counted("family"),
        "by_entrance": counted("entrance"),
        "slowest_seconds": max(each.seconds for each in endings),
        "failed": [asdict(each) for each in endings if each.outcome in FAILURES],
    }
    write_json(path, report)


def table(endings: Sequence[Ending]) -> str:
    columns = ("worked", "refused", *FAILURES)
    rows = ["".join([f"{'entrance':<16}", *(f"{column:>10}" for column in columns)])]
    for row in dict.fromkeys([*(each.entrance for each in endings), *(each.family for each in endings), "all"]):
        counted = Counter(each.outcome for each in endings if row in (each.entrance, each.family, "all"))
        rows.append("".join([f"{row:<16}", *(f"{counted[column]:>10}" for column in columns)]))
    slowest = max(endings, key=lambda each: each.seconds, default=None)
    if slowest is not None:
        rows.append(f"slowest: {slowest.seconds:g} s, {slowest.entrance}, {slowest.kind}")
    return "\n".join(rows)
