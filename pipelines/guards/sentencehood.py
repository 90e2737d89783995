"""Decides whether a piece of text is a sentence, so that only sentences get a full stop."""

from __future__ import annotations

import re

from copyspec.common.lists import Lists
from copyspec.text.sentence_marks import CLOSING, CLOSING_QUOTES, SENTENCE_ENDS

from .vocabulary import spelt

_LISTS = Lists(__file__)

END = re.compile(rf"[{SENTENCE_ENDS}][{re.escape(CLOSING_QUOTES)}]*\Z")
_ENDED_BEFORE = re.compile(rf"[{SENTENCE_ENDS}:;](?:\[[^\[\]]*\]|\([^()]*\)|[{re.escape(CLOSING)}])+\Z")
_LAST_WORD = re.compile(r"(?:^|[\s\"'“‘(])[^\W\d_]+(?:['’-][^\W\d_]+)*[\"'”’)]*\Z")
_ITEM = r"[ \t>]*(?:[-*+•–]|\d{1,3}(?:\.\d{1,3})+|\(?\d{1,3}[.)]|\(?[A-Za-z][.)])[ \t]+"
_NO_PROSE = re.compile(rf"\s*(?:[^\w\s\"'“‘(\[<*_`]|[*_`]\s)|.*(?:::|`_|\t)|{_ITEM}")
_BORDER = re.compile(rf"(?<=[{SENTENCE_ENDS}:;])\s+")
_LIST_ITEM = re.compile(rf"(?:^|\n){_ITEM}(?:\[[ xX]\][ \t]+)?\Z")

MARKER = 40
"""Characters in front of a piece in which the marker of a list item is looked for."""

FRAGMENT_WORDS = 3
"""Up to this many words without a final mark are a fragment (a heading, a cell, a name): nothing tells what is missing,
and models that expect sentences write one ("Task" comes back as "Task. Task.")."""

FEWEST = 4
"""Least number of words of a sentence."""

# Words that headings, labels and buttons seldom have: subjects, and finite verbs.
_TELLING = _LISTS.words("telling")
# A piece that ends with one of these was cut off, or continues below.
_GOES_ON = _LISTS.words("goes_on")


def lacks_end(piece: str) -> bool:
    """Whether `piece` is a sentence without its full stop. Items are left as they are."""
    if END.search(piece) or _ENDED_BEFORE.search(piece) or not _LAST_WORD.search(piece):
        return False
    if any(_NO_PROSE.match(line) for line in piece.splitlines()):
        return False
    last = _BORDER.split(piece)[-1]
    written = spelt(last)
    words = [word.replace("’", "'").casefold() for word in written]
    if len(words) < FEWEST or words[-1] in _GOES_ON or 2 * sum(word[0].isupper() for word in written) > len(words):
        return False
    return any(word in _TELLING for word in words)


def is_terse(piece: str) -> bool:
    """Whether a text is written as headings and labels are, without articles: with neither an end nor a finite verb."""
    return not END.search(piece) and _TELLING.isdisjoint(word.replace("’", "'").casefold() for word in spelt(piece))


def is_fragment(piece: str) -> bool:
    """Whether a piece of a few words is no sentence."""
    return len(spelt(piece)) <= FRAGMENT_WORDS and not END.search(piece)


def begins_item(before: str) -> bool:
    """Whether the text after `before` begins a list item, whose case is left as it is."""
    return bool(_LIST_ITEM.search(before[-MARKER:]))
