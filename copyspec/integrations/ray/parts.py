"""Parts: ranges of rows of the input files; each part becomes one output file, or none."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

from copyspec.integrations.ray.json_rows import LineRow, Row
from copyspec.models.digests import content_digest
from copyspec.models.model_cache import hash_into

SUFFIXES = (".parquet", ".jsonl", ".ndjson", ".txt")


@dataclass(frozen=True, slots=True)
class RowPart:
    """A range of rows of one file."""

    file: str
    number: int  # of the part, counted over all files
    first: int  # index of the first row in the file
    count: int
    start: int = 0  # byte offset in the file; unused for Parquet
    end: int = 0
    digest: str = ""  # of these bytes; of the whole file for Parquet; empty: not known

    @property
    def name(self) -> str:
        return f"{self.number:06d}-{Path(self.file).stem}"

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def read(self) -> tuple[list[Row], list[Row]]:
        """The part's rows, and the unreadable ones as records with the reason. Raises ValueError if the file has
        changed since it was split."""
        if self.file.endswith(".parquet"):
            rows = _parquet_rows(self)
            self._check(content_digest(Path(self.file)) if self.digest else "")
            return rows, []
        with open(self.file, "rb") as file:
            file.seek(self.start)
            content = file.read(self.end - self.start)
        self._check(_digest(content))
        rows = []
        broken: list[Row] = []
        # At line feeds alone: a carriage return may stand in a line of text, or between the members of an object.
        for number, line in enumerate(content.removesuffix(b"\n").split(b"\n"), self.first):
            try:
                rows.append(_row(self.file, line.removesuffix(b"\r")))
            except (ValueError, RecursionError) as error:  # the latter for a thousand opening brackets
                text = line.decode("utf-8", "replace")
                broken.append({"file": self.file, "row": number, "line": text, "error": f"no row: {error}"})
        return rows, broken

    def _check(self, digest: str) -> None:
        if self.digest and digest != self.digest:
            raise ValueError(f"{self.file!r} has changed while it was worked on: start again, in another folder")


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


def _split_lines(file: str, rows: int) -> Iterator[tuple[int, int, int, int, str]]:
    first = start = at = 0
    with open(file, "rb") as opened:
        while lines := list(islice(opened, rows)):
            content = b"".join(lines)
            at += len(content)
            yield first, len(lines), start, at, _digest(content)
            first, start = first + len(lines), at


def _split_parquet(file: str, rows: int) -> Iterator[tuple[int, int, int, int, str]]:
    import pyarrow.parquet

    digest = content_digest(Path(file))
    total = pyarrow.parquet.read_metadata(file).num_rows
    for first in range(0, total, rows):
        yield first, min(rows, total - first), 0, 0, digest


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()


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
    # Strings hold no carriage returns, and many readers would take those between members for ends of lines.
    return LineRow(str(line, "utf-8-sig").replace("\r", " ").strip())
