"""Edits, not strings: what a model changed, applied to the characters that were there."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from itertools import pairwise

from ..documents import Edit, Segment
from .pairing import Pairing
from .words import Tolerance

_SPACE, _BREAK = re.compile(r"\s+"), re.compile(r"[\r\n\v\f\x1c-\x1e\x85\u2028\u2029]")

_NO_TEXT = frozenset({"Cc", "Cf", "Cs", "Cn", "Co", "Zl", "Zp"})
"""Unicode's categories of controls, marks of direction and other invisible characters, halves of characters, and what
is no character or private. A correction that needs one copies it from the text."""
_JOINERS = "\u200c\u200d"  # parts of words and of emoji
_SIGNS = "\ufffd\ufffc"  # what decoders write for bytes that they cannot read, and what stands for an object

_DETACHED = re.compile(r"(?<=\w)(?=n't\b)|(?<=\w)(?='(?:s|re|ve|ll|d|m)\b)|(?<=[\w\"')])(?=[,;:!?\")](?:\W|\Z))")
_DETACHED_AFTER = re.compile(r"(?<=[\"(])(?=\w)")
_FULL_STOP = re.compile(r"(?<=[\w\")])(?=\.(?:[\"')\s]*\Z))")


def diff(
    source: str, corrected: str, *, tolerance: Tolerance | None = None, hidden: Sequence[tuple[int, int]] = ()
) -> list[Edit]:
    """The edits that turn `source` into `corrected`, word by word, ascending.

    White space of the source stays as it is, but around words that were changed; so do differences that `tolerance`
    allows. `hidden` stretches of the source (ascending) count as white space. A text equal to the source up to
    tolerance gives no edits.
    """
    if source == corrected:
        return []
    pairing = Pairing(source, corrected, tolerance or Tolerance(), hidden)
    return pairing.edits()


def apply(text: str, edits: Iterable[Edit]) -> str:
    """`text` with the edits made. Raises ValueError where they overlap, go back or leave the text."""
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
    """A character of `new` that no correction may bring into the place of `was`; None: there is none."""
    if new.isascii() and new.isprintable():
        return None
    for char in dict.fromkeys(new):
        is_text = unicodedata.category(char) not in _NO_TEXT and char not in _SIGNS
        if not (is_text or char in _JOINERS) and new.count(char) > was.count(char):
            return char
    return None


def shift(edits: Iterable[Edit], by: int) -> list[Edit]:
    """The edits of a stretch, as edits of the text in which it begins at `by`."""
    return [Edit(edit.start + by, edit.end + by, edit.replacement) for edit in edits]


def merge(*groups: Iterable[Edit]) -> list[Edit]:
    """Edits of several stretches of one text in one ascending list. Raises ValueError where two overlap."""
    merged = sorted((edit for group in groups for edit in group), key=lambda edit: (edit.start, edit.end))
    for before, after in pairwise(merged):
        if after.start < before.end or (before.start, before.end) == (after.start, after.end):
            raise ValueError(f"{before!r} and {after!r} change the same characters: make one edit of them")
    return merged


def segment_edits(text: str, segment: Segment, corrected: str, *, tolerance: Tolerance | None = None) -> list[Edit]:
    """What a model's output changes in a segment of `text`, with offsets in `text`."""
    # A correction brings no line breaks of its own: lines belong to the file's layout.
    corrected = _SPACE.sub(lambda space: " " if _BREAK.search(space[0]) else space[0], corrected)
    if segment.is_tokenized:
        corrected = tokenized(corrected)
    hidden = [(start - segment.start, end - segment.start) for start, end in segment.hidden]
    return shift(diff(text[segment.start : segment.end], corrected, tolerance=tolerance, hidden=hidden), segment.start)


def tokenized(text: str) -> str:
    """`text` with punctuation and contractions set apart by spaces, as parallel corpora write it (Penn Treebank)."""
    for pattern in (_DETACHED, _DETACHED_AFTER, _FULL_STOP):
        text = pattern.sub(" ", text)
    return " ".join(text.split())
