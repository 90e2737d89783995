"""Shortlists: rank some of a retriever's texts by its own scores, without searching all texts.

The cache of speculative retrieval guesses from a shortlist before every retrieval, so it must be fast: vectors and word
weights of its texts are kept together, and only changes since the last guess are fetched from the retriever.
"""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from copyspec.common.forks import fork_safe

from .base import Retriever
from .vectors import VectorIndex, Vectors, exact_scores, tolerance

_KEPT_WORDS = 256  # number of words with cached weights; successive queries share most of their words


class Shortlist(Protocol):
    """Texts in numbered slots. Thread-safe."""

    def put(self, slots: Sequence[int], ids: Sequence[int]) -> None:
        """Put each text into its slot, replacing the text there. Slots are filled from 0 on, without gaps."""

    def best(self, query: str) -> tuple[int, float]:
        """Return id and score of the best text; ties by lowest id. There must be at least one text."""


class TermWeights(Protocol):
    """The weights that a word adds to the scores of texts."""

    def weights(self, word: str, ids: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the word's weight in each of these texts. [len(ids)]"""


class ScoredShortlist:
    """A shortlist for any retriever: all texts are scored for each query."""

    def __init__(self, retriever: Retriever) -> None:
        self._retriever = retriever
        self._ids = np.empty(0, np.int64)
        self._lock = fork_safe(threading.Lock())

    def put(self, slots: Sequence[int], ids: Sequence[int]) -> None:
        with self._lock:
            self._ids = _longer(self._ids.copy(), max(slots, default=-1) + 1)
            self._ids[slots] = ids

    def best(self, query: str) -> tuple[int, float]:
        ids = self._ids  # `put` never changes the array in place
        return _first(ids, self._retriever.score(query, ids))  # type: ignore[arg-type]  # an array is a sequence


class VectorShortlist:
    """A shortlist for dense retrieval: the vectors are copied into one matrix, which is multiplied with the query.

    As in a search, the float32 product selects the candidates, and float64 scores decide between them.
    """

    def __init__(self, index: VectorIndex, encode: Callable[[str], Vectors]) -> None:
        """`encode`: from a query to its vector."""
        self._index, self._encode = index, encode
        self._ids = np.empty(0, np.int64)
        self._rows: Vectors = np.empty((0, index.dimension), np.float32)
        self._squares = np.empty(0, np.float32)  # squared norms of the rows
        self._count, self._longest = 0, 0.0
        self._lock = fork_safe(threading.Lock())

    def put(self, slots: Sequence[int], ids: Sequence[int]) -> None:
        if not len(slots):
            return
        vectors = self._index.vectors(ids)
        with self._lock:
            self._count = max(self._count, max(slots) + 1)
            if self._count > len(self._ids):
                room = max(self._count, 2 * len(self._ids))
                self._ids, self._squares = _longer(self._ids, room), _longer(self._squares, room)
                self._rows = _longer(self._rows, room)
            squares, places = np.einsum("nd,nd->n", vectors, vectors), np.array(slots)
            self._ids[places], self._rows[places], self._squares[places] = ids, vectors, squares
            self._longest = max(self._longest, math.sqrt(float(squares.max())))

    def best(self, query: str) -> tuple[int, float]:
        vector, metric = self._encode(query), self._index.metric
        with self._lock:
            ids, rows = self._ids[: self._count], self._rows[: self._count]
            rough = rows @ vector
            if metric == "l2":  # the query's own norm does not affect the order
                rough = 2 * rough - self._squares[: self._count]
            highest = int(rough.argmax())
            near = rough >= rough[highest] - tolerance(vector, self._longest, metric)
            if np.count_nonzero(near) > 1:
                return _first(ids[near], exact_scores(vector, rows[near], metric))
            score = exact_scores(vector, rows[highest : highest + 1], metric)
            return int(ids[highest]), float(score[0])


class WordShortlist:
    """A shortlist for word search. A word's weights in all texts are looked up once, later only those of changed
    slots."""

    def __init__(self, split: Callable[[str], list[str]], weights: Callable[[], TermWeights]) -> None:
        """`split`: from a query to its words. `weights`: returns the current weights, a new object after every change
        of the retriever."""
        self._split, self._current = split, weights
        self._weights = weights()
        self._ids = np.empty(0, np.int64)
        self._count = 0
        self._changes: list[int] = []  # changed slots, in order
        self._rows: OrderedDict[str, tuple[NDArray[np.float64], int]] = OrderedDict()  # weights, changes applied
        self._lock = fork_safe(threading.Lock())

    def put(self, slots: Sequence[int], ids: Sequence[int]) -> None:
        if not len(slots):
            return
        with self._lock:
            self._count = max(self._count, max(slots) + 1)
            if self._count > len(self._ids):
                self._ids = _longer(self._ids, max(self._count, 2 * len(self._ids)))
                self._forget()
            self._ids[slots] = ids
            self._changes += slots
            if len(self._changes) > 2 * len(self._ids):
                self._forget()

    def best(self, query: str) -> tuple[int, float]:
        terms = self._split(query)
        with self._lock:
            if self._weights is not self._current():
                self._weights = self._current()
                self._forget()
            changed: dict[int, NDArray[np.int64]] = {}  # number of changes applied -> slots changed since
            scores = np.zeros(len(self._ids))
            for word in terms:  # in the order in which a search adds them, for identical sums
                scores += self._row(word, changed)
            ids, scores = self._ids[: self._count], scores[: self._count]
            return _first(ids, scores)

    def _row(self, word: str, changed: dict[int, NDArray[np.int64]]) -> NDArray[np.float64]:
        row, known = self._rows.pop(word, (None, 0))
        if row is None:
            row = np.zeros(len(self._ids))
            row[: self._count] = self._weights.weights(word, self._ids[: self._count])
        elif known < len(self._changes):
            if known not in changed:
                changed[known] = np.array(self._changes[known:], np.int64)
            slots = changed[known]
            row[slots] = self._weights.weights(word, self._ids[slots])
        self._rows[word] = row, len(self._changes)
        if len(self._rows) > _KEPT_WORDS:
            self._rows.popitem(last=False)
        return row

    def _forget(self) -> None:
        self._rows.clear()
        self._changes.clear()


def shortlist_of(retriever: Retriever) -> Shortlist:
    """Make an empty shortlist, by the retriever's own method `shortlist` if it has one."""
    made: Callable[[], Shortlist] | None = getattr(retriever, "shortlist", None)
    return made() if made is not None else ScoredShortlist(retriever)


def _first(ids: NDArray[np.int64], scores: NDArray[np.float64]) -> tuple[int, float]:
    highest = int(np.argmax(scores))
    equal = ids[scores == scores[highest]]  # empty for NaN, and a guess must not fail
    return int(equal.min() if len(equal) else ids[highest]), float(scores[highest])


def _longer(array, count: int):  # type: ignore[no-untyped-def]  # of any shape and type
    """The array, extended with zeros to at least `count` rows."""
    if count <= len(array):
        return array
    grown = np.zeros((count, *array.shape[1:]), array.dtype)
    grown[: len(array)] = array
    return grown
