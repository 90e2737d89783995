"""Vector search with FAISS: flat, HNSW or IVF indexes, on a GPU if the installed build finds one."""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from importlib import import_module
from typing import Literal, Protocol, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from copyspec.common.extras import install
from copyspec.common.forks import fork_safe

from . import files
from .base import best, check_ids, check_k
from .saving import Saving
from .vectors import (
    Found,
    Metric,
    Vectors,
    check_metric,
    checked,
    exact_scores,
    longest_of,
    read_metric,
    read_vectors,
    tolerance,
)

_EXTRA = 8  # neighbours requested beyond k, because float32 may order the last ones wrongly
_SERIAL = 16  # IVF queries per call: from 20 on, FAISS selects lists by a matrix product that rounds differently
_PER_LIST = 39  # least number of training vectors per list, as FAISS recommends
_SEED = 1234
_MOST = 1 << 16  # upper limit of every option, because FAISS allocates that many candidates, links or lists
_SEARCHES = 16  # that may run at once; an addition waits for all of them, as FAISS moves the vectors that they read


@dataclass(frozen=True, slots=True)
class FaissOptions:
    """Options of a FAISS index."""

    kind: Literal["flat", "hnsw", "ivf"] = "flat"
    gpu: bool | None = None  # None: if there is one; HNSW always runs on the CPU
    neighbours: int = 32  # HNSW: links per vector
    ef_construction: int = 200  # HNSW: candidates kept while building
    ef_search: int = 64  # HNSW: candidates kept while searching; more give better recall and take longer
    lists: int | None = None  # IVF; None: square root of the number of vectors in the first `add`
    probes: int = 16  # IVF: lists searched per query

    def __post_init__(self) -> None:
        if self.kind not in ("flat", "hnsw", "ivf"):
            raise ValueError(f"kind must be 'flat', 'hnsw' or 'ivf', got {self.kind!r}")
        for name in ("neighbours", "ef_construction", "ef_search", "probes", "lists"):
            value = getattr(self, name)
            if value is not None and not 1 <= value <= _MOST:
                bound = "at least 1" if value < 1 else f"at most {_MOST:,}"
                raise ValueError(f"{name} must be {bound}, got {value!r}")


def _read_options(index: files.Opened) -> FaissOptions:
    """Read the options of an index. A GPU is used if there is one here, wherever the index was made."""
    settings = cast("dict[str, object]", index.manifest.facts["options"])
    try:
        for name, value in settings.items():
            kinds = {"kind": (str,), "gpu": (bool, type(None)), "lists": (int, type(None))}.get(name, (int,))
            if type(value) not in kinds:
                raise ValueError(f"{name} is {value!r:.40}")
        options = FaissOptions(**settings)  # type: ignore[arg-type]
    except (TypeError, ValueError) as error:
        raise index.wrong("vectors", f"options: {error!s:.120}") from None
    return replace(options, gpu=None) if options.gpu else options


class _Index(Protocol):
    """The methods of FAISS's indexes that are used here."""

    ntotal: int
    is_trained: bool
    nprobe: int

    def train(self, vectors: Vectors) -> None: ...
    def add(self, vectors: Vectors) -> None: ...
    def search(self, queries: Vectors, k: int) -> tuple[Vectors, NDArray[np.int64]]: ...
    def reconstruct_batch(self, ids: NDArray[np.int64]) -> Vectors: ...


def load_faiss() -> object:
    """Import FAISS. Raises ImportError, which names the extras that install it."""
    try:
        return import_module("faiss")
    except ImportError as error:
        raise ImportError(
            f"this index needs FAISS: {install('cpu', 'gpu')} (gpu: NVIDIA, Linux x86-64), never both; "
            "DenseRetriever searches without it"
        ) from error


