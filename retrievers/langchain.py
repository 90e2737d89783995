"""The retrievers as LangChain retrievers, which take and return LangChain documents."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, cast

try:
    from langchain_core.documents import Document
    from langchain_core.embeddings import Embeddings
    from langchain_core.retrievers import BaseRetriever
except ImportError as error:
    raise ImportError(
        "copyspec.retrievers.langchain needs langchain-core: pip install 'langchain-core>=1.0,<2'"
    ) from error


from pydantic import ConfigDict, Field, field_validator

from copyspec.common.checks import brief, shown

from . import files
from .base import DEFAULT_K, Folder, Hit, Retriever, best, check_k
from .bm25 import BM25Retriever as BM25Search
from .bm25 import Idf
from .corpora import read_retriever
from .dense import Encode, FaissRetriever
from .embedding import HuggingFaceEmbedder
from .places import read_places
from .reranking import RerankingRetriever
from .saving import Written, saving
from .terms import PLAIN, splitter
from .vectors import checked

if TYPE_CHECKING:
    from langchain_core.callbacks import AsyncCallbackManagerForRetrieverRun, CallbackManagerForRetrieverRun
    from typing_extensions import Self

Filter = Mapping[str, object] | Callable[[Document], object]
"""Which documents a search may find: metadata that they must have (for a list, one of its values), or a function that
takes a document and says whether it may be found."""


class DocumentRetriever(BaseRetriever):
    """Any retriever of `copyspec.retrievers` (BM25, dense, speculative and so on) as a LangChain retriever.

        retriever = DocumentRetriever.over(SpeculativeRetriever(base), documents)
        retriever.invoke("When is the library open?", k=2)

    Results keep the id and metadata of the documents (without an id: their index) and get a `score` in the metadata.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True, extra="forbid")

    documents: Sequence[Document] = Field(default=(), repr=False)
    k: int = Field(default=DEFAULT_K, ge=1)
    """Number of documents per search; a call may override it: `invoke(query, k=2)`."""

    filter: Filter | None = Field(default=None, repr=False)
    """Which documents may be found: `filter={"year": 2024}`, `filter={"who": ["all", "staff"]}`, or a function of a
    document. It is applied before the best `k` are taken; a call may override it: `invoke(query, filter=...)`."""

    base_retriever: object = Field(default=None, repr=False, exclude=True)
    """What `base` returns. A field, since LangChain makes a configured runnable anew from its fields."""

    @field_validator("documents", mode="before")
    @classmethod
    def _no_strings(cls, documents: object) -> object:
        if isinstance(documents, str) or (
            isinstance(documents, Sequence) and any(isinstance(d, str) for d in documents)
        ):
            raise ValueError(
                f"documents must be LangChain's Documents; for strings write {cls.__name__}.from_texts(...)"
            )
        return documents

    @classmethod
    def over(
        cls,
        base: Retriever,
        documents: Sequence[Document] | None = None,
        *,
        k: int = DEFAULT_K,
        filter: Filter | None = None,
    ) -> Self:
        """Make a retriever that searches `base`, whose texts are those of `documents`, in the same order.

        Without `documents`, they are made of the texts."""
        if documents is None:
            documents = [Document(page_content=text) for text in base.texts]
        if not isinstance(documents, Sequence):
            documents = list(documents)
        if [document.page_content for document in documents] != list(base.texts):
            raise ValueError(f"documents are not those of the index: {len(documents)} for its {len(base)} texts")
        return cls.model_construct(documents=documents, k=check_k(k), filter=filter, base_retriever=base)

    @classmethod
    def from_documents(cls, documents: Sequence[Document], **options: object) -> Self:
        """Make a retriever of these documents. `options`: of the constructor."""
        return cls(documents=documents, **options)  # type: ignore[arg-type]

    @classmethod
    def from_texts(
        cls,
        texts: Sequence[str],
        metadatas: Sequence[Mapping[str, object]] | None = None,
        *,
        ids: Sequence[str] | None = None,
        **options: object,
    ) -> Self:
        """Make a retriever of these texts, optionally with metadata and an id for each."""
        if isinstance(texts, str):
            raise TypeError(f"texts must be a list of strings, got one string: write [{texts[:20]!r}]")
        for name, values in (("metadatas", metadatas), ("ids", ids)):
            if values is not None and len(values) != len(texts):
                raise ValueError(f"{name} holds {len(values)} entries for {len(texts)} texts; give one for each")
        documents = [
            Document(
                page_content=text,
                metadata=dict(metadatas[index]) if metadatas is not None else {},
                id=ids[index] if ids is not None else None,
            )
            for index, text in enumerate(texts)
        ]
        return cls.from_documents(documents, **options)

    @property
    def base(self) -> Retriever:
        """The underlying retriever of `copyspec.retrievers`."""
        if self.base_retriever is None:
            raise ValueError(f"{type(self).__name__} has nothing to search: make it with over() or from_documents()")
        return cast(Retriever, self.base_retriever)

    def save(self, folder: Folder) -> None:
        """Write index, documents, `k` and `filter` into `folder`, which is created if missing, without pickles. Of a
        filter that is a function it is written that there is one: `load` must be given it.

        Raises TypeError for metadata that JSON cannot represent.
        """
        self._check_documents()
        if not isinstance(self.base, Written):
            raise TypeError(f"a {type(self.base).__name__} has no write() that puts documents beside its own files")
        try:
            rest = [json.dumps([document.id, document.metadata]) for document in self.documents]
            passes = "function" if callable(self.filter) else self.filter
            settings = json.dumps({"k": self.k, "filter": passes}, default=list)  # of a set
        except (TypeError, ValueError, RecursionError) as error:
            raise TypeError(f"metadata must be strings, numbers, lists and dicts to be saved: {error}") from None
        with saving(folder) as index:
            index.strings("documents", rest)
            index.strings("retriever", [settings])
            self.base.write(index)

    @classmethod
    def load(
        cls,
        folder: Folder,
        *,
        k: int | None = None,
        filter: Filter | None = None,
        encode: Encode | Embeddings | str | None = None,
    ) -> Self:
        """Load what `save` wrote, or any index of `copyspec.retrievers`, whose documents get their index as id.
        Passages of `copyspec index` have the metadata `source`, `heading`, `page`, `start` and `end` (in characters).

        `k`, `filter`: by default those that were saved. `encode`: the encoder of a dense index, or its hub id or
        folder. Raises files.IndexFileError for damaged files, and ValueError if a function was the filter and none is
        given: without it, documents would be found that it left out.
        """
        with files.opened(folder) as index:
            encoder = encode if encode is None or isinstance(encode, str) else _encoder(encode)
            base = read_retriever(index, encoder)
            if "documents" not in index.manifest.files:
                return cls.over(base, _placed_documents(index, base), k=DEFAULT_K if k is None else k, filter=filter)
            saved_k, saved_filter = _settings(index)
            if filter is None and isinstance(saved_filter, str):
                raise ValueError("what was saved filters by a function, which cannot be saved: give it as filter=")
            rest = [_id_and_metadata(index, row) for row in index.strings("documents")]
            if len(rest) != len(base):
                raise index.wrong("documents", f"{len(rest)} documents for {len(base)} texts")
        documents = [
            Document(page_content=text, metadata=metadata, id=name)
            for text, (name, metadata) in zip(base.texts, rest, strict=True)
        ]
        passes = filter if isinstance(saved_filter, str) or filter is not None else saved_filter
        return cls.over(base, documents, k=saved_k if k is None else k, filter=passes)

    def _get_relevant_documents(
        self,
        query: str,
        *,
        run_manager: CallbackManagerForRetrieverRun,
        k: int | None = None,
        filter: Filter | None = None,
    ) -> list[Document]:
        return self._found(query, k, filter)

    async def _aget_relevant_documents(
        self,
        query: str,
        *,
        run_manager: AsyncCallbackManagerForRetrieverRun,
        k: int | None = None,
        filter: Filter | None = None,
    ) -> list[Document]:
        return await asyncio.to_thread(self._found, query, k, filter)

    def _found(self, query: str, k: int | None, filter: Filter | None) -> list[Document]:
        wanted = self.k if k is None else k
        check_k(wanted)
        self._check_documents()
        if not isinstance(query, str):
            raise TypeError(
                f"query must be a str, got {type(query).__name__}: {query!r:.80}; take it out of a dict first, "
                "with operator.itemgetter('question') for example"
            )
        passes = self.filter if filter is None else filter
        if passes is None:
            return [self._document(hit) for hit in self.base.search(query, wanted)]
        ids = [index for index, document in enumerate(self.documents) if _passes(document, passes)]
        return [self._document(hit) for hit in search_among(self.base, query, wanted, ids)]

    def _check_documents(self) -> None:
        if len(self.documents) != len(self.base):
            raise ValueError(
                f"the index holds {len(self.base)} texts, and there are {len(self.documents)} documents: after adding "
                "to `base`, make a retriever with over(base, documents)"
            )

    def _document(self, hit: Hit) -> Document:
        document = self.documents[hit.id]
        name = document.id if document.id is not None else str(hit.id)
        return Document(page_content=hit.text, metadata={**document.metadata, "score": hit.score}, id=name)


