"""Makes the files of recorded outputs from checkouts of their origins, and checks that they hold the measured rows."""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.data.origins import Checkouts, Unreachable
from benchmarks.data.readers import Row, json_lines
from benchmarks.data.sets import SETS, RecordedSet

ROWS = Path(__file__).parent / "rows.json"
"""Which rows of each origin were measured, and a hash of their content. The others are kept for evaluation, repeat
themselves, or are refusals and errors."""


BY_ARTICLE = "tiiiger_news"
"""A set whose summaries by a model and by a person alternate, at the place of the first in its file."""


class Different(Exception):
    """The rows made are not those that were measured."""


@dataclass(frozen=True, slots=True)
class Measured:
    """The rows of a set that figures were measured on."""

    runs: str  # of consecutive rows: "index:number+count", the index in the origin and the number of the id
    groups: str  # names, in the order in which the groups occur
    sha256: str

    @classmethod
    def read(cls) -> dict[str, Measured]:
        return {key: cls(**fields) for key, fields in json.loads(ROWS.read_text("utf-8")).items()}

    def numbers(self) -> dict[int, int]:
        """Return the number in the id by the index in the origin."""
        by_index = dict[int, int]()
        for run in self.runs.split():
            (index, number), count = map(int, run.split("+")[0].split(":")), int(run.split("+")[1])
            by_index |= {index + n: number + n for n in range(count)}
        return by_index


def digest(rows: Iterable[Row]) -> str:
    """Return a hash of what the figures depend on: ids, tasks, prompts, references, outputs, groups."""
    content = [[row[name] for name in ("id", "task", "prompt", "references", "output", "group")] for row in rows]
    return hashlib.sha256(json.dumps(content, ensure_ascii=True).encode("ascii")).hexdigest()


def made_rows(one: RecordedSet, checkouts: Checkouts, measured: Measured) -> list[Row]:
    """Return the measured rows of a set. Raises Unreachable, or Different if they are others."""
    folders = [checkouts.files(origin, paths) for origin, paths in one.needs]
    source = " + ".join(f"{origin}:{paths[0]}" for origin, paths in one.needs)
    everything, numbers = one.rows(folders), measured.numbers()
    if max(numbers) >= len(everything):
        raise Different(f"the origin has {len(everything)} rows, too few")
    groups = dict(zip(dict.fromkeys(everything[n]["group"] for n in numbers), measured.groups.split(), strict=True))
    rows = []
    for index, number in numbers.items():
        row = everything[index]
        rows.append({"id": f"{one.key}-{number:05d}", "source": source, **row, "group": groups[row["group"]]})
    if digest(rows) != measured.sha256:
        raise Different("its rows are not those that were measured")
    return rows


def write_rows(path: Path, rows: Iterable[Row]) -> None:
    """Write rows as `.jsonl.gz`, at once: an interrupted run leaves no half a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(row, ensure_ascii=True) + "\n" for row in rows)
    part = path.with_name(f"{path.name}.part")
    part.write_bytes(gzip.compress(text.encode("ascii"), mtime=0))
    part.replace(path)


def files() -> dict[str, list[RecordedSet]]:
    """Return the sets of each file of transcripts."""
    by_file: dict[str, list[RecordedSet]] = {}
    for one in SETS:
        for task in (one.task,) if one.task else ("math", "multiturn_edit"):
            by_file.setdefault(f"transcripts/{task}.jsonl.gz", []).append(one)
    return by_file


def held(folder: Path, measured: Mapping[str, Measured]) -> set[str]:
    """Return the keys of the sets whose measured rows are in `folder` already."""
    rows: dict[str, list[Row]] = {}
    for name in sorted(files()):
        if (folder / name).is_file():
            for row in json_lines(folder / name):
                rows.setdefault(row["id"].rsplit("-", 1)[0], []).append(row)
    return {
        key for key, set_rows in rows.items() if key in measured and digest(_ordered(set_rows)) == measured[key].sha256
    }


def _ordered(rows: Sequence[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: str(row["id"]))


def make(folder: Path, checkouts: Checkouts, measured: Mapping[str, Measured]) -> dict[str, str]:
    """Make the files that are not there; return why sets could not be made, by their keys."""
    there, failed = held(folder, measured), dict[str, str]()
    made: dict[str, list[Row]] = {}
    for one in SETS:
        if one.key not in there:
            try:
                made[one.key] = made_rows(one, checkouts, measured[one.key])
            except (Unreachable, Different, KeyError, ValueError, OSError) as error:
                failed[one.key] = f"{error}"
    for name, sets in files().items():
        if not any(one.key in made for one in sets):
            continue
        task = Path(name).name.removesuffix(".jsonl.gz")
        before = json_lines(folder / name) if (folder / name).is_file() else []
        rows = []
        for one in sets:
            unchanged = [row for row in before if row["id"].rsplit("-", 1)[0] == one.key and one.key in there]
            rows += [row for row in made.get(one.key, unchanged) if row["task"] == task]
        rows.sort(key=lambda row: row["id"][-5:] if row["id"].startswith(BY_ARTICLE) else "")
        write_rows(folder / name, rows)
    return failed
