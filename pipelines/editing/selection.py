"""Restricts what of a file is corrected: by marks in the file, to changed lines, or to some kinds of changes."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from copyspec.common.checks import check_type

from ..documents import Edit, Part, Refusal

KINDS = ("spacing", "case", "punctuation", "insert", "delete", "replace")
"""Kinds of changes: only white space, only capitals, only punctuation; words inserted, deleted or replaced."""

_MARK = re.compile(r"copyspec:[ \t]*(off|on|ignore)\b")
_LINE_END = re.compile(r"\r\n?|\n")
_WORD = re.compile(r"\w")  # in a line, besides its mark


class Selection(Protocol):
    """Restricts what is corrected. Both methods are called for every part of a file, in order, and `part` before
    `edits`."""

    @property
    def identity(self) -> str:
        """What outputs depend on: a run is only resumed with the same selections. A class without it is known by its
        name."""

    def part(self, path: str, part: Part) -> Part:
        """Return the part with the segments that go to the model."""

    def edits(self, path: str, part: Part, edits: Sequence[Edit]) -> Sequence[Edit]:
        """Return the edits that are made."""


def kind_of(before: str, after: str) -> str:
    """The kind of a replacement, one of KINDS."""
    if _squeezed(before) == _squeezed(after):
        return "spacing"
    if before.lower() == after.lower():
        return "case"
    if _letters(before) == _letters(after):
        return "punctuation"
    return "insert" if not before.strip() else "delete" if not after.strip() else "replace"


class Kinds:
    """Keeps only edits of some kinds."""

    def __init__(self, kinds: Collection[str]) -> None:
        """Raises TypeError for a str, and ValueError for an unknown kind."""
        check_type(
            isinstance(kinds, Iterable) and not isinstance(kinds, str), "kinds", kinds, "a list of kinds of changes"
        )
        self._kinds = frozenset(kinds)
        if unknown := sorted(self._kinds.difference(KINDS)):
            raise ValueError(f"kinds has {unknown[0]!r}, which is not one of {', '.join(KINDS)}")
        self.identity = f"kinds {','.join(sorted(self._kinds))}"

    def part(self, path: str, part: Part) -> Part:
        return part

    def edits(self, path: str, part: Part, edits: Sequence[Edit]) -> Sequence[Edit]:
        return [edit for edit in edits if kind_of(part.text[edit.start : edit.end], edit.replacement) in self._kinds]


class Marks:
    """Leaves out segments between `copyspec: off` and `copyspec: on`, and those in a line with `copyspec: ignore`;
    where such a mark is all that its line says, the next segment.

    The words count wherever they stand, since comments look different in each format. In formats whose parts are not
    stretches of the file (records, cells, paragraphs of a document) a mark reaches to the end of its part.
    """

    identity = "marks"

    def __init__(self) -> None:
        self._path = ""
        self._is_off = self._is_next = False

    def part(self, path: str, part: Part) -> Part:
        if path != self._path or not part.is_verbatim:
            self._path, self._is_off, self._is_next = path, False, False
        marks = list(_MARK.finditer(part.text)) if "copyspec:" in part.text else []
        if not (marks or self._is_off or self._is_next):
            return part
        ignored, alone = self._ignored(part.text, marks)
        starts = [segment.start for segment in part.segments]
        following = {bisect_left(starts, at) for at in ([0] if self._is_next else []) + alone}
        self._is_next = len(starts) in following
        segments = [
            segment
            for place, segment in enumerate(part.segments)
            if place not in following and not _meets((segment.start, segment.end), ignored)
        ]
        refused = [refusal for refusal in part.refused if refusal.span is None or not _meets(refusal.span, ignored)]
        dropped = len(part.segments) + len(part.refused) - len(segments) - len(refused)
        refused += [Refusal("ignored", "a mark in the file says so")] * dropped
        return replace(part, segments=segments, refused=refused)

    def edits(self, path: str, part: Part, edits: Sequence[Edit]) -> Sequence[Edit]:
        return edits

    def _ignored(self, text: str, marks: Iterable[re.Match[str]]) -> tuple[list[tuple[int, int]], list[int]]:
        """The ranges that are ignored, and the ends of lines that hold nothing but a mark for what follows."""
        ranges, alone = list[tuple[int, int]](), list[int]()
        start = 0 if self._is_off else None
        for mark in marks:
            line_start = max(text.rfind("\n", 0, mark.start()), text.rfind("\r", 0, mark.start())) + 1
            end = _LINE_END.search(text, mark.end())
            line_end = end.start() if end is not None else len(text)
            if mark[1] == "off" and start is None:
                start = line_start
            elif mark[1] == "on" and start is not None:
                ranges.append((start, line_end))
                start = None
            elif start is None:
                ranges.append((line_start, line_end))
                if not _WORD.search(text[line_start : mark.start()] + text[mark.end() : line_end]):
                    alone.append(line_end)
        self._is_off = start is not None
        return (ranges if start is None else [*ranges, (start, len(text))]), alone


class ChangedLines:
    """Keeps only edits in some lines of each file, counted from 1. In formats whose parts are not stretches of the file
    everything counts as changed."""

    def __init__(self, lines: Mapping[str, Sequence[range]], since: str = "") -> None:
        """`lines`: ascending ranges, by path; a path without any has not changed. `since`: the revision that they were
        compared with."""
        self._lines = lines
        self.identity = f"lines changed since {since}"
        self._read, self._written = _Places(), _Places()

    def part(self, path: str, part: Part) -> Part:
        if not part.is_verbatim and self._lines.get(path):
            return part
        changed = self._read.changed(path, part.text, self._lines.get(path, ()))
        segments = [segment for segment in part.segments if _meets((segment.start, segment.end), changed)]
        refused = [refusal for refusal in part.refused if refusal.span is None or _meets(refusal.span, changed)]
        return replace(part, segments=segments, refused=refused)

    def edits(self, path: str, part: Part, edits: Sequence[Edit]) -> Sequence[Edit]:
        if not part.is_verbatim:
            return edits
        changed = self._written.changed(path, part.text, self._lines.get(path, ()))
        return [edit for edit in edits if any(edit.start <= end and start <= edit.end for start, end in changed)]


class _Places:
    """Maps lines of a file to characters of its parts, which come in order."""

    def __init__(self) -> None:
        self._path = ""
        self._line = 1
        self._ended_with_cr = False

    def changed(self, path: str, text: str, lines: Sequence[range]) -> list[tuple[int, int]]:
        if path != self._path:
            self._path, self._line, self._ended_with_cr = path, 1, False
        first = self._line - (self._ended_with_cr and text.startswith("\n"))
        starts = [0, *(match.end() for match in _LINE_END.finditer(text))]
        ranges = []
        for span in lines:
            begin, end = max(0, span.start - first), min(len(starts), span.stop - first)
            if begin < end:
                ranges.append((starts[begin], starts[end] - 1 if end < len(starts) else len(text)))
        if text:
            self._line, self._ended_with_cr = first + len(starts) - 1, text.endswith("\r")
        return ranges


def selected(selections: Sequence[Selection], path: str, part: Part) -> Part:
    """Return what all selections leave of the part."""
    for selection in selections:
        part = selection.part(path, part)
    return part


def _meets(span: tuple[int, int], ranges: Sequence[tuple[int, int]]) -> bool:
    """Whether a segment, or a stretch that was refused, overlaps one of the ranges, which ascend."""
    after = bisect_right(ranges, (span[1], -1))
    return any(span[0] <= end and start < span[1] for start, end in ranges[max(0, after - 1) : after + 1])


def _squeezed(text: str) -> str:
    return "".join(text.split())


def _letters(text: str) -> str:
    return "".join(char for char in text if char.isalnum()).lower()
