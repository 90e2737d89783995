"""Dense retrieval: texts by the nearness of their vectors to the query's."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from copyspec.forks import at_rest

from . import files
from .base import DEFAULT_K, Folder, Hit, check_k, check_query, check_texts, in_context
from .faiss_index import FaissIndex, FaissOptions
from .saving import Saving, saving
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
"""Makes vectors of texts: [n, dimension]."""

_FACTS: dict[str, tuple[type, ...]] = {
    "texts": (int,),
    "index": (str,),
    "metric": (str,),
    "dimension": (int,),
    "encoder": (dict, type(None)),
}
"""Of every dense index, with their types."""

_KEPT_QUERIES = 256  # vectors of the last queries: a cache asks first and the base verifies the same ones later
_PROBE = "The quick brown fox jumps over the lazy dog."  # its vector is the encoder's fingerprint
_SAME = 0.02  # of its length the probe's vector may move: other devices and precisions round otherwise


class DenseRetriever:
    """Finds the texts whose vectors have the highest scores with the query's: inner products, or with
    `metric="l2"` squared distances with a minus sign. Cosine: use an encoder that normalises.

    `encode` makes the vectors, all texts at once, each query by itself: encoders round differently in batches,
    and a query must find the same in any. `encode_query`, where queries are encoded in another way
    (its own method of this name, if it has one). `contexts` are
    encoded before the texts and are no part of them: a title, the headings above. `index` makes what holds the
    vectors from their dimension; by default an ExactIndex (NumPy).
    """

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
        self._encode_query = encode_query or own
        self._queries: OrderedDict[str, Vectors] = OrderedDict()
        self._lock = at_rest(threading.Lock())  # of the queries: a verifying thread asks while another one drafts

    @property
    def texts(self) -> Sequence[str]:
        """The texts; a hit's id is an index into them."""
        return self._texts

    @property
    def index(self) -> VectorIndex:
        """The vectors."""
        return self._index

    def __len__(self) -> int:
        return len(self._texts)

    def search(self, query: str, k: int = DEFAULT_K) -> list[Hit]:
        """At most `k` hits, best first; equal scores in the order of the texts. Raises ValueError for k < 1."""
        return self.search_batch([check_query(query)], k)[0]

    def search_batch(self, queries: Sequence[str], k: int = DEFAULT_K) -> list[list[Hit]]:
        """`search` for each query, in one search of the index."""
        wanted = check_k(k)
        vectors = [self.query_vector(query) for query in check_texts(queries, "queries")]
        if not vectors:
            return []
        found = self._index.search(np.stack(vectors), wanted)
        return [
            [Hit(i, score, self._texts[i]) for i, score in zip(ids.tolist(), scores.tolist(), strict=True)]
            for ids, scores in found
        ]

    def score(self, query: str, ids: Sequence[int]) -> NDArray[np.float64]:
        """The scores of these texts. [len(ids)]"""
        return exact_scores(self.query_vector(query), self._index.vectors(ids), self._index.metric)

    def shortlist(self) -> Shortlist:
        """An empty one, which some of the texts can be put in and ranked by their scores."""
        return VectorShortlist(self._index, self.query_vector)

    def query_vector(self, query: str) -> Vectors:
        """The query's vector; the last few are remembered. [dimension]"""
        check_query(query)
        with self._lock:
            vector = self._queries.get(query)
            if vector is not None:
                self._queries.move_to_end(query)
                return vector
        made: Vectors = checked(self._encode_query([query]), self._index.dimension)[0]
        with self._lock:
            self._queries[query] = made
            if len(self._queries) > _KEPT_QUERIES:
                self._queries.popitem(last=False)
        return made

    def add(self, texts: Sequence[str], contexts: Sequence[str] | None = None) -> None:
        """More texts, with their contexts; their ids go on from the last one."""
        more = check_texts(texts)
        if more:
            vectors = checked(self._encode(in_context(more, contexts)), self._index.dimension)
            self._check_count(vectors, more)
            self._index.add(vectors)
            self._texts = [*self._texts, *more]

    def rebuilt(self, texts: Sequence[str], contexts: Sequence[str], kept: Sequence[int | None]) -> DenseRetriever:
        """One of other texts in an index of the same kind: those with an id here in `kept` take over its vector."""
        held_by = self._index
        index: VectorIndex = (
            FaissIndex(held_by.dimension, metric=held_by.metric, options=held_by.options)
            if isinstance(held_by, FaissIndex)
            else ExactIndex(held_by.dimension, metric=held_by.metric)
        )
        made = DenseRetriever.__new__(DenseRetriever)
        made._set_up(self._encode, self._encode_query, index)
        made._texts = check_texts(texts)
        vectors = np.empty((len(made._texts), index.dimension), np.float32)
        held = [(place, number) for place, number in enumerate(kept) if number is not None]
        if held:
            vectors[[place for place, _ in held]] = self._index.vectors([number for _, number in held])
        new = [place for place, number in enumerate(kept) if number is None]
        if new:
            shown = in_context(made._texts, contexts)
            vectors[new] = checked(self._encode([shown[place] for place in new]), index.dimension)
        index.add(vectors)
        return made

    def save(self, folder: Folder) -> None:
        """Writes texts and vectors into `folder` (made where it is missing). Raises BlockingIOError while another
        process writes there."""
        with saving(folder) as index:
            self.write(index)

    def write(self, index: Saving) -> None:
        """Writes them beside what belongs to the same index, and puts all of it in force."""
        index.commit(KIND, facts=self.write_files(index))

    def write_files(self, index: Saving) -> dict[str, object]:
        """Writes them; gives the facts of the manifest."""
        facts = self._index.write(index)
        index.strings("texts", self._texts)
        index.array("probe", self.query_vector(_PROBE))
        return {**facts, **self._facts()}

    @classmethod
    def load(cls, folder: Folder, encode: Encode, *, encode_query: Encode | None = None) -> DenseRetriever:
        """The retriever that `save` wrote, with the same encoder. Raises files.IndexFileError for damaged files or
        an encoder that makes other vectors."""
        with files.opened(folder, KIND) as index:
            return cls.read(index, encode, encode_query=encode_query)

    @classmethod
    def read(cls, index: files.Opened, encode: Encode, *, encode_query: Encode | None = None) -> DenseRetriever:
        """The retriever of an index whose files are open."""
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
        """What the index is opened by: the encoder, where it has a name."""
        said = {name: getattr(self._encode, name, None) for name in ("name", "prefix")}
        made_by = {name: value if isinstance(value, str) else None for name, value in said.items()}
        return {"texts": len(self), "encoder": made_by if made_by["name"] else None}

    def _check_count(self, vectors: Vectors, texts: Sequence[str]) -> None:
        if len(vectors) != len(texts):
            raise ValueError(f"encode made {len(vectors)} vectors of {len(texts)} texts; it must make one of each")


