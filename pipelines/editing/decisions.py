"""Applies decisions: a file, made by a person or a program, that says which corrections of an earlier run are made."""

from __future__ import annotations

import json
import os
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import itemgetter
from pathlib import Path
from typing import Any

from copyspec.common.filesystem import open_input

from ..documents import Edit, FormatError, Part
from ..formats.segments import merged_spans
from .files import FileJob
from .journal import fingerprint
from .runner import Done, Work
from .writable import unwritable

VERSION = 1
MAX_BYTES = 256 << 20
_FIELDS = {"part": int, "start": int, "end": int, "orig": str, "corr": str, "accept": bool}


@dataclass(frozen=True, slots=True)
class DecidedFile:
    """The decisions on one file. They are valid only for the file with this digest."""

    name: str
    digest: str
    edits: Mapping[int, Sequence[tuple[Edit, str]]]  # with the margin by which the model preferred each; None: unknown


def read_decisions(path: Path) -> list[DecidedFile]:
    """Read a file of decisions. Raises ValueError with the reason if it is invalid."""
    try:
        with open_input(path) as file:
            content = file.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise ValueError(f"it is larger than {MAX_BYTES >> 20} MiB")
        data = json.loads(content)
        if not isinstance(data, dict) or data.get("copyspec-decisions") != VERSION:
            raise ValueError("it does not say so")
        return [_file(file) for file in data["files"]]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        reason = f"{error!r} is missing" if isinstance(error, KeyError) else str(error)
        raise ValueError(f"{str(path)!r} is not a decisions file of version {VERSION}: {reason}") from error


def _file(data: Mapping[str, Any]) -> DecidedFile:
    edits: dict[int, list[tuple[Edit, str]]] = {}
    for edit in data["edits"]:
        if wrong := [name for name, kind in _FIELDS.items() if type(edit[name]) is not kind]:
            raise ValueError(f"{wrong[0]} is {edit[wrong[0]]!r}")
        if edit["accept"]:
            edits.setdefault(edit["part"], []).append((Edit(edit["start"], edit["end"], edit["corr"]), edit["orig"]))
    return DecidedFile(str(data["name"]), str(data["digest"]), edits)


@dataclass(slots=True)
class Decided:
    """Stands in for a `Runner`: makes the accepted edits, in the files with the name and content they were found in.

    Only base names are compared, since review pages are passed on without their folders. A file with other content, or
    with edits that no run can have found, stays as it is, with the error in its report.
    """

    files: Sequence[DecidedFile]

    @property
    def identity(self) -> Mapping[str, object]:
        return {"decisions": VERSION}

    def run(self, works: Iterable[Work[FileJob]]) -> Iterator[Done[FileJob]]:
        job: FileJob | None = None
        number, made = 0, 0
        decided: DecidedFile | None = None
        for work in works:
            if work.owner is not job:
                job, number, made = work.owner, 0, 0
                decided = self._decided(job)
            if work.part is None:
                if job.report.error is None and decided is not None and made < sum(map(len, decided.edits.values())):
                    job.report.error = FormatError("the decisions name parts that the file does not have")
                yield Done(job, None)
                continue
            edits: Sequence[Edit] = ()
            try:
                if job.report.error is None and decided is not None:
                    edits = _checked(work.part, decided.edits.get(number, ()))
            except ValueError as error:
                job.report.error = error
            yield Done(job, work.part, refused=work.part.refused, edits=edits)
            number, made = number + 1, made + len(edits)

    def _decided(self, job: FileJob) -> DecidedFile | None:
        if job.report.error is not None or job.report.was_done:
            return None
        named = [file for file in self.files if file.name == os.path.basename(job.path)]
        if not named:
            job.report.error = ValueError("the decisions do not mention this file")
            return None
        digest = fingerprint(Path(job.path))
        same = [file for file in named if file.digest == digest]
        if not same:
            job.report.error = ValueError("the file has changed since the decisions were made; correct it again")
        elif any(file.edits != same[0].edits for file in same):
            job.report.error = ValueError(
                "the decisions hold several files of this name and content with other edits each: make a page for each "
                "of them"
            )
        else:
            return same[0]
        return None


def _checked(part: Part, decided: Sequence[tuple[Edit, str]]) -> list[Edit]:
    """Return the edits, ascending. Raises ValueError for edits that the part's format does not allow."""
    edits = [edit for edit, _ in decided]
    for edit, orig in decided:
        if not 0 <= edit.start <= edit.end <= len(part.text) or part.text[edit.start : edit.end] != orig:
            raise ValueError(f"the decisions replace {orig!r} where it does not occur")
    if any(one.end > other.start for one, other in pairwise(edits)):
        raise ValueError("edits of the decisions overlap, or do not ascend")
    taken = 0
    for segment in part.segments:
        first = taken
        while taken < len(edits) and segment.start <= edits[taken].start and edits[taken].end <= segment.end:
            taken += 1
        of_segment = edits[first:taken]
        solid = merged_spans(segment.protected, segment.hidden) if of_segment else ()
        for edit in of_segment:
            before = bisect_left(solid, edit.end, key=itemgetter(0))
            if before and edit.start < solid[before - 1][1]:
                raise ValueError(f"the decisions change what is protected: {part.text[edit.start : edit.end]!r}")
        if refusal := unwritable(part, segment, of_segment):
            raise ValueError(f"the decisions make a change that corrections may not: {refusal.detail}")
    if taken < len(edits):
        raise ValueError("the decisions change text that is not prose")
    return edits
