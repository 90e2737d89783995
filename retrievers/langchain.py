"""The retrievers as LangChain's: documents in, documents with ids and scores out."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

try:
    from langchain_core.documents import Document
    from langchain_core.retrievers import BaseRetriever
except ImportError as error:
    raise ImportError(
        "copyspec.retrievers.langchain needs langchain-core: pip install 'langchain-core>=1.0,<2'"
    ) from error

from pydantic import ConfigDict, Field, PrivateAttr, field_validator

from . import files
from .base import DEFAULT_K, Folder, Hit, Retriever, check_k
from .bm25 import BM25Retriever as BM25Search
from .bm25 import Idf
from .corpora import read_retriever
from .dense import Encode, FaissRetriever
from .saving import Written, saving
from .terms import PLAIN, splitter

if TYPE_CHECKING:
    from langchain_core.callbacks import AsyncCallbackManagerForRetrieverRun, CallbackManagerForRetrieverRun
    from langchain_core.embeddings import Embeddings
    from typing_extensions import Self


class DocumentRetriever(BaseRetriever):
    """Any retriever of `copyspec.retrievers`, BM25, dense or speculative, as one of LangChain's.

        retriever = DocumentRetriever.over(SpeculativeRetriever(base), documents)
        retriever.invoke("When is the library open?", k=2)

    Found documents have the id and metadata that they came with (without an id: their number) and their `score`.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True, extra="forbid")

    documents: Sequence[Document] = Field(default=(), repr=False)
    k: int = Field(default=DEFAULT_K, ge=1)
    """Documents of a search; a call may give its own: `invoke(query, k=2)`."""

    _base: Retriever | None = PrivateAttr(default=None)

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
    def over(cls, base: Retriever, documents: Sequence[Document] | None = None, *, k: int = DEFAULT_K) -> Self:
        """Searches `base`, whose texts are those of `documents`, in order. None: documents are made of the texts."""
        check_k(k)
        if documents is None:
            documents = [Document(page_content=text) for text in base.texts]
        if [document.page_content for document in documents] != list(base.texts):
            raise ValueError(f"documents are not those of the index: {len(documents)} for its {len(base)} texts")
        retriever = cls.model_construct(documents=documents, k=k)
        retriever._base = base
        return retriever

    @classmethod
    def from_documents(cls, documents: Sequence[Document], **options: object) -> Self:
        """A retriever of these documents; `options` are the constructor's."""
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
        """A retriever of these texts, with a mapping of metadata and an id for each where they are given."""
        if isinstance(texts, str):
            raise TypeError(f"texts must be a list of strings, got one string: write [{texts[:20]!r}]")
        for name, given in (("metadatas", metadatas), ("ids", ids)):
            if given is not None and len(given) != len(texts):
                raise ValueError(f"{name} holds {len(given)} entries for {len(texts)} texts; give one for each")
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
        """The retriever of `copyspec.retrievers` that searches."""
        if self._base is None:
            raise ValueError(f"{type(self).__name__} has nothing to search: make it with over() or from_documents()")
        return self._base

    def save(self, folder: Folder) -> None:
        """Writes index and documents into `folder` (made where it is missing), without pickles.

        Raises TypeError for metadata that JSON cannot hold.
        """
        if not isinstance(self.base, Written):
            raise TypeError(f"a {type(self.base).__name__} has no write() that puts documents beside its own files")
        try:
            rest = [json.dumps([document.id, document.metadata]) for document in self.documents]
        except TypeError as error:
            raise TypeError(f"metadata must be strings, numbers, lists and dicts to be saved: {error}") from None
        with saving(folder) as index:
            index.strings("documents", rest)
            self.base.write(index)

    @classmethod
    def load(cls, folder: Folder, *, k: int = DEFAULT_K, encode: Encode | Embeddings | str | None = None) -> Self:
        """The retriever that `save` wrote, or any index of `copyspec.retrievers`, whose documents have numbers for ids.

        `encode`: what made the vectors of a dense one, or its hub id or folder. Raises files.IndexFileError for
        damaged files.
        """
        with files.opened(folder) as index:
            encoder = encode if encode is None or isinstance(encode, str) else _encoder(encode)
            base = read_retriever(index, encoder)
            if "documents" not in index.manifest.files:
                return cls.over(base, k=k)
            rest = [_id_and_metadata(index, row) for row in index.strings("documents")]
            if len(rest) != len(base):
                raise index.wrong("documents", f"{len(rest)} documents for {len(base)} texts")
        documents = [
            Document(page_content=text, metadata=metadata, id=each)
            for text, (each, metadata) in zip(base.texts, rest, strict=True)
        ]
        return cls.over(base, documents, k=k)

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun, k: int | None = None
    ) -> list[Document]:
        return self._found(query, k)

    async def _aget_relevant_documents(
        self, query: str, *, run_manager: AsyncCallbackManagerForRetrieverRun, k: int | None = None
    ) -> list[Document]:
        return await asyncio.to_thread(self._found, query, k)

    def _found(self, query: str, k: int | None) -> list[Document]:
        wanted = self.k if k is None else k
        check_k(wanted)
        if not isinstance(query, str):
            raise TypeError(
                f"query must be a str, got {type(query).__name__}: {query!r:.80}; take it out of a dict first, "
                "with operator.itemgetter('question') for example"
            )
        return [self._document(hit) for hit in self.base.search(query, wanted)]

    def _document(self, hit: Hit) -> Document:
        found = self.documents[hit.id]
        name = found.id if found.id is not None else str(hit.id)
        return Document(page_content=hit.text, metadata={**found.metadata, "score": hit.score}, id=name)


class BM25Retriever(DocumentRetriever):
    """Finds documents by the words that they share with the query (Okapi BM25 with rank-bm25's scores).

    `idf="lucene"` is for a handful of documents: there a word that half of them hold counts nothing in rank-bm25's way.
    `language="english"`, or another that Snowball knows, matches stems.
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
        self._base = BM25Search([document.page_content for document in documents], idf=idf, split=splitter(language))


class FAISSRetriever(DocumentRetriever):
    """Finds documents by their vectors' nearness, through FAISS (the extra copyspec[gpu] or copyspec[cpu]).

    `encode` makes vectors of a list of texts: a function, or an embedding model of LangChain's.
    """

    def __init__(
        self, documents: Sequence[Document], encode: Encode | Embeddings, *, k: int = DEFAULT_K, **fields: object
    ) -> None:
        super().__init__(documents=documents, k=k, **fields)  # type: ignore[arg-type]
        texts = [document.page_content for document in documents]
        self._base = FaissRetriever(texts, _encoder(encode), encode_query=_query_encoder(encode))


def _encoder(encode: Encode | Embeddings) -> Encode:
    embed = getattr(encode, "embed_documents", None)
    return embed if callable(embed) else encode  # type: ignore[return-value]


def _query_encoder(encode: Encode | Embeddings) -> Encode | None:
    embed = getattr(encode, "embed_query", None)
    return (lambda queries: [embed(query) for query in queries]) if callable(embed) else None


def _id_and_metadata(index: files.Opened, row: str) -> tuple[str | None, dict[str, object]]:
    try:
        each, metadata = json.loads(row)
        if (each is None or isinstance(each, str)) and isinstance(metadata, dict):
            return each, metadata
        raise ValueError("no id and metadata")
    except (ValueError, TypeError, RecursionError) as error:
        raise index.wrong("documents", f"{row!r:.80}: {error!s:.80}") from None
