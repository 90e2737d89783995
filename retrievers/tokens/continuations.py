"""Finds what followed the end of a context in a corpus: after its longest suffix match, then after shorter ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import index
from typing import NamedTuple

from .segment import IndexSegment
from .suffix_array import BORDER

_BLOCK = 64  # places read at once, for the cost of the same system call


class Descent:
    """The occurrences of a context's end in a segment: the sorted places low..high-1, which follow the last `length`
    tokens of the context (none if `length` is 0). `widen` goes on to a shorter suffix with more occurrences."""

    __slots__ = ("_blocks", "_query", "_seen", "high", "length", "low", "segment")

    def __init__(self, segment: IndexSegment, query: Sequence[int]) -> None:
        """`query`: the context in reverse."""
        self.segment = segment
        self._query = query
        self._blocks: dict[int, memoryview[int]] = {}
        self.low = self.high = 0
        self._seen: dict[int, int] = {}  # index of a place -> number of query tokens before it that match
        self.length, at = self._longest()
        self.low, self.high = self._around(at, at + 1) if self.length else (0, 0)
        self._check(self.low < self.high if self.length else True)

    def place(self, index: int) -> int:
        """Return the sorted place at `index`."""
        number = index // _BLOCK
        block = self._blocks.get(number)
        if block is None:
            start = number * _BLOCK
            block = self._blocks[number] = self.segment.places.part(start, start + _BLOCK)
        return block[index % _BLOCK]

    def widen(self) -> bool:
        """Go on to the longest suffix of the context with more occurrences. Returns False if there is none."""
        length = max(self._beyond(self.low, self.low - 1), self._beyond(self.high, self.high))
        if not length:
            return False
        known, low, high = self.length, self.low, self.high
        self.length = length
        self.low, self.high = self._around(low, high)
        self._check(self.low <= low < high <= self.high and high - low < self.high - self.low and length < known)
        return True

    def _longest(self) -> tuple[int, int]:
        """Return the length of the longest suffix that occurs, and the index of a place after it.

        The binary search keeps the length of the query's match at both ends, so that no token is compared twice along
        one side (Manber and Myers 1993, section 2).
        """
        bracket = self.segment.index.bracket(self._query)
        if bracket is None:
            return 0, 0
        low, high, left, right = bracket
        query, size = self._query, len(self._query)
        while low < high:
            middle = (low + high) >> 1
            length, before = self._shared(middle, left if left < right else right)
            if length == size:
                return size, middle
            if before[-1 - length] < query[length]:
                low, left = middle + 1, length
            else:
                high, right = middle, length
        return (left, low - 1) if left > right else (right, low)

    def _shared(self, index: int, known: int = 0) -> tuple[int, memoryview[int]]:
        """Return how many query tokens match before a place (at least `known`), and the tokens before it."""
        query, place = self._query, self.place(index)
        size, length = len(query), known
        before = self.segment.tokens.part(place - size if place > size else 0, place)
        self._check(len(before) == min(size, place) and 0 <= known <= size)
        while length < size and before[-1 - length] == query[length]:  # stops at the border that begins the text
            length += 1
        self._seen[index] = length
        return length, before

    def _check(self, fits: bool) -> None:
        """Raise ValueError if the files are inconsistent (manipulated), as a search in them might not end."""
        if not (fits and 0 <= self.low <= self.high <= self.segment.num_tokens):
            raise ValueError(f"places {self.low} to {self.high} of {self.segment.num_tokens}: they are not sorted")

    def _beyond(self, border: int, index: int) -> int:
        """The match length at `index`, the first place beyond a border of low..high; 0 if there is none."""
        if not 0 <= index < self.segment.num_tokens:
            return 0
        known = self.segment.index.shared(border)
        return known if known < self.segment.index.size else self._shared(index, known)[0]

    def _around(self, low: int, high: int) -> tuple[int, int]:
        """The range of all places after `length` tokens of the context; low..high-1 are some of them."""
        index, length = self.segment.index, self.length
        if length <= index.size:
            return index.interval(self._query[:length], low, high)
        first, last, before, behind = low, high - 1, -1, self.segment.num_tokens
        for seen, shared in self._seen.items():  # mostly near `low`, where the search ended
            if shared >= length:
                first, last = min(first, seen), max(last, seen)
            elif seen < low:
                before = max(before, seen)
            else:
                behind = min(behind, seen)
        return self._edge(first, before), self._edge(last, behind) + 1

    def _edge(self, inside: int, outside: int) -> int:
        """The last matching place from `inside`, which matches `length` tokens, towards `outside`, which does not.

        The steps double, then halve (exponential search)."""
        step = 1 if outside > inside else -1
        while abs(outside - inside) > abs(step):
            if self._holds(inside + step):
                inside, step = inside + step, 2 * step
            else:
                outside = inside + step
                break
        while abs(outside - inside) > 1:
            middle = (inside + outside) >> 1
            inside, outside = (middle, outside) if self._holds(middle) else (inside, middle)
        return inside

    def _holds(self, index: int) -> bool:
        shared = self._seen.get(index)
        return (self._shared(index)[0] if shared is None else shared) >= self.length


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
    descents = [Descent(segment, query) for segment in segments] if query else []
    return [descent for descent in descents if descent.length]


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
