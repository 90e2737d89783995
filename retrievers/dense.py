"""Dense retrieval: finds texts whose embedding vectors are near the query's."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from copyspec.common.checks import check_type

from . import files
from .base import ADD_LOCK, DEFAULT_K, Folder, Hit, check_k, check_query, check_texts, in_context
from .faiss_index import FaissIndex, FaissOptions
from .places import SavedRetriever
from .saving import Saving
from .shortlist import Shortlist, VectorShortlist
from .vectors import (
    VECTORS,
    ExactIndex,
    Metric,
    VectorIndex,
    Vectors,
    checked,
    exact_scores,
    read_vectors,
)

KIND = "dense"

Encode = Callable[[list[str]], ArrayLike]
"""Encodes texts into vectors: [n, dimension]."""

_FACTS: dict[str, tuple[type, ...]] = {
    "texts": (int,),
    "index": (str,),
    "metric": (str,),
    "dimension": (int,),
    "encoder": (dict, type(None)),
}
"""The facts of every dense index, with their types."""

_KEPT_QUERIES = 256  # cached query vectors: a speculative retriever guesses for a query first and verifies it later
_PROBE = "The quick brown fox jumps over the lazy dog."  # its vector identifies the encoder
_SAME = 0.02  # tolerated relative change of that vector, as devices and precisions round differently


class DenseRetriever(SavedRetriever):
    """Finds the texts whose vectors have the highest scores with the query's: inner products, or with `metric="l2"`
    negative squared distances. For cosine similarity use an encoder that normalises.

    `encode`: encodes all texts in one call, and each query in a call of its own, because encoders round differently in
    batches and results must not depend on the batch. `encode_query`: encodes queries, if that differs; default: the
    method `encode_query` of `encode`, else `encode`. `contexts`: encoded in front of the texts without being part of
    them, such as a title or headings. `index`: makes the vector index from the dimension; default: ExactIndex (NumPy).
    """

    kind = KIND

    def __init__(
        self,
        texts: Sequence[str],
        encode: Encode,
        *,
        encode_query: Encode | None = None,
        metric: Metric = "ip",
        index: Callable[[int], VectorIndex] | None = None,
        contexts: Sequence[str] | None = None,
    ) -> None:
        _check_encode(encode)
        self._texts = check_texts(texts)
        if not self._texts:
            raise ValueError("texts is empty: give at least one, more can be added later")
        vectors = checked(encode(in_context(self._texts, contexts)))
        self._check_count(vectors, self._texts)
        dimension = vectors.shape[1]
        self._set_up(encode, encode_query, index(dimension) if index else ExactIndex(dimension, metric=metric))
        self._index.add(vectors)

    def _set_up(self, encode: Encode, encode_query: Encode | None, index: VectorIndex) -> None:
        self._encode, self._index = encode, index
        own: Encode = getattr(encode, "encode_query", encode)
        encoded = self._encode_query = encode_query or own
        dimension = index.dimension

        @lru_cache(_KEPT_QUERIES)  # the cache of a method would keep the retriever and its index in a cycle
        def vector(query: str) -> Vectors:
            made: Vectors = checked(encoded([query]), dimension)[0]
            return made

        self._vector = vector

    @property
    def texts(self) -> Sequence[str]:
        """The texts; a hit's id is an index into them."""
        return self._texts

    @property
    def index(self) -> VectorIndex:
        """The index of the vectors."""
        return self._index

    def search_batch(self, queries: Sequence[str], k: int = DEFAULT_K) -> list[list[Hit]]:
        """Return the results of `search` for each query, with one search of the index."""
        wanted = check_k(k)
        vectors = [self.query_vector(query) for query in check_texts(queries, "queries")]
        if not vectors:
            return []
        results = self._index.search(np.stack(vectors), wanted)
        return [
            [Hit(i, score, self._texts[i]) for i, score in zip(ids.tolist(), scores.tolist(), strict=True)]
            for ids, scores in results
        ]

    def score(self, query: str, ids: Sequence[int]) -> NDArray[np.float64]:
        """Return the scores of the texts `ids`. [len(ids)]"""
        return exact_scores(self.query_vector(query), self._index.vectors(ids), self._index.metric)

    def shortlist(self) -> Shortlist:
        """Make an empty shortlist, which ranks the texts put into it by this retriever's scores."""
        return VectorShortlist(self._index, self.query_vector)

    def query_vector(self, query: str) -> Vectors:
        """Return the query's vector, cached for the last queries. [dimension]"""
        return self._vector(check_query(query))

    def add(self, texts: Sequence[str], contexts: Sequence[str] | None = None) -> None:
        """Add texts with their contexts; their ids continue from the last one."""
        if more := check_texts(texts):
            self.append(more, self.encoded(more, contexts))

    def encoded(self, texts: list[str], contexts: Sequence[str] | None = None) -> NDArray[np.float32]:
        """Return the vectors of texts with their contexts. [n, D]"""
        vectors = checked(self._encode(in_context(texts, contexts)), self._index.dimension)
        self._check_count(vectors, texts)
        return vectors

    def append(self, texts: list[str], vectors: NDArray[np.float32]) -> None:
        """Add texts and their vectors, [n, D], from `encoded`."""
        with ADD_LOCK:
            before = self._texts
            self._texts = [*before, *texts]  # first: a search in another thread may find the new vectors at once
            try:
                self._index.add(vectors)
            except BaseException:
                self._texts = before
                raise

    def rebuilt(self, texts: Sequence[str], contexts: Sequence[str], kept: Sequence[int | None]) -> DenseRetriever:
        """Make a retriever of other texts with an index of the same kind.

        `kept`: for each text its id here, whose vector is reused, or None."""
        old_index = self._index
        index: VectorIndex = (
            FaissIndex(old_index.dimension, metric=old_index.metric, options=old_index.options)
            if isinstance(old_index, FaissIndex)
            else ExactIndex(old_index.dimension, metric=old_index.metric)
        )
        made = DenseRetriever.__new__(DenseRetriever)
        made._set_up(self._encode, self._encode_query, index)
        made._texts = check_texts(texts)
        vectors = np.empty((len(made._texts), index.dimension), np.float32)
        pairs = [(place, number) for place, number in enumerate(kept) if number is not None]
        if pairs:
            vectors[[place for place, _ in pairs]] = self._index.vectors([number for _, number in pairs])
        new = [place for place, number in enumerate(kept) if number is None]
        if new:
            encoded_texts = in_context(made._texts, contexts)
            vectors[new] = checked(self._encode([encoded_texts[place] for place in new]), index.dimension)
        index.add(vectors)
        return made

    def write_files(self, index: Saving) -> tuple[str, dict[str, object]]:
        """Write the files. Returns an empty fingerprint, and the facts for the manifest."""
        facts = self._index.write(index)
        index.strings("texts", self._texts)
        index.array("probe", self.query_vector(_PROBE))
        return "", {**facts, **self._facts()}

    @classmethod
    def load(cls, folder: Folder, encode: Encode, *, encode_query: Encode | None = None) -> DenseRetriever:
        """Load what `save` wrote, with the same encoder. Raises files.IndexFileError for damaged files or an encoder
        that makes other vectors."""
        with files.opened(folder, KIND) as index:
            return cls.read(index, encode, encode_query=encode_query)

    @classmethod
    def read(cls, index: files.Opened, encode: Encode, *, encode_query: Encode | None = None) -> DenseRetriever:
        """Read the retriever from an opened index."""
        _check_encode(encode)
        read_facts(index)
        retriever = cls.__new__(cls)
        by_faiss = index.manifest.facts["index"] == "faiss"
        vectors: VectorIndex = FaissIndex.read(index) if by_faiss else ExactIndex.read(index)
        retriever._set_up(encode, encode_query, vectors)
        retriever._texts = index.strings("texts")
        if not len(vectors) == len(retriever._texts) == index.manifest.facts["texts"]:
            raise index.wrong("texts", f"{len(retriever._texts)} texts for {len(vectors)} vectors")
        (written, *more) = read_vectors(index, "probe")
        if more:
            raise index.wrong("probe", f"{1 + len(more)} vectors, not one")
        probe = checked(retriever._encode_query([_PROBE]))[0]
        if probe.shape != written.shape or not np.linalg.norm(probe - written) <= _SAME * np.linalg.norm(written):
            raise files.IndexFileError(
                f"the index in {str(index.folder)!r} was made with another encoder ({len(written)} dimensions, this "
                f"one makes {len(probe)}): load it with that one or build it again"
            )
        return retriever

    def _facts(self) -> dict[str, object]:
        """The facts of the texts and the encoder, which is None if it has no name."""
        named = {name: getattr(self._encode, name, None) for name in ("name", "prefix")}
        made_by = {name: value if isinstance(value, str) else None for name, value in named.items()}
        return {"texts": len(self), "encoder": made_by if made_by["name"] else None}

    def _check_count(self, vectors: Vectors, texts: Sequence[str]) -> None:
        if len(vectors) != len(texts):
            raise ValueError(f"encode made {len(vectors)} vectors of {len(texts)} texts; it must make one of each")


