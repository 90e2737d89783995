"""The last check before writing: no edit may insert characters that are not text, or turn prose into something else."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from ..documents import Edit, Part, Refusal, Segment, replacing
from ..edits.diff import stray
from ..guards.guards import Checked

_LINE_END = re.compile(r"\r\n?|\n")
_PROSE = re.compile(r"[^\W\d_]{2}")
_CLOSING = re.compile(r"\*/|[\"',;|\t]")
"""What may end a comment, a string or a cell, in formats that forbid its last character."""
_ESCAPED = re.compile(r"\\[\"\\nrt]")
_WINDOW = 1000
"""Maximum characters of a line that are checked on each side of an edit: some lines are long data."""


def writable(part: Part, segment: Segment, checked: Checked) -> Checked:
    """Return `checked` without edits of `segment` that must not be written; they are counted as dropped."""
    if not checked.edits:
        return checked
    remaining: list[Edit] = []
    dropped = list(checked.dropped)
    lines = _Lines(part.text, segment)
    for edit in checked.edits:
        if refusal := _characters(part, edit) or lines.refusal(edit):
            dropped.append(refusal)
        else:
            lines.make(edit)
            remaining.append(edit)
    while remaining and (beginning := _formula(part.text, segment, remaining)):
        edit = remaining.pop(0)
        would = replacing(part.text[edit.start : edit.end], edit.replacement)
        dropped.append(Refusal("formula", f"{would}, but then the cell would begin with {beginning!r}, as formulas do"))
    if len(remaining) == len(checked.edits):
        return checked
    return replace(checked, edits=remaining, dropped=dropped, refusal=checked.refusal if remaining else dropped[0])


def unwritable(part: Part, segment: Segment, edits: Sequence[Edit], *, is_typed: bool = False) -> Refusal | None:
    """Return why edits of `segment` that somebody chose, not a model under guards, must not be written; None if they
    may. `is_typed`: by somebody who sees the text, and may add markup that ends nothing."""
    for edit in edits:
        if added := _closing(part.text, segment, edit) if is_typed else _markup(part.text, segment, edit):
            return Refusal("markup", f"{edit.replacement!r} would add {min(added)!r}, which is markup in this format")
    return next(iter(writable(part, segment, Checked(edits)).dropped), None)


def _markup(text: str, segment: Segment, edit: Edit) -> set[str]:
    """Forbidden characters that an edit adds."""
    return set(edit.replacement).intersection(segment.forbidden) - set(text[edit.start : edit.end])


def _closing(text: str, segment: Segment, edit: Edit) -> set[str]:
    """Ends of comments, strings or cells that an edit adds, also together with the characters beside it."""
    start = edit.start
    while start > segment.start and text[start - 1] == "\\":
        start -= 1
    before = text[max(segment.start, min(start, edit.start - 1)) : edit.start]
    after = text[edit.end : min(edit.end + 1, segment.end)]
    was, new = (
        _ends(before + middle + after, segment.forbidden) for middle in (text[edit.start : edit.end], edit.replacement)
    )
    return set(new - was)


def _ends(text: str, forbidden: str) -> Counter[str]:
    marks = _CLOSING.findall(text)
    if '"' in forbidden and "\\" in forbidden:  # in strings, a backslash escapes, or takes the quote after the segment
        text = _ESCAPED.sub("", text)
        marks = [*_CLOSING.findall(text), *"\\" * text.count("\\")]
    return Counter(mark for mark in marks if mark[-1] in forbidden)


def _characters(part: Part, edit: Edit) -> Refusal | None:
    """The refusal of an edit with characters that are not text, or that the file cannot hold."""
    if (char := stray(edit.replacement, part.text[edit.start : edit.end])) is not None:
        return Refusal("characters", f"{edit.replacement!r} would add {char!r}, which is not text")
    try:
        edit.replacement.encode(part.encoding, "surrogateescape")
    except UnicodeEncodeError as error:
        char = edit.replacement[error.start]
        what = f"which the encoding {part.encoding!r} lacks"
        if part.encoding == "ascii":  # of a file whose other bytes are no text in the encoding it is read with
            what = "but the file is in another encoding than UTF-8: name it"
        return Refusal("characters", f"{edit.replacement!r} would add {char!r}, {what}")
    return None


class _Lines:
    """Follows the edits of a segment line by line: none may make a line begin with markup that did not before. A word
    that is deleted may stand before a sign that is markup only there."""

    def __init__(self, text: str, segment: Segment) -> None:
        self._text, self._segment = text, segment
        self._leaders = dict(segment.hidden)  # where they begin: where they end
        self._at = segment.start
        self._first = segment.start  # where the prose of the line begins
        line = max(text.rfind(end, max(0, segment.start - _WINDOW), segment.start) for end in "\r\n") + 1
        if line or segment.start <= _WINDOW:
            is_within = _PROSE.search(text, line, segment.start)  # a later sentence of its line
            self._first = self._prose_from(line) if is_within else segment.start
            self._made = text[self._first : segment.start]  # the line up to `_at`, with the edits made
        else:
            self._made = text[segment.start - _WINDOW - 1 : segment.start]

    def refusal(self, edit: Edit) -> Refusal | None:
        if (begins_block := self._segment.begins_block) is None:
            return None
        self._advance(edit.start)
        if len(self._made) > _WINDOW:
            return None
        end = self._line_end(edit.end)
        was = self._text[self._first : self._line_end(self._first)].strip(" \t")
        line = (self._made + edit.replacement + self._text[edit.end : end]).strip(" \t")
        if begins_block(line) and not begins_block(was):
            what = "which begins with markup, as list items and headings do"
            return Refusal("markup", f"{replacing(was[:40], line[:40])}, {what}")
        return None

    def make(self, edit: Edit) -> None:
        """Pass over an edit that is made."""
        self._made += edit.replacement
        self._at = edit.end

    def _advance(self, to: int) -> None:
        """Pass over unchanged text."""
        ends = list(_LINE_END.finditer(self._text, self._at, to))
        if ends:
            self._first = min(self._prose_from(ends[-1].end()), to)
            self._made, self._at = "", self._first
        if len(self._made) <= _WINDOW:
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
        """The end of the line, or of the part of it that is checked."""
        limit = min(at + _WINDOW, len(self._text))
        match = _LINE_END.search(self._text, at, limit)
        return match.start() if match else limit


def _formula(text: str, segment: Segment, edits: Sequence[Edit]) -> str | None:
    """The character that the segment would newly begin with, if it must not."""
    first = _first(text, segment, edits) if segment.not_first else ""
    return first if first and first in segment.not_first and first != text[segment.start] else None


def _first(text: str, segment: Segment, edits: Sequence[Edit]) -> str:
    """The first character of the segment after the edits, white space skipped."""
    at = segment.start
    for edit in edits:
        for piece in (text[at : edit.start], edit.replacement):
            if rest := piece.lstrip():
                return rest[0]
        at = edit.end
    return text[at : segment.end].lstrip()[:1]
