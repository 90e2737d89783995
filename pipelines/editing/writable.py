"""The last check before writing: no edit may insert characters that are not text, or turn a cell into a formula."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..documents import Edit, Refusal, Segment
from ..edits.diff import stray
from ..guards.guards import Checked


def writable(text: str, segment: Segment, checked: Checked) -> Checked:
    """Return `checked` without edits of `segment` that must not be written; they are counted as dropped."""
    if not checked.edits:
        return checked
    kept: list[Edit] = []
    dropped = list(checked.dropped)
    for edit in checked.edits:
        if (char := stray(edit.replacement, text[edit.start : edit.end])) is not None:
            dropped.append(Refusal("characters", f"{edit.replacement!r} adds {char!r}, which is not text"))
        else:
            kept.append(edit)
    while kept and (found := _formula(text, segment, kept)):
        edit = kept.pop(0)
        dropped.append(Refusal("formula", f"{edit.replacement!r} would make {found!r} of a cell begin a formula"))
    if len(kept) == len(checked.edits):
        return checked
    return replace(checked, edits=kept, dropped=dropped, refusal=checked.refusal if kept else dropped[0])


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