class FaissIndex:
    """A FAISS index whose results are rescored exactly.

    FAISS finds the candidates, and their scores are recomputed in float64. So flat indexes give the same results as
    `ExactIndex`, and the scores of all kinds are comparable. Results do not depend on the batch.
    """

    def __init__(self, dimension: int, *, metric: Metric = "ip", options: FaissOptions | None = None) -> None:
        self.metric: Metric = check_metric(metric)
        self.options = options or FaissOptions()
        self._dimension = dimension
        self._longest = 0.0
        self._index: _Index | None = None  # made with the first vectors, which train the lists
        self._searcher: _Index | None = None  # `_index`, or its copy on a GPU
        self._places = [fork_safe(threading.Lock()) for _ in range(_SEARCHES)]  # a search holds one, an addition all
        self._turns = itertools.count()
        self._faiss = load_faiss()

    @property
    def dimension(self) -> int:
        """Dimension of the vectors."""
        return self._dimension

    def __len__(self) -> int:
        return self._index.ntotal if self._index is not None else 0

    def add(self, vectors: ArrayLike) -> None:
        """Add vectors; their numbers continue from the last one. [n, dimension] The first call trains IVF lists."""
        more = checked(vectors, self._dimension)
        if not len(more):
            return
        with ExitStack() as all_places:
            for place in self._places:
                all_places.enter_context(place)
            index = self._index
            if index is None:
                lists = min(self.options.lists or math.isqrt(len(more)), max(1, len(more) // _PER_LIST))
                index = self._empty(lists)
                if not index.is_trained:
                    index.train(more)
            index.add(more)
            self._longest = max(self._longest, longest_of(more))
            self._index, self._searcher = index, self._placed(index)

    def search(self, queries: ArrayLike, k: int) -> list[Found]:
        """Return the `k` best vectors of each query, as far as the index finds them. `queries`: [s, dimension]"""
        check_k(k)
        rows = checked(queries, self._dimension)
        if self._searcher is None:
            return [(np.empty(0, np.int64), np.empty(0, np.float64)) for _ in rows]
        step = _SERIAL if self.options.kind == "ivf" else max(1, len(rows))
        candidates: list[Found] = []
        with self._place():
            wanted = min(k + _EXTRA, len(self))
            for start in range(0, len(rows), step):
                part = rows[start : start + step]
                _, ids = self._searcher.search(part, wanted)
                candidates += [self._ordered(row, row_ids, k) for row, row_ids in zip(part, ids, strict=True)]
        return candidates

    def vectors(self, ids: Sequence[int]) -> Vectors:
        """Return the vectors with these numbers. [len(ids), dimension]"""
        array = check_ids(ids, len(self))
        if self._index is None or not len(array):
            return np.empty((0, self._dimension), np.float32)
        with self._place():
            return self._index.reconstruct_batch(array)

    def write(self, index: Saving) -> Mapping[str, object]:
        """Write the vectors and the graph or lists. Returns the facts for the manifest."""
        if self._index is None:
            raise ValueError("an index without vectors cannot be saved: add some first")
        with self._place():
            entry = write_index(index, self._faiss, self._index, self.options.kind)
        options = asdict(self.options)
        facts = {"index": "faiss", "metric": self.metric, "dimension": self.dimension}
        return {**facts, "options": options, "entry": entry}

    @staticmethod
    def files_of(manifest: files.Manifest) -> tuple[str, ...]:
        """Return the keys of the files that an index with this manifest has."""
        options = manifest.facts.get("options")
        return FILES.get(str(options.get("kind")) if isinstance(options, dict) else "", FILES["flat"])

    @classmethod
    def read(cls, index: files.Opened) -> FaissIndex:
        """Read the vectors of an opened index whose facts were checked."""
        options, vectors = _read_options(index), read_vectors(index)
        made = cls(vectors.shape[1], metric=read_metric(index), options=options)
        if options.kind == "flat":
            made.add(vectors)
            return made
        rebuilt = _read_graph if options.kind == "hnsw" else _read_lists
        made._index = cast(_Index, rebuilt(index, made._faiss, made._empty, vectors))
        made._longest = longest_of(vectors)
        made._searcher = made._placed(made._index)
        return made

    def _place(self) -> threading.Lock:
        """The lock to hold while vectors are read. On a GPU, FAISS allows one search at a time."""
        is_on_gpu = self._searcher is not self._index
        return self._places[0 if is_on_gpu else next(self._turns) % _SEARCHES]

    def _ordered(self, query: Vectors, ids: NDArray[np.int64], k: int) -> Found:
        """The best of the candidates `ids`. Flat indexes request more until no other vector can be among the best."""
        assert self._index is not None and self._searcher is not None
        while True:
            valid = np.sort(ids[ids >= 0])  # -1 stands for missing results of HNSW and IVF
            scores = exact_scores(query, self._index.reconstruct_batch(valid), self.metric)
            order = best(scores, k)
            if self.options.kind != "flat" or len(valid) == len(self):
                return valid[order], scores[order]
            if len(scores) and scores.min() < scores[order[-1]] - tolerance(query, self._longest, self.metric):
                return valid[order], scores[order]
            ids = self._searcher.search(query[None], min(2 * len(ids), len(self)))[1][0]

    def _empty(self, lists: int = 0) -> _Index:
        """An index without vectors, of this many lists (IVF)."""
        options = self.options
        metric = getattr(self._faiss, "METRIC_L2" if self.metric == "l2" else "METRIC_INNER_PRODUCT")
        if options.kind == "hnsw":
            graph = self._call("IndexHNSWFlat", self._dimension, options.neighbours, metric)
            graph.hnsw.efConstruction, graph.hnsw.efSearch = options.ef_construction, options.ef_search
            return cast(_Index, graph)
        flat = self._call("IndexFlat", self._dimension, metric)
        if options.kind == "flat":
            return cast(_Index, flat)
        inverted = self._call("IndexIVFFlat", flat, self._dimension, lists, metric)
        inverted.own_fields = True
        flat.this.disown()
        inverted.cp.seed, inverted.nprobe = _SEED, min(options.probes, lists)
        inverted.set_direct_map_type(self._faiss.DirectMap.Array)  # type: ignore[attr-defined]
        return cast(_Index, inverted)

    def _placed(self, index: _Index) -> _Index:
        """`index`, or its copy on a GPU if one is to be used."""
        wanted = self.options.gpu
        count: int = self._call("get_num_gpus")
        if wanted and not count:
            raise ValueError(f"gpu=True, but FAISS finds no GPU; on a machine that has one: {install('gpu')}")
        if wanted is False or not count or self.options.kind == "hnsw":
            return index
        copy = self._call("index_cpu_to_gpu", self._call("StandardGpuResources"), 0, index)
        if self.options.kind == "ivf":
            copy.nprobe = index.nprobe
        return cast(_Index, copy)

    def _call(self, name: str, *arguments: object):  # type: ignore[no-untyped-def]
        """Call a FAISS function or class by name: only some builds have type annotations."""
        return getattr(self._faiss, name)(*arguments)


FILES = {"flat": ("vectors",), "hnsw": ("vectors", "levels", "links"), "ivf": ("vectors", "centres", "lists")}
"""Files by kind of index. `levels`: each vector's number of levels in the graph, [n]. `links`: each vector's neighbours
on each of its levels, lowest first, padded with -1. `centres`: of the lists, [lists, dimension]. `lists`: the list of
each vector, [n]."""


def write_index(saved: Saving, faiss, index, kind: str) -> int:  # type: ignore[no-untyped-def]
    """Write the files. Returns the number of the graph's entry vector, 0 for other kinds."""
    saved.array("vectors", index.reconstruct_n(0, index.ntotal))
    if kind == "hnsw":
        saved.array("levels", faiss.vector_to_array(index.hnsw.levels).astype(np.uint8))
        saved.array("links", faiss.vector_to_array(index.hnsw.neighbors).astype(np.int32))
        return int(index.hnsw.entry_point)
    if kind == "ivf":
        saved.array("centres", index.quantizer.reconstruct_n(0, index.nlist))
        saved.array("lists", (faiss.vector_to_array(index.direct_map.array) >> 32).astype(np.uint32))
    return 0


def _read_graph(opened: files.Opened, faiss, empty, vectors: Vectors):  # type: ignore[no-untyped-def]
    levels = opened.array("levels", np.uint8).astype(np.int32)
    links = opened.array("links", np.int32).astype(np.int32, copy=False)
    graph, entry = empty(), cast(int, opened.manifest.facts["entry"])
    starts = faiss.vector_to_array(graph.hnsw.cum_nneighbor_per_level).astype(np.int64)  # of a level among the links
    if len(levels) != len(vectors) or not 1 <= levels.min() <= levels.max() < len(starts):
        raise opened.wrong("levels", f"{len(levels)} levels of {len(vectors)} vectors, of 1 to {len(starts) - 1}")
    room = starts[levels]
    if room.sum() != len(links):
        raise opened.wrong("links", f"{len(links)} links, not {room.sum()}")
    if not 0 <= entry < len(levels) or levels[entry] != levels.max():
        raise opened.wrong("levels", f"vector {entry} is not on the highest level")
    within = np.arange(len(links)) - np.repeat(np.cumsum(room) - room, room)
    _check_links(opened, levels, links, np.searchsorted(starts, within, "right") - 1)
    graph.storage.add(vectors)
    graph.ntotal = len(vectors)
    faiss.copy_array_to_vector(levels, graph.hnsw.levels)
    faiss.copy_array_to_vector(np.concatenate([[0], np.cumsum(room)]).astype(np.uint64), graph.hnsw.offsets)
    faiss.copy_array_to_vector(links, graph.hnsw.neighbors)
    graph.hnsw.entry_point, graph.hnsw.max_level = entry, int(levels.max()) - 1
    return graph


def _check_links(
    opened: files.Opened, levels: NDArray[np.int32], links: NDArray[np.int32], level: NDArray[np.int64]
) -> None:
    """Check that each link leads to a vector on the same level, else a search would read past that vector's links.

    `level`: the level of each link."""
    if links.min(initial=0) < -1 or links.max(initial=0) >= len(levels):
        raise opened.wrong("links", f"a link to none of the {len(levels)} vectors")
    if (levels[links[links >= 0]] <= level[links >= 0]).any():
        raise opened.wrong("links", "a link to a vector on a lower level")


def _read_lists(opened: files.Opened, faiss, empty, vectors: Vectors):  # type: ignore[no-untyped-def]
    centres, lists = read_vectors(opened, "centres"), opened.array("lists", np.uint32).astype(np.int64)
    if len(lists) != len(vectors) or lists.max() >= len(centres):
        raise opened.wrong("lists", f"{len(lists)} numbers of {len(centres)} lists for {len(vectors)} vectors")
    index = empty(len(centres))
    index.quantizer.add(centres)
    index.is_trained = True
    index.add_core(len(vectors), faiss.swig_ptr(vectors), None, faiss.swig_ptr(lists))
    return index
