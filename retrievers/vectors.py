"""Vectors searched exactly, by NumPy: the reference for every other index of vectors."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal, Protocol, cast, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import files
from .base import best, check_ids, check_k
from .saving import Saving

Metric = Literal["ip", "l2"]
"""What scores are: inner products, or squared distances with a minus sign. Higher is nearer."""

Vectors = NDArray[np.float32]
Found = tuple[NDArray[np.int64], NDArray[np.float64]]
"""Ids and scores of one query, best first, equal scores by id. [k] each, or less where there are less vectors."""

_LARGEST = 1e15  # in a vector on disk: the squares of larger ones have no sum in float32
VECTORS = ("vectors",)  # the files of an ExactIndex, by their names in the manifest

_BLOCK = 1 << 15  # vectors scored at once: 32 queries' scores of them take 4 MB and stay in a cache
_ROUNDING = 2.0**-24  # relative error of one operation in float32


class VectorIndex(Protocol):
    """Vectors by number. What a query finds does not depend on the other queries of a batch."""

    metric: Metric

    @property
    def dimension(self) -> int: ...

    def __len__(self) -> int: ...

    def add(self, vectors: ArrayLike) -> None:
        """More vectors, numbered from the last one on. [n, dimension]"""
        ...

    def search(self, queries: ArrayLike, k: int) -> list[Found]:
        """The `k` best of each query. `queries`: [s, dimension]"""
        ...

    def vectors(self, ids: Sequence[int]) -> Vectors:
        """The vectors of these numbers. [len(ids), dimension]"""
        ...

    def write(self, index: Saving) -> Mapping[str, object]:
        """Writes the index's own files; gives the facts that the index is opened by."""
        ...


def checked(vectors: ArrayLike, dimension: int | None = None) -> Vectors:
    """Rows of float32. Raises ValueError for another dimension, no rows of numbers, NaN or infinity."""
    array = np.ascontiguousarray(vectors, dtype=np.float32)
    if array.ndim != 2 or not array.shape[1]:
        raise ValueError(f"vectors must have the shape [n, dimension], got {list(array.shape)}")
    if dimension is not None and array.shape[1] != dimension:
        raise ValueError(f"vectors have {array.shape[1]} dimensions, the index has {dimension}: use the same encoder")
    if not np.isfinite(array).all():
        row = int(np.flatnonzero(~np.isfinite(array).all(axis=1))[0])
        raise ValueError(f"vector {row} holds NaN or infinity")
    return array


def check_metric(metric: Metric) -> Metric:
    """Raises ValueError for a metric that is none."""
    if metric not in ("ip", "l2"):
        raise ValueError(f"metric must be 'ip' or 'l2', got {metric!r}")
    return metric


def read_vectors(index: files.Opened, key: str = "vectors") -> Vectors:
    """The vectors of a file. [n, dimension] Raises files.IndexFileError for what cannot be vectors."""
    numbers, dimension = index.array(key, np.float32), index.manifest.facts["dimension"]
    if not isinstance(dimension, int) or dimension < 1 or not len(numbers) or len(numbers) % dimension:
        raise index.wrong(key, f"{len(numbers)} numbers make no vectors of {dimension!r}")
    if np.abs(numbers).max() > _LARGEST:
        raise index.wrong(key, f"a number above {_LARGEST:.0e}")
    try:
        return checked(numbers.reshape(-1, dimension))
    except ValueError as error:
        raise index.wrong(key, str(error)) from None


def read_metric(index: files.Opened) -> Metric:
    """What the scores of an index are."""
    metric = index.manifest.facts["metric"]
    if metric not in get_args(Metric):
        raise index.wrong("vectors", f"their metric is {metric!r:.40}")
    return cast(Metric, metric)


def exact_scores(query: Vectors, vectors: Vectors, metric: Metric) -> NDArray[np.float64]:
    """Scores in float64, each by itself: a vector has the same score among any others. [n]

    A matrix product is faster and rounds differently for matrices of different shapes.
    """
    wide = query.astype(np.float64)
    if metric == "ip":
        return np.asarray((vectors * wide).sum(axis=1), np.float64)
    return -np.asarray(np.square(vectors - wide).sum(axis=1), np.float64)


