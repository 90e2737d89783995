"""Word-level diffs: turns a model's output into edits of the original text, and applies, shifts and merges edits."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise

from ..documents import Edit, Segment
from .pairing import Pairing
from .words import Tolerance

_SPACE, _BREAK = re.compile(r"\s+"), re.compile(r"[\r\n\v\f\x1c-\x1e\x85\u2028\u2029]")

NO_TEXT = frozenset({"Cc", "Cf", "Cs", "Cn", "Co", "Zl", "Zp"})
"""Unicode categories of control, formatting, surrogate, unassigned and private characters. A correction may keep such
characters of the text, but not add any."""
_JOINERS = "\u200c\u200d"  # zero-width joiners, parts of words and of emoji
_SIGNS = "\ufffd\ufffc"  # replacement characters for undecodable bytes and for objects

_DETACHED = re.compile(r"(?<=\w)(?=n't\b)|(?<=\w)(?='(?:s|re|ve|ll|d|m)\b)|(?<=[\w\"')])(?=[,;:!?\")](?:\W|\Z))")
_DETACHED_AFTER = re.compile(r"(?<=[\"(])(?=\w)")
_FULL_STOP = re.compile(r"(?<=[\w\")])(?=\.(?:[\"')\s]*\Z))")


def diff(
    source: str, corrected: str, *, tolerance: Tolerance | None = None, hidden: Sequence[tuple[int, int]] = ()
) -> list[Edit]:
    """Return the edits that turn `source` into `corrected`, word by word, ascending.

    White space of the source is kept except around changed words, and so are differences that `tolerance` allows: a
    text equal to the source up to tolerance gives no edits. `hidden`: spans of the source (ascending) that count as
    white space.
    """
    if source == corrected:
        return []
    pairing = Pairing(source, corrected, tolerance or Tolerance(), hidden)
    return pairing.edits()


def apply(text: str, edits: Iterable[Edit]) -> str:
    """Apply `edits` to `text`. Raises ValueError if they overlap, are not ascending, or exceed the text."""
    pieces, at = [], 0
    for edit in edits:
        if not at <= edit.start <= edit.end <= len(text):
            raise ValueError(
                f"{edit!r} overlaps the edit before it or leaves the text of {len(text)} characters: edits must ascend"
            )
        pieces += [text[at : edit.start], edit.replacement]
        at = edit.end
    return "".join([*pieces, text[at:]])


def stray(new: str, was: str) -> str | None:
    """Return an invisible or invalid character that `new` would add in place of `was`, or None."""
    if new.isascii() and new.isprintable():
        return None
    for char in dict.fromkeys(new):
        is_text = unicodedata.category(char) not in NO_TEXT and char not in _SIGNS
        if not (is_text or char in _JOINERS) and new.count(char) > was.count(char):
            return char
    return None


def shift(edits: Iterable[Edit], by: int) -> list[Edit]:
    """Move edits by `by` characters, from offsets in a part to offsets in the whole text."""
    return [replace(edit, start=edit.start + by, end=edit.end + by) for edit in edits]


def merge(*groups: Iterable[Edit]) -> list[Edit]:
    """Merge edits of one text into one ascending list. Raises ValueError if two overlap."""
    merged = sorted((edit for group in groups for edit in group), key=lambda edit: (edit.start, edit.end))
    for before, after in pairwise(merged):
        if after.start < before.end or (before.start, before.end) == (after.start, after.end):
            raise ValueError(f"{before!r} and {after!r} change the same characters: make one edit of them")
    return merged


def segment_edits(text: str, segment: Segment, corrected: str, *, tolerance: Tolerance | None = None) -> list[Edit]:
    """Return the edits that a model's output makes in a segment of `text`, with offsets in `text`."""
    # A correction may not add line breaks, because they belong to the file's layout.
    corrected = _SPACE.sub(lambda space: " " if _BREAK.search(space[0]) else space[0], corrected)
    if segment.is_tokenized:
        corrected = tokenized(corrected)
    hidden = [(start - segment.start, end - segment.start) for start, end in segment.hidden]
    return shift(diff(text[segment.start : segment.end], corrected, tolerance=tolerance, hidden=hidden), segment.start)


def tokenized(text: str) -> str:
    """Separate punctuation and contractions by spaces, as in the Penn Treebank and parallel corpora."""
    for pattern in (_DETACHED, _DETACHED_AFTER, _FULL_STOP):
        text = pattern.sub(" ", text)
    return " ".join(text.split())
