"""One search in a segment of a datastore: down to the longest match, and from there to the shorter ones."""

from __future__ import annotations

from collections.abc import Sequence

from .segment import IndexSegment

_BLOCK = 64  # places read at once: a call of the system costs the same for one


class Descent:
    """Where a context's end occurs in a segment: the places low..high-1 of its sorted places, behind `length`
    tokens of it, none where `length` is 0. `widen` goes to the next shorter end that has more of them."""

    __slots__ = ("_blocks", "_query", "_seen", "high", "length", "low", "segment")

    def __init__(self, segment: IndexSegment, query: Sequence[int]) -> None:
        """`query`: the context backwards."""
        self.segment = segment
        self._query = query
        self._blocks: dict[int, memoryview[int]] = {}
        self.low = self.high = 0
        self._seen: dict[int, int] = {}  # tokens of the query behind which a place stands, by its index
        self.length, found = self._longest()
        self.low, self.high = self._around(found, found + 1) if self.length else (0, 0)
        self._check(self.low < self.high if self.length else True)

    def place(self, index: int) -> int:
        """One of the sorted places."""
        number = index // _BLOCK
        block = self._blocks.get(number)
        if block is None:
            start = number * _BLOCK
            block = self._blocks[number] = self.segment.places.part(start, start + _BLOCK)
        return block[index % _BLOCK]

    def widen(self) -> bool:
        """Goes on to the longest end of the context that more places stand behind; False where none do."""
        length = max(self._beyond(self.low, self.low - 1), self._beyond(self.high, self.high))
        if not length:
            return False
        known, low, high = self.length, self.low, self.high
        self.length = length
        self.low, self.high = self._around(low, high)
        self._check(self.low <= low < high <= self.high and high - low < self.high - self.low and length < known)
        return True

    def _longest(self) -> tuple[int, int]:
        """The length of the longest end of the context that occurs, and the index of a place behind it.

        A binary search that carries along how much of the query the places at both ends share, so that no token is
        compared twice along one side (Manber and Myers 1993, section 2).
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
        """Behind how many tokens of the query a place stands, `known` ones at least, and the tokens before it."""
        query, place = self._query, self.place(index)
        size, length = len(query), known
        before = self.segment.tokens.part(place - size if place > size else 0, place)
        self._check(len(before) == min(size, place) and 0 <= known <= size)
        while length < size and before[-1 - length] == query[length]:  # the text's first is a border: no query's
            length += 1
        self._seen[index] = length
        return length, before

    def _check(self, fits: bool) -> None:
        """Raises ValueError where the files contradict each other: somebody made them so, and a search in them might
        not end."""
        if not (fits and 0 <= self.low <= self.high <= self.segment.num_tokens):
            raise ValueError(f"places {self.low} to {self.high} of {self.segment.num_tokens}: they are not sorted")

    def _beyond(self, border: int, index: int) -> int:
        """`_shared` of the place at `index`, the first beyond a border of low..high; 0 where there is none."""
        if not 0 <= index < self.segment.num_tokens:
            return 0
        known = self.segment.index.shared(border)
        return known if known < self.segment.index.size else self._shared(index, known)[0]

    def _around(self, low: int, high: int) -> tuple[int, int]:
        """All places behind `length` tokens of the context; low..high-1 are some of them."""
        index, length = self.segment.index, self.length
        if length <= index.size:
            return index.interval(self._query[:length], low, high)
        first, last, before, behind = low, high - 1, -1, self.segment.num_tokens
        for seen, shared in self._seen.items():  # close to each other around `low`: the search has ended there
            if shared >= length:
                first, last = min(first, seen), max(last, seen)
            elif seen < low:
                before = max(before, seen)
            else:
                behind = min(behind, seen)
        return self._edge(first, before), self._edge(last, behind) + 1

    def _edge(self, inside: int, outside: int) -> int:
        """The last place from `inside`, which is behind `length` tokens of the context, towards `outside`, which is
        not: in steps that double, then halve."""
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