class BM25Retriever(DocumentRetriever):
    """Finds documents by the words that they share with the query (Okapi BM25 with rank-bm25's scores).

    `idf="lucene"`: for a handful of documents, where rank-bm25 gives no weight to a word that half of them hold.
    `language="english"`, or another language of Snowball, matches stems.
    """

    def __init__(
        self,
        documents: Sequence[Document],
        *,
        k: int = DEFAULT_K,
        idf: Idf = "okapi",
        language: str = PLAIN,
        **fields: object,
    ) -> None:
        super().__init__(documents=documents, k=k, **fields)  # type: ignore[arg-type]
        if self.base_retriever is None:
            texts = [document.page_content for document in self.documents]
            self.base_retriever = BM25Search(texts, idf=idf, split=splitter(language))


class FAISSRetriever(DocumentRetriever):
    """Finds documents by vector similarity with FAISS (needs the extra copyspec[gpu] or copyspec[cpu]).

    `encode`: a function from a list of texts to vectors, or a LangChain embedding model.
    """

    def __init__(
        self,
        documents: Sequence[Document],
        encode: Encode | Embeddings | None = None,
        *,
        k: int = DEFAULT_K,
        **fields: object,
    ) -> None:
        super().__init__(documents=documents, k=k, **fields)  # type: ignore[arg-type]
        if self.base_retriever is None:
            if encode is None:
                raise TypeError(
                    "FAISSRetriever needs encode=: LangChain embeddings, a function from a list of texts to vectors, "
                    'or EncoderEmbeddings("sentence-transformers/all-MiniLM-L6-v2") of copyspec.retrievers.langchain'
                )
            texts = [document.page_content for document in self.documents]
            self.base_retriever = FaissRetriever(texts, _encoder(encode))


