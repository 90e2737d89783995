"""Suffix matching: finds earlier occurrences of the text's last tokens, and the length of each match."""

from __future__ import annotations

from copyspec.drafters.copying.context import CopyContext

LONGEST = 16
"""Matches are measured up to this length, in tokens."""

FEW = 24  # up to this many occurrences, a loop is cheaper than array operations
RECENT = 32  # latest occurrences kept of each match length
MANY = 4096  # latest occurrences searched, which bounds the time if one token fills the text


def matches(corpus: CopyContext) -> list[tuple[int, int]]:
    """Return (position, length) of the earlier occurrences of the text's last token; of very many, the longest and
    latest.

    The `length` tokens before `position` (at most LONGEST) equal the text's end, so the token there may come next.
    """
    tokens = corpus.tokens
    end = len(tokens)
    last = tokens[-1]
    found: list[tuple[int, int]] = []
    places = corpus.places.get(last)
    if places is not None:
        if len(places) <= FEW:
            _measure(tokens, places, end, 1, found)
        else:
            _narrow(corpus, last, found)
    written = corpus.written.get(last)
    if written is not None:
        if len(written) > RECENT + 1:  # the last one is the text's end itself
            before = tokens[end - 2]
            older = [place for place in written[-MANY : -RECENT - 1] if tokens[place - 2] == before]
            _measure(tokens, older[-RECENT:], end, 1, found)
        _measure(tokens, written[-RECENT - 1 :], end, 1, found)
    return found


def _measure(tokens: list[int], places: list[int], end: int, known: int, found: list[tuple[int, int]]) -> None:
    """Measure the matches one by one; `known` tokens before each place are known to match."""
    before = tokens[end - 1 - known]
    for place in places:
        if place >= end:  # the text's end itself
            continue
        length = known
        if before >= 0 and length < LONGEST and tokens[place - 1 - length] == before:
            length += 1
            while length < LONGEST and tokens[place - 1 - length] == tokens[end - 1 - length] >= 0:
                length += 1
        found.append((place, length))


def _narrow(corpus: CopyContext, last: int, found: list[tuple[int, int]]) -> None:
    """Measure many matches at once, one token at a time, until FEW are left."""
    tokens, array = corpus.tokens, corpus.array
    end = len(tokens)
    places = corpus.place_array(last, MANY)
    if places[-1] >= end:
        places = places[:-1]
    length = 1
    while len(places) > FEW and length < LONGEST and tokens[end - 1 - length] >= 0:
        longer = array[places - 1 - length] == tokens[end - 1 - length]
        shorter = places[~longer][-RECENT:]
        found.extend((place, length) for place in shorter.tolist())
        places = places[longer]
        length += 1
    _measure(tokens, places[-RECENT:].tolist(), end, length, found)
