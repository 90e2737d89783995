"""Whether a piece of text is a sentence, as far as words tell: what is none lacks nothing at its end."""

from __future__ import annotations

import re

from .vocabulary import spelt

END = re.compile(r"[.!?…。！？][\"'”’»)\]]*\Z")
_ENDED_BEFORE = re.compile(r"[.!?…:;](?:\[[^\[\]]*\]|\([^()]*\)|[\"'”’»)\]*_])+\Z")
_LIST_ITEM = re.compile(r"(?:^|\n)[ \t>]*(?:[-*+•–]|\(?\d{1,3}[.)]|\(?[A-Za-z][.)])[ \t]+(?:\[[ xX]\][ \t]+)?\Z")

FEWEST, ENOUGH = 4, 9
"""Words of a sentence at least; so many words are one even without a word that only sentences have."""

# What headings, labels and buttons seldom hold: subjects, and verbs that need one.
_TELLING = frozenset(
    """
    i he she we they it there you is are am was were has had does did will would could should might cannot i'm he's
    she's it's we're they're you're that's there's isn't aren't wasn't weren't hasn't hadn't doesn't didn't won't
    wouldn't couldn't shouldn't can't don't haven't
    """.split()  # noqa: SIM905
)
# A piece that ends in one of these was cut off, or goes on below.
_GOES_ON = frozenset("a an the of to and or but with from by for in on at is are was were who which that if as".split())  # noqa: SIM905


def lacks_end(piece: str, before: str) -> bool:
    """Whether a full stop belongs behind `piece`. `before`: the text in front of it, whose last line may begin a
    list: an item of one has no full stop if the writer gave it none."""
    words = [word.replace("’", "'").casefold() for word in spelt(piece)]
    if (
        not words
        or END.search(piece)
        or _ENDED_BEFORE.search(piece)
        or (not piece[-1].isalnum() and piece[-1] not in "\"'”’)")
    ):
        return False
    if len(words) < FEWEST or words[-1] in _GOES_ON or _LIST_ITEM.search(before[-40:]):
        return False
    return len(words) >= ENOUGH or not _TELLING.isdisjoint(words)


def begins_item(before: str) -> bool:
    """Whether what follows `before` begins an item of a list, which has a capital only if the writer gave it one."""
    return bool(_LIST_ITEM.search(before[-40:]))
