"""The files of a FAISS index: its vectors, and its graph links or inverted lists, as plain arrays.

FAISS's own format is not safe for untrusted files: its C++ reader allocates any size and follows any link. Here the
arrays are checked for consistency before FAISS gets them; the resulting index is the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import numpy as np
from numpy.typing import NDArray

from . import files
from .saving import Saving
from .vectors import Vectors, read_vectors

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


def read_index(  # type: ignore[no-untyped-def]
    opened: files.Opened, faiss, empty: Callable[..., object], vectors: Vectors, kind: str
):
    """Rebuild the FAISS index of these vectors. `empty`: makes one without vectors. Raises files.IndexFileError for a
    graph or lists that do not fit them."""
    return (_read_graph if kind == "hnsw" else _read_lists)(opened, faiss, empty, vectors)


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