def tolerance(query: Vectors, longest: float, metric: Metric) -> float:
    """What scores computed in float32 may be wrong by, twice, for vectors no longer than `longest` (Higham 2002,
    section 3.1): vectors whose float32 scores differ by more are in the right order."""
    length = math.sqrt(float(query @ query))  # in float32: the factor below leaves room for that
    scale = length * longest if metric == "ip" else (length + longest) ** 2
    return 4 * (len(query) + 4) * _ROUNDING * scale


class ExactIndex:
    """All vectors in one matrix; each query is compared with every one."""

    def __init__(self, dimension: int, *, metric: Metric = "ip") -> None:
        self.metric: Metric = check_metric(metric)
        self._matrix: Vectors = np.empty((0, dimension), np.float32)  # with room to grow
        self._count = 0
        self._longest = 0.0

    @property
    def dimension(self) -> int:
        """Of the vectors."""
        return int(self._matrix.shape[1])

    def __len__(self) -> int:
        return self._count

    def add(self, vectors: ArrayLike) -> None:
        """More vectors, numbered from the last one on. [n, dimension]"""
        more = checked(vectors, self.dimension)
        count = self._count + len(more)
        if count > len(self._matrix):
            grown = np.empty((max(count, 2 * self._count), self.dimension), np.float32)
            grown[: self._count] = self._matrix[: self._count]
            self._matrix = grown
        self._matrix[self._count : count] = more
        self._count = count
        self._longest = max(self._longest, longest_of(more))

    def search(self, queries: ArrayLike, k: int) -> list[Found]:
        """The `k` best of each query. `queries`: [s, dimension]

        A matrix product in float32 leaves the few that may be among the best, float64 puts them in order.
        """
        check_k(k)
        rows = checked(queries, self.dimension)
        tolerances = [tolerance(row, self._longest, self.metric) for row in rows]
        candidates: list[list[NDArray[np.int64]]] = [[] for _ in rows]
        for start in range(0, self._count, _BLOCK):
            block = self._matrix[start : min(start + _BLOCK, self._count)]
            scores = rows @ block.T
            if self.metric == "l2":  # without the query's own length, which changes no order
                scores = 2 * scores - np.square(block).sum(axis=1)
            for row, tolerated in enumerate(tolerances):
                candidates[row].append(start + _within(scores[row], k, tolerated))
        return [
            self._best(row, np.concatenate(ids), k) if ids else _NONE for row, ids in zip(rows, candidates, strict=True)
        ]

    def vectors(self, ids: Sequence[int]) -> Vectors:
        """The vectors of these numbers. [len(ids), dimension]"""
        return self._matrix[check_ids(ids, self._count)]

    def write(self, index: Saving) -> Mapping[str, object]:
        """Writes the matrix."""
        index.array("vectors", self._matrix[: self._count])
        return {"index": "exact", "metric": self.metric, "dimension": self.dimension}

    @classmethod
    def read(cls, index: files.Opened) -> ExactIndex:
        """The vectors of an index whose facts have been checked."""
        vectors = read_vectors(index)
        made = cls(vectors.shape[1], metric=read_metric(index))
        made.add(vectors)
        return made

    def _best(self, query: Vectors, ids: NDArray[np.int64], k: int) -> Found:
        scores = exact_scores(query, self._matrix[ids], self.metric)
        order = best(scores, k)  # ids ascend, so equal scores stay in their order
        return ids[order], scores[order]


_NONE: Found = (np.empty(0, np.int64), np.empty(0, np.float64))


def longest_of(vectors: Vectors) -> float:
    """The length of the longest vector."""
    return float(np.sqrt(np.square(vectors.astype(np.float64)).sum(axis=1).max(initial=0.0)))


def _within(scores: Vectors, k: int, tolerated: float) -> NDArray[np.int64]:
    """The indices of the `k` highest scores and of all that may be as high."""
    if len(scores) <= k:
        return np.arange(len(scores))
    least = np.partition(scores, len(scores) - k)[len(scores) - k]
    return np.flatnonzero(scores >= least - tolerated)
