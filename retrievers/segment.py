"""One part of a datastore: a text with its sorted places on disk, searched by one descent."""

from __future__ import annotations

import mmap
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from . import files
from .numbers import Numbers, numbers_of
from .suffix_array import BORDER, Tokens, sorted_places

_PARTS = ("tokens", "places", "heads", "starts", "documents")


def write_segment(folder: Path, tokens: Tokens) -> dict[str, files.Entry]:
    """Sorts the places of a text and writes all that a search needs.

    `tokens`: the documents one after the other, a BORDER before, between and behind them. [n]
    """
    borders = np.flatnonzero(tokens == BORDER)
    places = sorted_places(tokens)[: len(tokens) - len(borders)]  # those behind a border come last
    heads, starts = _heads(tokens)
    parts: dict[str, NDArray[np.uint32]] = {
        "tokens": tokens,
        "places": places,
        "heads": heads,
        "starts": starts,
        "documents": (borders[:-1] + 1).astype(np.uint32),
    }
    return {name: files.write_array(folder, name, parts[name]) for name in _PARTS}


def _heads(tokens: Tokens) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
    """The different tokens, ascending, and where in the sorted places those behind each begin (one more: the end)."""
    heads, counts = np.unique(tokens, return_counts=True)
    heads, counts = heads[heads != BORDER], counts[heads != BORDER]
    return heads, np.concatenate([[0], np.cumsum(counts)]).astype(np.uint32)


class Segment:
    """The files of one segment. Text and places are read where a search looks, and stay on disk; the rest, a hundredth
    of them, is mapped."""

    def __init__(self, folder: Path, entries: Mapping[str, files.Entry], first_document: int) -> None:
        self.entries = dict(entries)
        self.first_document = first_document
        paths = {name: folder / entries[name].name for name in _PARTS}
        self.tokens, self.places = numbers_of(paths["tokens"]), numbers_of(paths["places"])
        self.heads, self.starts, self.documents = (_mapped(paths[name]) for name in _PARTS[2:])
        self._text = paths["tokens"]

    @property
    def num_documents(self) -> int:
        return len(self.documents)

    @property
    def num_tokens(self) -> int:
        """Tokens of the documents, the borders between them not counted."""
        return len(self.places)

    def all_tokens(self) -> Tokens:
        """All tokens with their borders."""
        return np.fromfile(self._text, np.uint32)

    def document(self, place: int) -> tuple[int, int]:
        """The document that a place lies in, counted through all segments, and the offset in it."""
        index = bisect_right(self.documents, place) - 1
        return self.first_document + index, place - self.documents[index]

    def following(self, place: int, length: int) -> list[int]:
        """At most `length` tokens from a place on, to the end of its document."""
        found = self.tokens.part(place, place + length).tolist()
        return found[: found.index(BORDER)] if BORDER in found else found

    def descend(self, query: Sequence[int]) -> Descent | None:
        """The places behind the longest beginning of `query`, the context backwards; None where its first
        token does not occur."""
        bucket = bisect_left(self.heads, query[0])
        if bucket == len(self.heads) or self.heads[bucket] != query[0]:
            return None
        return Descent(self, query, self.starts[bucket], self.starts[bucket + 1])


class Descent:
    """Where a context's end occurs in a segment: the places low..high-1 of its sorted places, behind `length`
    tokens of it. `widen` goes to the next shorter end that has more of them."""

    __slots__ = ("_bucket", "_needle", "_query", "high", "length", "low", "segment")

    def __init__(self, segment: Segment, query: Sequence[int], low: int, high: int) -> None:
        self.segment = segment
        self._query = query
        self._needle = memoryview(array("I", query[::-1]))
        self._bucket = (low, high)
        self.length, found = _longest(segment.tokens, segment.places, low, high, query)
        self.low, self.high = self._around(found, found + 1)

    def widen(self) -> bool:
        """Goes on to the longest end of the context that more places stand behind; False where none do."""
        first, past = self._bucket
        left = self._common(self.low - 1) if self.low > first else 0
        right = self._common(self.high) if self.high < past else 0
        if not left and not right:
            return False
        self.length = max(left, right)
        self.low, self.high = self._around(self.low, self.high)
        return True

    def _common(self, index: int) -> int:
        """How many tokens before this place are those of the query."""
        place, query = self.segment.places[index], self._query
        before, length = self.segment.tokens.part(max(place - len(query), 0), place), 1
        while before[-1 - length] == query[length]:  # ends below self.length, which this place lacks
            length += 1
        return length

    def _around(self, low: int, high: int) -> tuple[int, int]:
        """All places behind `length` tokens of the context, from some of them: in steps that double, then halve."""
        first, past = self._bucket
        if self.length == 1:
            return first, past
        step = 1
        while low - step >= first and self._holds(low - step):
            low, step = low - step, 2 * step
        outside = max(low - step, first - 1)
        while low - outside > 1:
            middle = (low + outside) >> 1
            low, outside = (middle, outside) if self._holds(middle) else (low, middle)
        inside, step = high - 1, 1
        while inside + step < past and self._holds(inside + step):
            inside, step = inside + step, 2 * step
        outside = min(inside + step, past)
        while outside - inside > 1:
            middle = (inside + outside) >> 1
            inside, outside = (middle, outside) if self._holds(middle) else (inside, middle)
        return low, inside + 1

    def _holds(self, index: int) -> bool:
        place, size = self.segment.places[index], self.length
        return place >= size and self.segment.tokens.part(place - size, place) == self._needle[-size:]


def _longest(tokens: Numbers, places: Numbers, low: int, high: int, query: Sequence[int]) -> tuple[int, int]:
    """The length of the longest beginning of `query` that stands backwards before a place, and the index of one.

    All of low..high-1, at least one, stand behind query[0]. A binary search that carries along how much of the
    query the places at both ends share, so that no token is compared twice along one side (Manber and Myers
    1993, section 2).
    """
    past, size = high, len(query)
    left = right = 1
    while low < high:
        middle = (low + high) >> 1
        place = places[middle]
        before = tokens.part(max(place - size, 0), place)  # the text's first token is a border: no query's
        length = left if left < right else right
        while length < size and before[-1 - length] == query[length]:
            length += 1
        if length == size:
            return size, middle
        if before[-1 - length] < query[length]:
            low, left = middle + 1, length
        else:
            high, right = middle, length
    return (left, low - 1) if left > right or low == past else (right, low)


def _mapped(path: Path) -> memoryview[int]:
    """The numbers of a file, none of it read yet."""
    if path.stat().st_size == 0:
        return memoryview(b"").cast("I")
    with path.open("rb") as file:
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)).cast("I")