def _check_encode(encode: object) -> None:
    hint = f", such as HuggingFaceEmbedder({encode!r})" if isinstance(encode, (str, os.PathLike)) else ""
    check_type(callable(encode), "encode", encode, f"a function from a list of texts to vectors{hint}")


def read_facts(index: files.Opened) -> Mapping[str, object]:
    """Return the checked facts of a dense index. Raises files.IndexFileError for invalid ones."""
    manifest = index.manifest
    index.check_keys(file_names(manifest))
    facts = index.check_facts(fact_types(manifest))
    encoder = facts["encoder"]
    if facts["index"] not in ("exact", "faiss") or not (encoder is None or _names_an_encoder(encoder)):
        raise index.wrong("vectors", f"index {facts['index']!r:.40}, encoder {encoder!r:.80}")
    return facts


def file_names(manifest: files.Manifest) -> tuple[str, ...]:
    """Return the keys of the files that a dense index with this manifest must have."""
    by_faiss = manifest.facts.get("index") == "faiss"
    return ("texts", "probe", *(FaissIndex.files_of(manifest) if by_faiss else VECTORS))


def fact_types(manifest: files.Manifest) -> dict[str, tuple[type, ...]]:
    """Return the names and types of the facts that it must have."""
    return {**_FACTS, "options": (dict,), "entry": (int,)} if manifest.facts.get("index") == "faiss" else _FACTS


def _names_an_encoder(encoder: object) -> bool:
    return (
        isinstance(encoder, dict)
        and set(encoder) == {"name", "prefix"}
        and isinstance(encoder["name"], str)
        and isinstance(encoder["prefix"], (str, type(None)))
    )


class FaissRetriever(DenseRetriever):
    """Dense retrieval with FAISS (needs the extra copyspec[gpu] or copyspec[cpu])."""

    def __init__(
        self,
        texts: Sequence[str],
        encode: Encode,
        *,
        encode_query: Encode | None = None,
        metric: Metric = "ip",
        options: FaissOptions | None = None,
        contexts: Sequence[str] | None = None,
    ) -> None:
        def index(dimension: int) -> FaissIndex:
            return FaissIndex(dimension, metric=metric, options=options)

        super().__init__(texts, encode, encode_query=encode_query, index=index, contexts=contexts)