def read_facts(index: files.Opened) -> Mapping[str, object]:
    """What a dense index says about itself. Raises files.IndexFileError for what it would not say."""
    manifest = index.manifest
    files.check_keys(index.folder, manifest, file_names(manifest), files.EXTRAS)
    facts = files.check_facts(index.folder, manifest, fact_types(manifest))
    encoder = facts["encoder"]
    if facts["index"] not in ("exact", "faiss") or not (encoder is None or _names_an_encoder(encoder)):
        raise index.wrong("vectors", f"index {facts['index']!r:.40}, encoder {encoder!r:.80}")
    return facts


def file_names(manifest: files.Manifest) -> tuple[str, ...]:
    """The files that an index with this manifest has."""
    by_faiss = manifest.facts.get("index") == "faiss"
    return ("texts", "probe", *(FaissIndex.files_of(manifest) if by_faiss else VECTORS))


def fact_types(manifest: files.Manifest) -> dict[str, tuple[type, ...]]:
    """The facts that it has, with their types."""
    return {**_FACTS, "options": (dict,), "entry": (int,)} if manifest.facts.get("index") == "faiss" else _FACTS


def _names_an_encoder(said: object) -> bool:
    return (
        isinstance(said, dict)
        and set(said) == {"name", "prefix"}
        and isinstance(said["name"], str)
        and isinstance(said["prefix"], (str, type(None)))
    )


class FaissRetriever(DenseRetriever):
    """Dense retrieval through FAISS (the extra copyspec[gpu] or copyspec[cpu])."""

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
