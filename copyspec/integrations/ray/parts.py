"""Parts: ranges of rows of the input files; each part becomes one output file, or none."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from copyspec.checks import shown
from copyspec.models.model_cache import hash_into

SUFFIXES = (".parquet", ".jsonl", ".ndjson", ".txt")

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class RowPart:
    """A range of rows of one file."""

    file: str
    number: int  # of the part, counted over all files
    first: int  # index of the first row in the file
    count: int
    start: int = 0  # byte offset in the file; unused for Parquet
    end: int = 0

    @property
    def name(self) -> str:
        return f"{self.number:06d}-{Path(self.file).stem}"

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def read(self) -> tuple[list[Row], list[Row]]:
        """The part's rows, and the unreadable ones as records with the reason."""
        if self.file.endswith(".parquet"):
            return _parquet_rows(self), []
        with open(self.file, "rb") as file:
            file.seek(self.start)
            lines = file.read(self.end - self.start).splitlines()
        rows: list[Row] = []
        broken: list[Row] = []
        for number, line in enumerate(lines, self.first):
            try:
                rows.append(_row(self.file, line))
            except (ValueError, RecursionError) as error:  # the latter for a thousand opening brackets
                text = line.decode("utf-8", "replace")
                broken.append({"file": self.file, "row": number, "line": text, "error": f"no row: {error}"})
        return rows, broken


def find_files(source: str | os.PathLike[str]) -> list[str]:
    """The input files in a folder, or the file itself. Raises ValueError if there are none."""
    path = Path(source)
    files = sorted(each for each in path.rglob("*") if each.is_file()) if path.is_dir() else [path]
    found = [str(each) for each in files if each.suffix in SUFFIXES and each.is_file()]
    if not found:
        raise ValueError(f"{os.fspath(source)!r} has no file that ends with {', '.join(SUFFIXES)}")
    return found


def file_digest(file: str) -> str:
    """A hash of the file's bytes: its size and times do not tell whether it was rewritten."""
    digest = hashlib.blake2b(digest_size=16)
    with open(file, "rb") as opened:
        hash_into(digest, opened)
    return digest.hexdigest()


def split(files: list[str], rows: int) -> Iterator[RowPart]:
    """Yield parts of `rows` rows in the order of the files; deterministic for the same files."""
    number = 0
    for file in files:
        for part in _split_parquet(file, rows) if file.endswith(".parquet") else _split_lines(file, rows):
            yield RowPart(file, number, *part)
            number += 1


def _split_lines(file: str, rows: int) -> Iterator[tuple[int, int, int, int]]:
    first = count = start = at = 0
    with open(file, "rb") as lines:
        for line in lines:
            at += len(line)
            count += 1
            if count == rows:
                yield first, count, start, at
                first, count, start = first + count, 0, at
    if count:
        yield first, count, start, at


def _split_parquet(file: str, rows: int) -> Iterator[tuple[int, int, int, int]]:
    import pyarrow.parquet

    total = pyarrow.parquet.read_metadata(file).num_rows
    for first in range(0, total, rows):
        yield first, min(rows, total - first), 0, 0


def _parquet_rows(part: RowPart) -> list[Row]:
    import pyarrow.parquet

    file = pyarrow.parquet.ParquetFile(part.file)
    starts = [0]
    for group in range(file.num_row_groups):
        starts.append(starts[-1] + file.metadata.row_group(group).num_rows)
    end = part.first + part.count
    wanted = [group for group, (start, stop) in enumerate(pairwise(starts)) if start < end and stop > part.first]
    table = file.read_row_groups(wanted).slice(part.first - starts[wanted[0]], part.count)
    return list(table.to_pylist())


def _row(file: str, line: bytes) -> Row:
    if file.endswith(".txt"):
        return {"text": str(line, "utf-8")}
    row = json.loads(line)
    if not isinstance(row, dict) or not row:
        raise ValueError(f"a line of JSON must be an object with columns, got {shown(row)}")
    return row
