"""Exact vector search with NumPy, the reference for other vector indexes; and the interface of vector indexes."""

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
"""Scores: inner products, or negative squared distances. Higher is nearer."""

Vectors = NDArray[np.float32]
Found = tuple[NDArray[np.int64], NDArray[np.float64]]
"""Ids and scores of one query, best first, ties by id. [k] each, or fewer if there are fewer vectors."""

_LARGEST = 1e15  # largest component of a vector on disk: sums of larger squares overflow float32
VECTORS = ("vectors",)  # the files of an ExactIndex, by their names in the manifest

_BLOCK = 1 << 15  # vectors scored at once: the scores of 32 queries take 4 MB and stay in the CPU cache
_ROUNDING = 2.0**-24  # relative error of one operation in float32


class VectorIndex(Protocol):
    """A searchable set of numbered vectors. Results do not depend on the other queries of a batch."""

    metric: Metric

    @property
    def dimension(self) -> int: ...

    def __len__(self) -> int: ...

    def add(self, vectors: ArrayLike) -> None:
        """Add vectors; their numbers continue from the last one. [n, dimension]"""

    def search(self, queries: ArrayLike, k: int) -> list[Found]:
        """Return the `k` best vectors of each query. `queries`: [s, dimension]"""

    def vectors(self, ids: Sequence[int]) -> Vectors:
        """Return the vectors with these numbers. [len(ids), dimension]"""

    def write(self, index: Saving) -> Mapping[str, object]:
        """Write the index's files. Returns the facts for the manifest, which `read` needs."""


def checked(vectors: ArrayLike, dimension: int | None = None) -> Vectors:
    """Return vectors as a float32 matrix. Raises ValueError for a wrong shape or dimension, NaN or infinity."""
    if callable(getattr(vectors, "detach", None)):  # a tensor, on any device and in any precision
        vectors = vectors.detach().float().cpu().numpy()  # type: ignore[union-attr]
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
    """Return the metric. Raises ValueError for an unknown one."""
    if metric not in ("ip", "l2"):
        raise ValueError(f"metric must be 'ip' or 'l2', got {metric!r}")
    return metric


def read_vectors(index: files.Opened, key: str = "vectors") -> Vectors:
    """Read the vectors of a file. [n, dimension] Raises files.IndexFileError for invalid ones."""
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
    """Read the metric of an index."""
    metric = index.manifest.facts["metric"]
    if metric not in get_args(Metric):
        raise index.wrong("vectors", f"their metric is {metric!r:.40}")
    return cast(Metric, metric)


def exact_scores(query: Vectors, vectors: Vectors, metric: Metric) -> NDArray[np.float64]:
    """Return float64 scores that do not depend on the other vectors. [n]

    A matrix product would be faster, but its rounding depends on the shape of the matrix.
    """
    wide = query.astype(np.float64)
    if metric == "ip":
        return np.asarray((vectors * wide).sum(axis=1), np.float64)
    return -np.asarray(np.square(vectors - wide).sum(axis=1), np.float64)


def tolerance(query: Vectors, longest: float, metric: Metric) -> float:
    """Return twice the error bound of float32 scores, for vectors of norm up to `longest` (Higham 2002, section 3.1).

    Vectors whose float32 scores differ by more than this are in the right order."""
    length = math.sqrt(float(query @ query))  # in float32, whose error the factor below covers
    scale = length * longest if metric == "ip" else (length + longest) ** 2
    return 4 * (len(query) + 4) * _ROUNDING * scale


class ExactIndex:
    """All vectors in one matrix; each query is compared with every vector."""

    def __init__(self, dimension: int, *, metric: Metric = "ip") -> None:
        self.metric: Metric = check_metric(metric)
        self._matrix: Vectors = np.empty((0, dimension), np.float32)  # with room to grow
        self._count = 0
        self._longest = 0.0

    @property
    def dimension(self) -> int:
        """Dimension of the vectors."""
        return int(self._matrix.shape[1])

    def __len__(self) -> int:
        return self._count

    def add(self, vectors: ArrayLike) -> None:
        """Add vectors; their numbers continue from the last one. [n, dimension]"""
        more = checked(vectors, self.dimension)
        count = self._count + len(more)
        if count > len(self._matrix):
            grown = np.empty((max(count, 2 * self._count), self.dimension), np.float32)
            grown[: self._count] = self._matrix[: self._count]
            self._matrix = grown
        self._matrix[self._count : count] = more
        self._longest = max(self._longest, longest_of(more))
        self._count = count  # last, since another thread may search

    def search(self, queries: ArrayLike, k: int) -> list[Found]:
        """The `k` best of each query. `queries`: [s, dimension]

        A float32 matrix product selects the candidates, and float64 scores put them in order.
        """
        check_k(k)
        rows = checked(queries, self.dimension)
        tolerances = [tolerance(row, self._longest, self.metric) for row in rows]
        candidates: list[list[NDArray[np.int64]]] = [[] for _ in rows]
        for start in range(0, self._count, _BLOCK):
            block = self._matrix[start : min(start + _BLOCK, self._count)]
            scores = rows @ block.T
            if self.metric == "l2":  # the query's own norm does not affect the order
                scores = 2 * scores - np.square(block).sum(axis=1)
            for row, tolerated in enumerate(tolerances):
                candidates[row].append(start + _within(scores[row], k, tolerated))
        return [
            self._best(row, np.concatenate(ids), k) if ids else _NONE for row, ids in zip(rows, candidates, strict=True)
        ]

    def vectors(self, ids: Sequence[int]) -> Vectors:
        """Return the vectors with these numbers. [len(ids), dimension]"""
        return self._matrix[check_ids(ids, self._count)]

    def write(self, index: Saving) -> Mapping[str, object]:
        """Write the matrix. Returns the facts for the manifest."""
        index.array("vectors", self._matrix[: self._count])
        return {"index": "exact", "metric": self.metric, "dimension": self.dimension}

    @classmethod
    def read(cls, index: files.Opened) -> ExactIndex:
        """Read the vectors of an opened index whose facts were checked."""
        vectors = read_vectors(index)
        made = cls(vectors.shape[1], metric=read_metric(index))
        made.add(vectors)
        return made

    def _best(self, query: Vectors, ids: NDArray[np.int64], k: int) -> Found:
        scores = exact_scores(query, self._matrix[ids], self.metric)
        order = best(scores, k)  # ids ascend, so ties stay ordered by id
        return ids[order], scores[order]


_NONE: Found = (np.empty(0, np.int64), np.empty(0, np.float64))


def longest_of(vectors: Vectors) -> float:
    """Return the largest norm of the vectors."""
    return float(np.sqrt(np.square(vectors.astype(np.float64)).sum(axis=1).max(initial=0.0)))


def _within(scores: Vectors, k: int, tolerated: float) -> NDArray[np.int64]:
    """The indices of the `k` highest scores, and of all within `tolerated` of the lowest of these."""
    if len(scores) <= k:
        return np.arange(len(scores))
    least = np.partition(scores, len(scores) - k)[len(scores) - k]
    return np.flatnonzero(scores >= least - tolerated)
