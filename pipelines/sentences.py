"""A small rule-based sentence splitter, with exact offsets."""

from __future__ import annotations

import re

from copyspec.common.lists import Lists
from copyspec.text.sentence_marks import CLOSING, CLOSING_UNSPACED, SENTENCE_ENDS, UNSPACED_ENDS

_LISTS = Lists(__file__)

_MARKS, _CLOSED = f"[{SENTENCE_ENDS}]", f"[{re.escape(CLOSING)}]*"
# It begins at the first mark of a run: trying each of them would take quadratic time.
_CANDIDATE = re.compile(rf"(?<!{_MARKS}){_MARKS}+{_CLOSED}(?=\s|\Z)|[{UNSPACED_ENDS}]+[{CLOSING_UNSPACED}]*")
_WORD_BEFORE = re.compile(r"(?:[^\W\d_]{1,2}\.)*[^\W_]+\Z")
_NEXT = re.compile(r"\s+[\"'“‘«„(\[¿¡*_]*(\w*)")
_LIST_NUMBER = re.compile(r"(?:\d{1,3}|[a-zA-Z])\.\Z")
_DOTTED = re.compile(r"(?:[^\W\d_]{1,2}\.)+[^\W\d_]{1,2}\Z")
_WINDOW = 40  # characters before a full stop that may hold an abbreviation


_NEVER_LAST = _LISTS.words("never_last")
"""Abbreviations that never end a sentence."""
_BEFORE_NUMBERS = _LISTS.words("before_numbers")
_MAYBE_LAST = _LISTS.words("maybe_last")
_STARTERS = _LISTS.words("starters")
"""Words that start a sentence more often than they are part of a name."""


def sentences(text: str) -> list[tuple[int, int]]:
    """Return the spans of the sentences of `text`, ascending, without the white space between them.

    A full stop does not end a sentence after abbreviations, initials and list numbers, before lower-case letters, and
    inside numbers and URLs. Linear time. Line breaks count as white space, so pass one paragraph at a time.
    """
    borders = [match.end() for match in _CANDIDATE.finditer(text) if _ends_sentence(text, match)]
    spans = []
    start = 0
    for end in [*borders, len(text)]:
        piece = text[start:end]
        if stripped := piece.strip():
            first = start + len(piece) - len(piece.lstrip())
            spans.append((first, first + len(stripped)))
        start = end
    return spans


def _ends_sentence(text: str, candidate: re.Match[str]) -> bool:
    mark = candidate[0]
    if not set(mark).isdisjoint(UNSPACED_ENDS):
        return True
    following = _NEXT.match(text, candidate.end())
    following_word = following[1] if following else ""
    if following_word[:1].islower():
        return False
    if mark.rstrip(CLOSING) != ".":
        return True
    before = text[max(0, candidate.start() - _WINDOW) : candidate.start()]
    return _ends_with_full_stop(before, following_word, at_start=candidate.start() < _WINDOW)


def _ends_with_full_stop(before: str, following: str, *, at_start: bool) -> bool:
    """Whether a sentence ends at a full stop after `before`, if `following` is the next word."""
    match = _WORD_BEFORE.search(before)
    if not match:
        return True
    word, starts = match[0].lower(), following.lower() in _STARTERS
    if word in _NEVER_LAST:
        return False
    if word in _BEFORE_NUMBERS and following[:1].isdigit():
        return False
    rest = before[: match.start()]
    opens = rest.endswith("\n") or rest.rstrip()[-1:] in (".", "!", "?", ":") or (at_start and not rest.strip())
    if opens and _LIST_NUMBER.match(word + "."):
        return False
    if word in _MAYBE_LAST or _DOTTED.match(word):
        return starts or (word == "etc" and following[:1].isupper())
    if len(word) == 1 and word.isalpha():
        return starts
    return True
