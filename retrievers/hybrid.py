"""Hybrid retrieval: the rankings of several retrievers, fused (reciprocal rank fusion, Cormack et al. 2009)."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from copyspec.common.checks import check_number, check_retriever, check_type, plain_value

from . import bm25, dense, files
from .base import ADD_LOCK, DEFAULT_K, Folder, Hit, Retriever, best, check_ids, check_k, check_query, check_texts
from .bm25 import BM25Retriever
from .dense import DenseRetriever, Encode
from .places import SavedRetriever
from .saving import Saving
from .terms import Split

KIND = "hybrid"

RANK_CONSTANT = 60.0
"""The constant of 1 / (RANK_CONSTANT + rank), at the customary value of Cormack et al."""

DEPTH = 100
"""Ranks of each retriever that count. Later ones would add less than half of what the first adds, in noisy order."""


class HybridRetriever(SavedRetriever):
    """Ranks texts by the sum of 1 / (60 + rank) over the rankings of several retrievers of the same texts.

    Word search finds names and rare terms, vector search finds paraphrases; ranks need no common scale of scores. The
    first `depth` ranks of each retriever count, but not those of texts that share no word with the query. A saved
    hybrid consists of one BM25 and one dense retriever.
    """

    kind = KIND

    def __init__(self, retrievers: Sequence[Retriever], *, depth: int = DEPTH, weights: Sequence[float] = ()) -> None:
        """Raises ValueError for fewer than two retrievers, if their texts differ, or for another number of weights;
        TypeError for anything but retrievers and numbers."""
        listed = isinstance(retrievers, Iterable) and not isinstance(retrievers, str)
        check_type(listed, "retrievers", retrievers, "a list of retrievers")
        self._retrievers = tuple(retrievers)
        for number, retriever in enumerate(self._retrievers):
            check_retriever(f"retrievers[{number}]", retriever)
        if len(self._retrievers) < 2:
            raise ValueError(f"retrievers must be at least two, got {len(self._retrievers)}")
        first = list(self._retrievers[0].texts)
        for number, retriever in enumerate(self._retrievers[1:], start=1):
            if list(retriever.texts) != first:
                raise ValueError(
                    f"retrievers[{number}] holds other texts than retrievers[0]: make both of the same list"
                )
        self._depth = check_k(depth, "depth")
        self._weights = _checked(weights) or (1.0,) * len(self._retrievers)
        if len(self._weights) != len(self._retrievers):
            raise ValueError(f"weights holds {len(self._weights)} numbers for {len(self._retrievers)} retrievers")

    @property
    def retrievers(self) -> tuple[Retriever, ...]:
        """The retrievers whose rankings are fused."""
        return self._retrievers

    @property
    def depth(self) -> int:
        """How many ranks of each retriever count."""
        return self._depth

    @property
    def weights(self) -> tuple[float, ...]:
        """The weight of each retriever's ranks."""
        return self._weights

    @property
    def texts(self) -> Sequence[str]:
        """The texts; a hit's id is an index into them."""
        return self._retrievers[0].texts

    def search_batch(self, queries: Sequence[str], k: int = DEFAULT_K) -> list[list[Hit]]:
        """Return the results of `search` for each query, with one batched search per retriever."""
        wanted, results = check_k(k), []
        for fused in self._fused(check_texts(queries, "queries")):
            hits = [fused[i] for i in sorted(fused)]
            results.append([hits[i] for i in best(np.array([hit.score for hit in hits]), wanted)])
        return results

    def score(self, query: str, ids: Sequence[int]) -> NDArray[np.float64]:
        """Return the scores of the texts `ids`, zero for texts that no retriever ranks. [len(ids)]"""
        wanted = check_ids(ids, len(self))
        (fused,) = self._fused([check_query(query)])
        return np.array([fused[i].score if i in fused else 0.0 for i in wanted.tolist()])

    def _fused(self, queries: list[str]) -> list[dict[int, Hit]]:
        """The hits of each query by id, with their fused scores."""
        by_query: list[dict[int, Hit]] = [{} for _ in queries]
        for retriever, weight in zip(self._retrievers, self._weights, strict=True):
            no_match = getattr(retriever, "no_match", None)
            for fused, hits in zip(by_query, retriever.search_batch(queries, self._depth), strict=True):
                for place, hit in enumerate(hits, start=1):
                    before = fused[hit.id].score if hit.id in fused else 0.0
                    # The ranks of texts that do not match only say in which order the texts were added.
                    gain = weight / (RANK_CONSTANT + place) if hit.score != no_match else 0.0
                    fused[hit.id] = replace(hit, score=before + gain)
        return by_query

    def add(self, texts: Sequence[str], contexts: Sequence[str] | None = None) -> None:
        """Add texts; their ids continue from the last one. `contexts`: only for retrievers of this package. Raises
        RuntimeError if the retrievers hold different numbers of texts."""
        more = check_texts(texts)
        self._check_lengths()
        if not more:
            return
        # Encoders first, without the lock: they are slow, and if one fails, none of the retrievers has the texts.
        dense = [retriever for retriever in self._retrievers if isinstance(retriever, DenseRetriever)]
        vectors = [retriever.encoded(more, contexts) for retriever in dense]
        with ADD_LOCK:
            self._check_lengths()
            for retriever, encoded in zip(dense, vectors, strict=True):
                retriever.append(more, encoded)
            for other in self._retrievers:
                if isinstance(other, DenseRetriever):
                    continue
                if contexts is None:
                    other.add(more)
                else:
                    other.add(more, contexts)  # type: ignore[call-arg]  # the protocol has no contexts

    def _check_lengths(self) -> None:
        lengths = [len(retriever) for retriever in self._retrievers]
        if len({*lengths}) > 1:
            raise RuntimeError(
                f"the retrievers hold {' and '.join(map(str, lengths))} texts: an addition reached only some of them; "
                "make them again from the same texts"
            )

    def write_files(self, index: Saving) -> tuple[str, dict[str, object]]:
        """Write the files of both. Raises TypeError unless the retrievers are a BM25Retriever and a DenseRetriever."""
        first, second = (*self._retrievers, None)[:2]
        if not isinstance(first, BM25Retriever) or not isinstance(second, DenseRetriever) or len(self._retrievers) > 2:
            kinds = ", ".join(type(retriever).__name__ for retriever in self._retrievers)
            raise TypeError(
                f"a hybrid on disk is a BM25Retriever and a DenseRetriever, got {kinds}; save each by itself"
            )
        self._check_lengths()
        made_with, facts = first.write_files(index)
        facts |= second.write_files(index)[1]
        if self._depth != DEPTH or set(self._weights) != {1.0}:
            facts |= {"depth": self._depth, "weights": list(self._weights)}
        return made_with, facts

    @classmethod
    def load(cls, folder: Folder, encode: Encode, *, split: Split | None = None) -> HybridRetriever:
        """Load what `save` wrote, with the same encoder. Raises files.IndexFileError for damaged files or an encoder
        that makes other vectors."""
        with files.opened(folder, KIND) as index:
            return cls.read(index, encode, split=split)

    @classmethod
    def read(cls, index: files.Opened, encode: Encode, *, split: Split | None = None) -> HybridRetriever:
        """Read the retriever from an opened index."""
        by_words, by_vectors = parts(index)
        facts = index.manifest.facts
        retrievers = [BM25Retriever.read(by_words, split=split), DenseRetriever.read(by_vectors, encode)]
        try:
            return cls(retrievers, depth=facts.get("depth", DEPTH), weights=facts.get("weights", ()))  # type: ignore[arg-type]
        except (TypeError, ValueError) as error:
            raise index.wrong("texts", f"fused with {error}") from None