def _passes(document: Document, wanted: Filter) -> bool:
    if isinstance(wanted, Mapping):
        return all(_has(document.metadata, name, value) for name, value in wanted.items())
    if not callable(wanted):
        raise TypeError(f"filter must be a dict of metadata or a function of a document, got {shown(wanted)}")
    try:
        return bool(wanted(document))
    except (TypeError, AttributeError) as error:
        raise TypeError(
            f"filter= failed for document {document.id!r}: {error}; it gets the document, whose metadata are "
            "document.metadata"
        ) from error


def _has(metadata: Mapping[str, object], name: str, value: object) -> bool:
    if name.startswith("$") or (isinstance(value, Mapping) and any(str(key).startswith("$") for key in value)):
        raise ValueError(
            f"filter knows no operators, got {brief({name: value})}; give a function of a document instead"
        )
    if name not in metadata:
        return False
    return metadata[name] == value or (
        isinstance(value, (list, tuple, set, frozenset)) and metadata[name] in list(value)
    )


def _settings(index: files.Opened) -> tuple[int, dict[str, object] | str | None]:
    """The saved number of documents and filter; "function" for one that could not be saved."""
    if "retriever" not in index.manifest.files:
        return DEFAULT_K, None
    try:
        (line,) = index.strings("retriever")
        settings = json.loads(line)
        k, passes = settings["k"], settings["filter"]
        check_k(k)
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise index.wrong("retriever", f"no settings of a retriever: {error}") from None
    if not (passes is None or passes == "function" or isinstance(passes, dict)):
        raise index.wrong("retriever", "no filter")
    return k, passes


