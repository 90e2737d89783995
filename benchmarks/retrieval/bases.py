"""Knowledge bases for measurements: real indexes slowed down like large or remote ones, and vectors without a model."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from time import perf_counter, sleep, thread_time

import numpy as np
from numpy.typing import NDArray

from copyspec.retrievers import Hit, Retriever, Shortlist, shortlist_of, words

DIMENSION = 768  # of the vectors
WINDOW = 100  # words, as DPR's passages of Wikipedia


def windows(texts: Sequence[str], count: int) -> list[str]:
    """Return `count` passages of `WINDOW` words, cut at even distances from the texts in a row."""
    cut = " ".join(texts).split()
    starts = np.linspace(0, max(len(cut) - WINDOW, 0), count).astype(int)
    return [" ".join(cut[start : start + WINDOW]) for start in starts.tolist()]


class Delayed:
    """A retriever whose calls take at least `fixed + per_query * queries` seconds.

    A query is searched for once, and answered from this record later: a search of another base, larger or on another
    machine, takes no time of the processor and the interpreter lock that the model needs.
    """

    def __init__(self, base: Retriever) -> None:
        self.base = base
        self.cpu_seconds: list[float] = []  # of each search that was recorded
        self._found: dict[tuple[str, int], list[Hit]] = {}
        self.fixed = self.per_query = 0.0
        self.searching = 0.0  # total seconds of all calls
        self.calls = 0
        self.queries: list[str] = []  # of these calls

    def reset(self) -> None:
        """Reset the counters."""
        self.searching = 0.0
        self.calls = 0
        self.queries = []

    @property
    def texts(self) -> Sequence[str]:
        return self.base.texts

    def __len__(self) -> int:
        return len(self.base)

    def search(self, query: str, k: int = 4) -> list[Hit]:
        return self.search_batch([query], k)[0]

    def search_batch(self, queries: Sequence[str], k: int = 4) -> list[list[Hit]]:
        started = perf_counter()
        results = self._searched(queries, k)
        sleep(max(0.0, self.fixed + self.per_query * len(queries) - (perf_counter() - started)))
        self.searching += perf_counter() - started
        self.calls += 1
        self.queries += queries
        return results

    def _searched(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        for query in queries:
            if (query, k) not in self._found:
                started = thread_time()
                self._found[query, k] = self.base.search(query, k)
                self.cpu_seconds.append(thread_time() - started)
        return [self._found[query, k] for query in queries]

    def score(self, query: str, ids: Sequence[int]) -> NDArray[np.float64]:
        return self.base.score(query, ids)

    def shortlist(self) -> Shortlist:
        return shortlist_of(self.base)

    def add(self, texts: Sequence[str]) -> None:
        self.base.add(texts)

    def save(self, folder: object) -> None:
        raise NotImplementedError("a delayed retriever is for measuring")


def word_vectors(texts: Sequence[str], dimension: int = DIMENSION) -> NDArray[np.float32]:
    """Return a vector per text: the normalised sum of a random vector for each of its words. [len(texts), dimension]"""
    rows = np.zeros((len(texts), dimension), np.float32)
    for row, text in zip(rows, texts, strict=True):
        for word in words(text):
            row += _word_vector(word)[:dimension]
    return np.asarray(rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-9), np.float32)


_VECTORS: dict[str, NDArray[np.float32]] = {}


def _word_vector(word: str) -> NDArray[np.float32]:
    if word not in _VECTORS:
        random = np.random.default_rng(zlib.crc32(word.encode()))
        # Short words are mostly function words, which say little about the topic.
        _VECTORS[word] = random.standard_normal(DIMENSION, np.float32) * min(len(word), 8) ** 2
    return _VECTORS[word]
