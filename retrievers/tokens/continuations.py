"""Finds what followed the end of a context in a corpus: after its longest suffix match, then after shorter ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import index
from typing import NamedTuple

from .descent import Descent
from .segment import IndexSegment
from .suffix_array import BORDER

MAX_MATCH = 32
"""Longest suffix of the context that is searched for: texts that agree that far are copies of each other."""

ESCAPE = 10.0
"""Pseudo-count of the escape to shorter matches (as in PPM; Cleary and Witten 1984): `n` occurrences of the longest
match get n / (n + ESCAPE) of the weight, and shorter matches share the rest in the same way. Drafts for recorded chats,
answers and summaries were best from 10 on; 1 lost three per cent of the tokens per call."""


class Continuation(NamedTuple):
    """What followed the end of the context at one place of the corpus."""

    document: int  # number of the document, in the order of appending
    offset: int  # of the first token, in the document
    tokens: list[int]  # at least one; fewer than requested if the document ends
    weight: float  # share of the evidence; the weights of one context sum to at most 1


class Match(NamedTuple):
    """The longest suffix of a context that occurs in the corpus."""

    length: int  # in tokens; 0: not even the last token occurs
    occurrences: int  # number of its occurrences


_Part = tuple[Descent, int, int]  # a search in a segment, and a range of its sorted places


def match_of(descents: list[Descent]) -> Match:
    length = max([descent.length for descent in descents], default=0)
    return Match(length, sum([descent.high - descent.low for descent in descents if descent.length == length]))


def backwards(context: Sequence[int]) -> list[int]:
    """Return the last MAX_MATCH tokens of a context in reverse, cut before the first invalid token id."""
    # As Python integers: those of NumPy and torch would overflow in the keys of `sampled_keys`.
    query = list(map(index, reversed(context[-MAX_MATCH:])))
    if query and not (min(query) >= 0 and max(query) < BORDER):
        query = query[: next(place for place, token in enumerate(query) if not 0 <= token < BORDER)]
    return query


def descents_of(query: list[int], segments: Sequence[IndexSegment]) -> list[Descent]:
    found = [Descent(segment, query) for segment in segments] if query else []
    return [descent for descent in found if descent.length]


def continuations_of(descents: list[Descent], length: int, count: int) -> tuple[Match, list[Continuation]]:
    match = match_of(descents)
    behind: list[Continuation] = []
    rest = 1.0
    for parts, places in _levels(descents):
        taken = min(count - len(behind), places)
        weight = rest * places / (places + ESCAPE) / taken
        rest *= ESCAPE / (places + ESCAPE)
        for descent, at in _evenly(parts, places, taken):
            segment, place = descent.segment, descent.place(at)
            tokens = segment.following(place, length)
            behind.append(Continuation(*segment.document(place), tokens, weight))
        if len(behind) == count:
            break
    return match, [continuation for continuation in behind if continuation.tokens]


def _levels(descents: list[Descent]) -> Iterator[tuple[list[_Part], int]]:
    """Yield the places after the longest match, then those that each shorter match adds, with their number."""
    before = {id(descent): (descent.low, descent.low) for descent in descents}
    while descents:
        length = max(descent.length for descent in descents)
        parts: list[_Part] = []
        remaining = []
        for descent in descents:
            if descent.length < length:
                remaining.append(descent)
                continue
            low, high = before[id(descent)]
            parts += [(descent, descent.low, low), (descent, high, descent.high)]
            before[id(descent)] = (descent.low, descent.high)
            if descent.widen():
                remaining.append(descent)
        yield parts, sum(end - start for _, start, end in parts)
        descents = remaining


def _evenly(parts: list[_Part], places: int, count: int) -> Iterator[tuple[Descent, int]]:
    """Yield `count` of the parts' places, evenly spaced."""
    passed, part = 0, iter(parts)
    descent, start, end = next(part)
    for number in range(count):
        wanted = (2 * number + 1) * places // (2 * count)
        while wanted - passed >= end - start:
            passed += end - start
            descent, start, end = next(part)
        yield descent, start + wanted - passed
