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
        rows = dict.fromkeys(getattr(ending, by) for ending in endings)
        return {row: dict(Counter(ending.outcome for ending in endings if getattr(ending, by) == row)) for row in rows}

    report = {
        "cases": len(endings),
        "kinds": len({ending.kind for ending in endings}),
        "kinds_left": left,
        "outcomes": Counter(ending.outcome for ending in endings),
        "by_family": counted("family"),
        "by_entrance": counted("entrance"),
        "slowest_seconds": max(ending.seconds for ending in endings),
        "failed": [asdict(ending) for ending in endings if ending.outcome in FAILURES],
    }
    write_json(path, report)


def table(endings: Sequence[Ending]) -> str:
    columns = ("worked", "refused", *FAILURES)
    rows = ["".join([f"{'entrance':<16}", *(f"{column:>10}" for column in columns)])]
    for row in dict.fromkeys([*(ending.entrance for ending in endings), *(ending.family for ending in endings), "all"]):
        counted = Counter(ending.outcome for ending in endings if row in (ending.entrance, ending.family, "all"))
        rows.append("".join([f"{row:<16}", *(f"{counted[column]:>10}" for column in columns)]))
    slowest = max(endings, key=lambda ending: ending.seconds, default=None)
    if slowest is not None:
        rows.append(f"slowest: {slowest.seconds:g} s, {slowest.entrance}, {slowest.kind}")
    return "\n".join(rows)
