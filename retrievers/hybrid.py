"""Hybrid retrieval: the rankings of several retrievers, fused (reciprocal rank fusion, Cormack et al. 2009)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from . import bm25, dense, files
from .base import DEFAULT_K, Folder, Hit, Retriever, best, check_ids, check_k, check_query, check_texts
from .bm25 import BM25Retriever
from .dense import DenseRetriever, Encode
from .saving import Saving, saving
from .terms import Split

KIND = "hybrid"

RANK_CONSTANT = 60.0
"""Of Cormack et al.'s formula, 1 / (RANK_CONSTANT + rank): what all who use it took over."""

DEPTH = 100
"""Places of each ranking that count: behind it a share is below half of the first one's, and the order is noise."""


class HybridRetriever:
    """Ranks texts by the sum of 1 / (60 + rank) over the rankings of several retrievers of the same texts.

    Words find names and rare terms, vectors what is said in other words; ranks need no common scale of scores. The
    first `depth` places of each ranking count. On disk a hybrid is one BM25 and one dense retriever.
    """

    def __init__(self, retrievers: Sequence[Retriever], *, depth: int = DEPTH, weights: Sequence[float] = ()) -> None:
        """Raises ValueError for fewer than two retrievers, other texts in one of them, or another number of weights."""
        self._retrievers = tuple(retrievers)
        if len(self._retrievers) < 2:
            raise ValueError(f"retrievers must be at least two, got {len(self._retrievers)}")
        first = list(self._retrievers[0].texts)
        for number, each in enumerate(self._retrievers[1:], start=1):
            if list(each.texts) != first:
                raise ValueError(
                    f"retrievers[{number}] holds other texts than retrievers[0]: make both of the same list"
                )
        self._depth = check_k(depth, "depth")
        self._weights = tuple(weights) or (1.0,) * len(self._retrievers)
        if len(self._weights) != len(self._retrievers):
            raise ValueError(f"weights holds {len(self._weights)} numbers for {len(self._retrievers)} retrievers")

    @property
    def retrievers(self) -> tuple[Retriever, ...]:
        """Those whose rankings are fused."""
        return self._retrievers

    @property
    def texts(self) -> Sequence[str]:
        """The texts; a hit's id is an index into them."""
        return self._retrievers[0].texts

    def __len__(self) -> int:
        return len(self._retrievers[0])

    def search(self, query: str, k: int = DEFAULT_K) -> list[Hit]:
        """At most `k` hits, best first; equal scores in the order of the texts. Raises ValueError for k < 1."""
        return self.search_batch([check_query(query)], k)[0]

    def search_batch(self, queries: Sequence[str], k: int = DEFAULT_K) -> list[list[Hit]]:
        """`search` for each query, in one search of each retriever."""
        wanted, texts = check_k(k), self.texts
        found = []
        for scored in self._fused(check_texts(queries, "queries"), max(wanted, self._depth)):
            ids = np.array(sorted(scored), np.int64)
            order = best(np.array([scored[int(each)] for each in ids]), wanted)
            found.append([Hit(int(i), scored[int(i)], texts[int(i)]) for i in ids[order]])
        return found

    def score(self, query: str, ids: Sequence[int]) -> NDArray[np.float64]:
        """The scores of these texts, zero for those in no ranking. [len(ids)]"""
        wanted = check_ids(ids, len(self))
        (scored,) = self._fused([check_query(query)], self._depth)
        return np.array([scored.get(int(each), 0.0) for each in wanted])

    def _fused(self, queries: list[str], depth: int) -> list[dict[int, float]]:
        scores: list[dict[int, float]] = [{} for _ in queries]
        for retriever, weight in zip(self._retrievers, self._weights, strict=True):
            for scored, hits in zip(scores, retriever.search_batch(queries, depth), strict=True):
                for place, hit in enumerate(hits[: self._depth], start=1):
                    scored[hit.id] = scored.get(hit.id, 0.0) + weight / (RANK_CONSTANT + place)
        return scores

    def add(self, texts: Sequence[str], contexts: Sequence[str] | None = None) -> None:
        """More texts; their ids go on from the last one. `contexts`: for retrievers of this package alone."""
        more = check_texts(texts)
        for each in self._retrievers:
            if contexts is None:
                each.add(more)
            else:
                each.add(more, contexts)  # type: ignore[call-arg]  # of a protocol that has none

    def save(self, folder: Folder) -> None:
        """Writes both indexes into `folder` (made where it is missing). Raises TypeError for other retrievers than one
        BM25Retriever and one DenseRetriever, BlockingIOError while another process writes there."""
        with saving(folder) as index:
            self.write(index)

    def write(self, index: Saving) -> None:
        """Writes them beside what belongs to the same index, and puts all of it in force."""
        first, second = (*self._retrievers, None)[:2]
        if not isinstance(first, BM25Retriever) or not isinstance(second, DenseRetriever) or len(self._retrievers) > 2:
            kinds = ", ".join(type(each).__name__ for each in self._retrievers)
            raise TypeError(
                f"a hybrid on disk is a BM25Retriever and a DenseRetriever, got {kinds}; save each by itself"
            )
        made_with, facts = first.write_files(index)
        index.commit(KIND, made_with, {**facts, **second.write_files(index)})

    @classmethod
    def load(cls, folder: Folder, encode: Encode, *, split: Split | None = None) -> HybridRetriever:
        """The retriever that `save` wrote, with the same encoder. Raises files.IndexFileError for damaged files or
        an encoder that makes other vectors."""
        with files.opened(folder, KIND) as index:
            return cls.read(index, encode, split=split)

    @classmethod
    def read(cls, index: files.Opened, encode: Encode, *, split: Split | None = None) -> HybridRetriever:
        """The retriever of an index whose files are open."""
        by_words, by_vectors = parts(index)
        return cls([BM25Retriever.read(by_words, split=split), DenseRetriever.read(by_vectors, encode)])


def parts(index: files.Opened) -> tuple[files.Opened, files.Opened]:
    """The two indexes of a hybrid one. Raises files.IndexFileError where something belongs to neither."""
    manifest = index.manifest
    words, vectors = (bm25.FILES, bm25.fact_types(manifest)), (dense.file_names(manifest), dense.fact_types(manifest))
    files.check_keys(index.folder, manifest, (*words[0], *vectors[0]), files.EXTRAS)
    files.check_facts(index.folder, manifest, {**words[1], **vectors[1]})
    return index.part(*words), index.part(*vectors)