def _checked(weights: Sequence[float]) -> tuple[float, ...]:
    """The weights as numbers. Raises TypeError or ValueError for other values, below 0 or all 0."""
    check_type(isinstance(weights, Iterable) and not isinstance(weights, str), "weights", weights, "a list of numbers")
    checked: list[float] = []
    for number, weight in enumerate(map(plain_value, weights)):
        fits = isinstance(weight, (int, float)) and not isinstance(weight, bool) and abs(weight) <= sys.float_info.max
        check_type(fits, f"weights[{number}]", weight, "a finite number")
        assert isinstance(weight, (int, float))
        check_number(f"weights[{number}]", weight, low=0.0)
        checked.append(weight)
    if checked and not any(checked):
        raise ValueError(f"weights={checked} are all 0; give one retriever at least a weight")
    return tuple(checked)


def parts(index: files.Opened) -> tuple[files.Opened, files.Opened]:
    """Split a hybrid index into its two indexes. Raises files.IndexFileError for files that belong to neither."""
    manifest = index.manifest
    words, vectors = (bm25.FILES, bm25.fact_types(manifest)), (dense.file_names(manifest), dense.fact_types(manifest))
    index.check_keys((*words[0], *vectors[0]))
    own: dict[str, tuple[type, ...]] = {"depth": (int,), "weights": (list,)} if "weights" in manifest.facts else {}
    index.check_facts({**words[1], **vectors[1], **own})
    return index.part(*words), index.part(*vectors)
