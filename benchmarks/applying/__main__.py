"""Applies recorded edits in five forms, and breaks right results in four ways, each of which must be refused.

python -m benchmarks.applying --data ../shared/data [--repository .] [--rows 500] [--half held-out]

An oracle stands for the model: it answers with the right file, or with one that lacks a stretch of the file, has one
twice, has a mark in place of one, or ends early. No rule was changed after a look at the held-out half.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections import Counter
from collections.abc import Sequence
from itertools import chain, islice
from pathlib import Path

from benchmarks.applying.rows import COMMENTS, FORMS, MARKS, Row, committed, edit, recorded
from copyspec.pipelines import ApplyOptions, ApplyPipeline
from kit.oracle_model import OracleModel

EXACT = ("blocks", "diff", "patch", "whole")
ENDS = {"LF": "\n", "CRLF": "\r\n"}


def variant(text: str, draw: random.Random) -> tuple[str, str, str]:
    """The end of lines, the mark before a file and the newline at its end that a row gets."""
    return draw.choice(["\n", "\n", "\r\n"]), draw.choice(["", "", "\ufeff"]), draw.choice(["\n", "\n", ""])


def dressed(text: str, how: tuple[str, str, str]) -> str:
    newline, mark, last = how
    return mark + (text.rstrip("\n") + last).replace("\n", newline)


def written(text: str) -> list[str]:
    return [line for line in text.split("\n") if line.strip()]


def broken(row: Row, kind: str, draw: random.Random) -> str | None:
    """A right result with a fault; None if the row has no place for it."""
    lines, before = row.after.rstrip("\n").split("\n"), row.before.split("\n")
    known = {line.strip() for line in before if any(map(str.isalnum, line))}
    written = [at for at, line in enumerate(lines) if line.strip()]
    if kind == "truncated":
        at = draw.choice(written[1:]) if len(written) > 1 else 0
        return "\n".join(lines[:at]) + "\n" if at and any(any(map(str.isalnum, each)) for each in lines[at:]) else None
    for _ in range(50):
        start = draw.randrange(len(lines))
        part = lines[start : start + draw.randint(1 if kind == "dropped" else 2, 12)]
        worded = [line for line in part if any(map(str.isalnum, line))]
        if len(worded) < (1 if kind == "dropped" else 2) or not all(line.strip() in known for line in worded):
            continue
        end = start + len(part)
        if kind == "dropped" and lines[:start] + lines[end:] != before:  # else the edit is undone, not a part lost
            return "\n".join([*lines[:start], *lines[end:]]) + "\n"
        if kind == "doubled":
            return "\n".join([*lines[:end], *part, *lines[end:]]) + "\n"
        if kind == "placeholder":
            mark = COMMENTS.get(Path(row.path).suffix, "# {}").format(draw.choice(MARKS))
            return "\n".join([*lines[:start], mark, *lines[end:]]) + "\n"
    return None


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--repository", type=Path, default=Path())
    parser.add_argument("--rows", type=int, default=500)
    parser.add_argument("--half", choices=("all", "held-out", "other"), default="all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--failures", type=Path, help="write what went wrong here, as JSON lines")
    options = parser.parse_args(arguments)
    halves = {"all": (True, False), "held-out": (True,), "other": (False,)}[options.half]
    programs = list(recorded(options.data))
    commits = committed(options.repository, options.seed)
    rows = list(islice((row for row in chain(programs, commits) if row.is_held_out in halves), options.rows))
    counts, failures = measured(rows, options.seed)
    for failure in failures if options.failures else ():
        with options.failures.open("a", encoding="utf-8") as file:
            file.write(json.dumps(failure) + "\n")
    sizes = sorted(len(row.before) for row in rows)
    print(f"{len(rows)} edits; files of {sizes[0]} to {sizes[-1]} characters, median {sizes[len(sizes) // 2]}")
    for name in sorted({name for name, _ in counts}):
        parts = {outcome: counts[name, outcome] for _, outcome in sorted(counts) if (name, outcome) in counts}
        total = sum(parts.values())
        print(f"{name:22} {total:5}  " + ", ".join(f"{outcome} {n} ({n / total:.4f})" for outcome, n in parts.items()))
    return 0


def measured(rows: Sequence[Row], seed: int) -> tuple[Counter[tuple[str, str]], list[dict[str, str]]]:
    """How often each outcome came, by form or fault, and what went wrong."""
    counts, failures = Counter[tuple[str, str]](), list[dict[str, str]]()

    def note(row: Row, name: str, outcome: str, is_wrong: bool, detail: str, given: str = "") -> None:
        counts[name, outcome] += 1
        if is_wrong:
            failures.append({"id": row.id, "name": name, "outcome": outcome, "detail": detail, "edit": given})

    started = time.perf_counter()
    for row in rows:
        draw = random.Random(f"{seed} {row.id}")
        how = variant(row.before, draw)
        before, after = dressed(row.before, how), dressed(row.after, how)
        is_blank = written(row.before) == written(row.after)  # a snippet cannot show that
        for form in [form for form in FORMS if form != "lazy" or not is_blank]:
            given = edit(row, form, draw)
            oracle = OracleModel(dressed(row.after, ("\n", "", "")))
            read = "whole" if form == "whole" else "auto"
            pipeline = ApplyPipeline(oracle if form not in EXACT else None, ApplyOptions(form=read))
            made = pipeline(before, given, row.instruction if form == "instruction" else "", path=row.path)
            outcome = made.refusal.reason if made.refusal else "right" if made.text == after else "wrong"
            if outcome == "right" and form == "lazy":
                outcome = "right, exactly" if made.is_exact else "right, by the model"
            detail = made.refusal.detail if made.refusal else ""
            note(row, form, outcome, not outcome.startswith("right"), detail, given)
            if form in ("blocks", "lazy"):
                oracle.will = [dressed(row.after, ("\n", "", ""))]
                made = ApplyPipeline(oracle)(before, given, path=row.path, exact=False)
                outcome = (
                    f"refused: {made.refusal.reason}" if made.refusal else "right" if made.text == after else "wrong"
                )
                note(
                    row,
                    f"{form}, merged",
                    outcome,
                    outcome != "right",
                    made.refusal.detail if made.refusal else "",
                    given,
                )
        given = edit(row, "lazy", draw)
        for kind in ("dropped", "doubled", "placeholder", "truncated"):
            if (output := broken(row, kind, draw)) is None or output.strip() == row.after.strip():
                continue
            made = ApplyPipeline(OracleModel(output))(before, given, path=row.path, exact=False)
            note(row, f"fault: {kind}", "refused" if made.refusal else "used", made.refusal is None, output, given)
    counts["seconds per 100 edits", str(round(100 * (time.perf_counter() - started) / max(1, len(rows)), 1))] = 1
    return counts, failures


if __name__ == "__main__":
    raise SystemExit(main())
