"""What followed the end of a context in a corpus: the places behind its longest match, then behind shorter ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from .descent import Descent
from .segment import IndexSegment
from .suffix_array import BORDER

MAX_MATCH = 32
"""Tokens of the context that are looked up: what agrees that far is one text, and longer matches change nothing."""

ESCAPE = 10.0
"""What speaks against a match, in occurrences: `n` places behind the longest match get n / (n + ESCAPE) of the
weight, shorter matches share the rest in the same way (the escape of PPM; Cleary and Witten 1984). Drafts for
recorded chats, answers and summaries were best from 10 on; 1 lost three per cent of the tokens per call."""


class Continuation(NamedTuple):
    """What followed the end of the context at one place of the corpus."""

    document: int  # its number, in the order in which documents were appended
    offset: int  # of the first token in the document
    tokens: list[int]  # at least one; fewer than asked for where the document ends
    weight: float  # this place's share of the evidence; those of one context add up to at most 1


class Match(NamedTuple):
    """The longest end of a context that occurs in the corpus."""

    length: int  # tokens of it; 0: not even the last one occurs
    occurrences: int  # places where it occurs


_Part = tuple[Descent, int, int]  # a search in a segment and places of it, from and to


def match_of(descents: list[Descent]) -> Match:
    length = max([descent.length for descent in descents], default=0)
    return Match(length, sum([descent.high - descent.low for descent in descents if descent.length == length]))


def backwards(context: Sequence[int]) -> list[int]:
    """The end of a context backwards, up to what no corpus holds."""
    query = list(reversed(context[-MAX_MATCH:]))
    if query and not (min(query) >= 0 and max(query) < BORDER):
        query = query[: next(index for index, token in enumerate(query) if not 0 <= token < BORDER)]
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
        for descent, index in _evenly(parts, places, taken):
            segment, place = descent.segment, descent.place(index)
            tokens = segment.following(place, length)
            behind.append(Continuation(*segment.document(place), tokens, weight))
        if len(behind) == count:
            break
    return match, [continuation for continuation in behind if continuation.tokens]


def _levels(descents: list[Descent]) -> Iterator[tuple[list[_Part], int]]:
    """The places behind the longest match, then those that each shorter match adds, with their number."""
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
    """`count` of the parts' places, at even distances."""
    passed, part = 0, iter(parts)
    descent, start, end = next(part)
    for number in range(count):
        wanted = (2 * number + 1) * places // (2 * count)
        while wanted - passed >= end - start:
            passed += end - start
            descent, start, end = next(part)
        yield descent, start + wanted - passed
