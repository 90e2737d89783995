"""Applies recorded edits in five forms, and breaks right results in four ways, each of which must be refused.

python -m benchmarks.applying --rows 500 --half held-out --json benchmarks/results/applying.json

An oracle stands for the model: it answers with the right file, or with one that lacks a stretch of the old file, has
one twice, has a mark in place of one, or ends early. The held-out half was looked at only for the figures.
"""

from __future__ import annotations

import argparse
import random
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import Any

from benchmarks.applying.rows import COMMENTS, FORMS, MARKS, Row, committed, edit, recorded
from copyspec.pipelines import Applied, ApplyOptions, ApplyPipeline
from kit import places
from kit.oracle_model import OracleModel
from kit.reporting import command_line, conditions, quantile, write_json

EXACT = ("blocks", "diff", "patch", "whole")
FAULTS = ("dropped", "doubled", "placeholder", "truncated")


@dataclass
class Outcomes:
    """How often each outcome came, by form or fault, and what was not right."""

    counts: dict[str, Counter[str]] = field(default_factory=dict)
    wrong: list[tuple[str, str, str]] = field(default_factory=list)  # row, form or fault, detail

    def note(self, row: Row, name: str, outcome: str, detail: str = "") -> None:
        self.counts.setdefault(name, Counter())[outcome] += 1
        if outcome in ("wrong", "used") or outcome.startswith("refused: "):
            self.wrong.append((row.id, name, f"{outcome} {detail}"))

    def note_applied(self, row: Row, name: str, made: Applied, right: str) -> None:
        if made.refusal is not None:
            self.note(row, name, f"refused: {made.refusal.reason}", made.refusal.detail)
        elif made.text != right:
            self.note(row, name, "wrong")
        else:
            self.note(row, name, "right without a model" if made.is_exact else "right")

    def lines(self) -> list[str]:
        made = []
        for name, counts in self.counts.items():
            total = counts.total()
            shares = ", ".join(f"{outcome} {n / total:.4f}" for outcome, n in sorted(counts.items()))
            made.append(f"{name:20} {total:5}  {shares}")
        return made


def measured(rows: Sequence[Row], seed: int = 0) -> Outcomes:
    """Apply the edits of all rows in all forms, and results with faults."""
    outcomes = Outcomes()
    for row in rows:
        draw = random.Random(f"{seed} {row.id}")
        how = draw.choice(["\n", "\n", "\r\n"]), draw.choice(["", "", "\ufeff"]), draw.choice(["\n", "\n", ""])
        before, after = dressed(row.before, how), dressed(row.after, how)
        for form in FORMS:
            if form == "lazy" and written(row.before) == written(row.after):
                continue  # a snippet cannot show that
            change = edit(row, form, draw)
            oracle: Any = OracleModel(*[dressed(row.after, ("\n", "", ""))] * 2)
            options = ApplyOptions(form="whole" if form == "whole" else "auto")
            pipeline = ApplyPipeline(None if form in EXACT else oracle, options)
            told = row.instruction if form == "instruction" else ""
            outcomes.note_applied(row, form, pipeline(before, change, told, path=row.path), after)
            if form in ("blocks", "lazy"):
                made = ApplyPipeline(oracle)(before, change, path=row.path, exact=False)
                outcomes.note_applied(row, f"{form}, merged", made, after)
        lazy = edit(row, "lazy", draw)
        for fault in FAULTS:
            output = broken(row, fault, draw)
            if output is not None and output.strip() != row.after.strip():
                oracle = OracleModel(output)
                made = ApplyPipeline(oracle)(before, lazy, path=row.path, exact=False)
                outcomes.note(row, f"fault: {fault}", "used" if made.refusal is None else "refused")
    return outcomes


def dressed(text: str, how: tuple[str, str, str]) -> str:
    """A file with other line ends, a mark before it, and a newline at its end or none."""
    newline, mark, last = how
    return mark + (text.rstrip("\n") + last).replace("\n", newline)


def written(text: str) -> list[str]:
    return [line for line in text.split("\n") if line.strip()]


def broken(row: Row, fault: str, draw: random.Random) -> str | None:
    """A right result with a fault; None if the row has no place for it."""
    lines, before = row.after.rstrip("\n").split("\n"), row.before.split("\n")
    known = {line.strip() for line in before if any(map(str.isalnum, line))}
    if fault == "truncated":
        places = [at for at, line in enumerate(lines) if line.strip()][1:]
        at = draw.choice(places) if places else 0
        is_lost = at > 0 and any(map(str.isalnum, "".join(lines[at:])))
        return "\n".join(lines[:at]) + "\n" if is_lost else None
    least = 1 if fault == "dropped" else 2
    for _ in range(50):
        start = draw.randrange(len(lines))
        part = lines[start : start + draw.randint(least, 12)]
        worded = [line for line in part if any(map(str.isalnum, line))]
        if len(worded) < least or not all(line.strip() in known for line in worded):
            continue
        rest = lines[start + len(part) :]
        mark = COMMENTS.get(Path(row.path).suffix, "# {}").format(draw.choice(MARKS))
        into = {"dropped": [], "doubled": [*part, *part], "placeholder": [mark]}[fault]
        if [*lines[:start], *into, *rest] != before:  # else the edit is undone, not a part of the file lost
            return "\n".join([*lines[:start], *into, *rest]) + "\n"
    return None


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    places.add_data(parser, "transcripts/")
    parser.add_argument("--repository", type=Path, default=Path(), help="whose commits are taken, too")
    parser.add_argument("--rows", type=int, default=500)
    parser.add_argument("--half", choices=("all", "held-out", "other"), default="all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    halves = {"all": (True, False), "held-out": (True,), "other": (False,)}[options.half]
    edits = chain(recorded(options.data), committed(options.repository, options.seed))
    rows = list(islice((row for row in edits if row.is_held_out in halves), options.rows))
    started = time.perf_counter()
    outcomes = measured(rows, options.seed)
    seconds = (time.perf_counter() - started) / max(1, len(rows))
    sizes = sorted(len(row.before) for row in rows)
    print(f"{len(rows)} edits of files of {sizes[0]} to {sizes[-1]} characters, median {quantile(sizes, 0.5):.0f}")
    print("\n".join([*outcomes.lines(), f"{1000 * seconds:.0f} ms for each, in all forms and with all faults"]))
    for row in outcomes.wrong:
        print(*row, sep=" | ")
    if options.json is not None:
        made_by = {"command": command_line("benchmarks.applying", arguments), **conditions()}
        counts = {name: dict(counts) for name, counts in outcomes.counts.items()}
        write_json(options.json, {**made_by, "edits": len(rows), "counts": counts, "wrong": outcomes.wrong})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