def _placed_documents(index: files.Opened, base: Retriever) -> list[Document] | None:
    """The passages of a corpus as documents with their places; None if the index does not hold places."""
    if "passages.names" not in index.manifest.files:
        return None
    return [
        Document(
            page_content=passage.text,
            metadata={
                "source": passage.document,
                **({"heading": passage.heading} if passage.heading else {}),
                **({"page": passage.page} if passage.page else {}),
                "start": passage.start,
                "end": passage.start + len(passage.text),
            },
        )
        for passage in read_places(index, base.texts)
    ]


class EncoderEmbeddings(Embeddings):
    """An encoder as LangChain embeddings: `EncoderEmbeddings("sentence-transformers/all-MiniLM-L6-v2")`.

    `encode`: hub id or folder for `HuggingFaceEmbedder`, or a function from a list of texts to vectors.
    """

    def __init__(self, encode: Encode | str | os.PathLike[str]) -> None:
        self.encode: Encode = HuggingFaceEmbedder(encode) if isinstance(encode, (str, os.PathLike)) else encode

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """Return the vector of each text."""
        vectors: list[list[float]] = checked(self.encode(texts)).tolist() if texts else []
        return vectors

    def embed_query(self, text: str) -> list[float]:
        """Return the vector of a query."""
        own: Encode = getattr(self.encode, "encode_query", self.encode)
        vector: list[float] = checked(own([text]))[0].tolist()
        return vector


class _EmbeddingsEncoder:
    """LangChain embeddings as an encoder; many encode queries otherwise than documents."""

    def __init__(self, embeddings: Embeddings) -> None:
        self._embeddings = embeddings

    def __call__(self, texts: list[str]) -> list[list[float]]:
        return self._embeddings.embed_documents(texts)

    def encode_query(self, queries: list[str]) -> list[list[float]]:
        return [self._embeddings.embed_query(query) for query in queries]


def _encoder(encode: Encode | Embeddings) -> Encode:
    return _EmbeddingsEncoder(encode) if callable(getattr(encode, "embed_documents", None)) else encode  # type: ignore[arg-type, return-value]


def _id_and_metadata(index: files.Opened, row: str) -> tuple[str | None, dict[str, object]]:
    try:
        name, metadata = json.loads(row)
        if (name is None or isinstance(name, str)) and isinstance(metadata, dict):
            return name, metadata
        raise ValueError("no id and metadata")
    except (ValueError, TypeError, RecursionError) as error:
        raise index.wrong("documents", f"{row!r:.80}: {error!s:.80}") from None


_GROWTH = 4  # a search that found too few is repeated with so many times as many hits


def search_among(base: Retriever, query: str, k: int, ids: Sequence[int]) -> list[Hit]:
    """Return the best `k` of the texts `ids`, which ascend; all of them if there are fewer.

    Texts that no search returns (an approximate index and fusion rank only some) follow by their scores.
    """
    if isinstance(base, RerankingRetriever):  # its score takes long, and orders the best of its base
        shortlist = search_among(base.base, query, base.depth, ids)
        return _by_score(base, query, k, sorted(hit.id for hit in shortlist))
    count, among, wanted = len(base), set(ids), min(k, len(ids))
    if not wanted:
        return []
    limit = k
    while True:
        limit = min(limit * _GROWTH, count)
        everything = base.search(query, limit)
        hits = [hit for hit in everything if hit.id in among][:wanted]
        if len(hits) == wanted:
            return hits
        if len(everything) < limit or limit == count:
            break
    missing = among.difference(hit.id for hit in hits)
    return [*hits, *_by_score(base, query, wanted - len(hits), sorted(missing))]


def _by_score(base: Retriever, query: str, k: int, ids: Sequence[int]) -> list[Hit]:
    scores, texts = base.score(query, ids), base.texts
    return [Hit(ids[i], float(scores[i]), texts[ids[i]]) for i in best(scores, k).tolist()]
