"""The last check before writing: no edit may insert characters that are not text, or turn prose into something else."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from ..documents import Edit, Part, Refusal, Segment
from ..edits.diff import stray
from ..guards.guards import Checked

_LINE_END = re.compile(r"\r\n?|\n")
_PROSE = re.compile(r"[^\W\d_]{2}")
_LOOKED_AT = 1000
"""Characters of a line on each side of an edit that are looked at, as some lines are long data."""


def writable(part: Part, segment: Segment, checked: Checked) -> Checked:
    """Return `checked` without edits of `segment` that must not be written; they are counted as dropped."""
    if not checked.edits:
        return checked
    kept: list[Edit] = []
    dropped = list(checked.dropped)
    lines = _Lines(part.text, segment)
    for edit in checked.edits:
        if refusal := _characters(part, edit) or lines.refusal(edit):
            dropped.append(refusal)
        else:
            lines.make(edit)
            kept.append(edit)
    while kept and (found := _formula(part.text, segment, kept)):
        edit = kept.pop(0)
        dropped.append(Refusal("formula", f"{edit.replacement!r} would make {found!r} of a cell begin a formula"))
    if len(kept) == len(checked.edits):
        return checked
    return replace(checked, edits=kept, dropped=dropped, refusal=checked.refusal if kept else dropped[0])


def unwritable(part: Part, segment: Segment, edits: Sequence[Edit]) -> Refusal | None:
    """Return why edits of `segment` that somebody chose, not a model under guards, must not be written; None if they
    may."""
    for edit in edits:
        was = part.text[edit.start : edit.end]
        if brought := set(edit.replacement).intersection(segment.forbidden) - set(was):
            return Refusal("markup", f"{edit.replacement!r} brings {min(brought)!r}, which is markup in this format")
    return next(iter(writable(part, segment, Checked(edits)).dropped), None)


def _characters(part: Part, edit: Edit) -> Refusal | None:
    """The refusal of an edit with characters that are not text, or that the file cannot hold."""
    if (char := stray(edit.replacement, part.text[edit.start : edit.end])) is not None:
        return Refusal("characters", f"{edit.replacement!r} adds {char!r}, which is not text")
    try:
        edit.replacement.encode(part.encoding, "surrogateescape")
    except UnicodeEncodeError as error:
        char = edit.replacement[error.start]
        return Refusal("characters", f"{edit.replacement!r} holds {char!r}, which {part.encoding!r} lacks")
    return None


class _Lines:
    """Follows the edits of a segment line by line: none may make a line begin with markup that did not before. A word
    that is deleted may stand before a sign that is markup only there."""

    def __init__(self, text: str, segment: Segment) -> None:
        self._text, self._segment = text, segment
        self._leaders = dict(segment.hidden)  # where they begin: where they end
        self._at = segment.start
        self._first = segment.start  # where the prose of the line begins
        line = max(text.rfind(end, max(0, segment.start - _LOOKED_AT), segment.start) for end in "\r\n") + 1
        if line or segment.start <= _LOOKED_AT:
            is_within = _PROSE.search(text, line, segment.start)  # a later sentence of its line
            self._first = self._prose_from(line) if is_within else segment.start
            self._made = text[self._first : segment.start]  # the line up to `_at`, with the edits made
        else:
            self._made = text[segment.start - _LOOKED_AT - 1 : segment.start]

    def refusal(self, edit: Edit) -> Refusal | None:
        if (begins_block := self._segment.begins_block) is None:
            return None
        self._go_on(edit.start)
        if len(self._made) > _LOOKED_AT:
            return None
        end = self._line_end(edit.end)
        was = self._text[self._first : self._line_end(self._first)].strip(" \t")
        line = (self._made + edit.replacement + self._text[edit.end : end]).strip(" \t")
        if begins_block(line) and not begins_block(was):
            return Refusal("markup", f"{was[:40]!r} would become {line[:40]!r}, which is no prose")
        return None

    def make(self, edit: Edit) -> None:
        """Go on behind an edit that was not refused."""
        self._made += edit.replacement
        self._at = edit.end

    def _go_on(self, to: int) -> None:
        """Follow unchanged text."""
        ends = list(_LINE_END.finditer(self._text, self._at, to))
        if ends:
            self._first = min(self._prose_from(ends[-1].end()), to)
            self._made, self._at = "", self._first
        if len(self._made) <= _LOOKED_AT:
            self._made += self._text[self._at : to]
        self._at = to

    def _prose_from(self, at: int) -> int:
        """The place behind a line's indentation and leader, such as the `> ` of a quotation."""
        while True:
            if at in self._leaders:
                at = max(self._leaders[at], at + 1)
            elif self._text[at : at + 1] in (" ", "\t"):
                at += 1
            else:
                return at

    def _line_end(self, at: int) -> int:
        """The end of the line, or of the part of it that is looked at."""
        limit = min(at + _LOOKED_AT, len(self._text))
        found = _LINE_END.search(self._text, at, limit)
        return found.start() if found else limit


def _formula(text: str, segment: Segment, edits: Sequence[Edit]) -> str | None:
    """The character that the segment would newly begin with, if it must not."""
    first = _first(text, segment, edits) if segment.not_first else ""
    return first if first and first in segment.not_first and first != text[segment.start] else None


def _first(text: str, segment: Segment, edits: Sequence[Edit]) -> str:
    """The first character of the segment after the edits, white space skipped."""
    at = segment.start
    for edit in edits:
        for piece in (text[at : edit.start], edit.replacement):
            if found := piece.lstrip():
                return found[0]
        at = edit.end
    return text[at : segment.end].lstrip()[:1]
