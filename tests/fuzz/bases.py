"""Writes the indexes for `tests.fuzz.indexes`, and uses them as an application would use an untrusted index."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from copyspec.engine.drafting.output_cache import OutputCache
from copyspec.pipelines import JournalError, Outcome, Refusal
from copyspec.pipelines.editing.journal import Journal
from copyspec.retrievers import (
    Corpora,
    Datastore,
    DenseRetriever,
    Document,
    FaissOptions,
    IndexFileError,
    Passage,
    load_passages,
    load_retriever,
    split_passages,
)

NAME = "index"  # name of the folder or file
QUERIES = ("kettle seven", "the heron of lot 3", "")
NAMESPACE, IDENTITY = "user-1", {"input": "0" * 32, "model": "m"}
CONTEXTS = ([3, 1, 4], [5], [1, 2, 3, 4, 5, 6, 7], [0, 0, 0, 0])
_WORDS = ["kettle", "heron", "library", "seven", "boat", "mill", "lot", "bridge", "the", "of"]


class Tokenizer:
    """The parts of a tokenizer that building a datastore needs."""

    def get_vocab(self) -> dict[str, int]:
        return {chr(number): number for number in range(128)}

    def __call__(self, text: str, **options: object) -> dict[str, list[int]]:
        return {"input_ids": [ord(char) % 7 for char in text]}


def encode(texts: list[str]) -> NDArray[np.float32]:
    """Return a vector for each text: the counts of some letters."""
    return np.array([[1 + text.count(letter) for letter in "aeioutrs"] for text in texts], np.float32)


def documents(count: int) -> list[Document]:
    rng = np.random.default_rng(count)
    return [Document(f"d{number}", " ".join(rng.choice(_WORDS, 30).tolist())) for number in range(count)]


def passages(count: int) -> list[Passage]:
    """Make two passages per document, with a number in each text so that none is skipped as a duplicate."""
    return [
        Passage(piece.document, piece.start, f"{number} {piece.text}")
        for number, document in enumerate(documents(count))
        for piece in split_passages(document, max_chars=100)
    ]


def make(kind: str, folder: Path) -> None:
    """Write a complete index of this kind into `folder`."""
    corpora = Corpora(folder)
    if kind == "bm25":
        corpora.add_bm25(NAME, passages(30))
    elif kind == "tokens":
        for count in (9, 3, 1):
            corpora.add_tokens(NAME, documents(count), Tokenizer(), duplicates=True)  # type: ignore[arg-type]
    elif kind == "langchain":
        from copyspec.retrievers.langchain import BM25Retriever

        texts = [passage.text for passage in passages(10)]
        BM25Retriever.from_texts(texts, [{"number": number} for number in range(len(texts))]).save(folder / NAME)
    elif kind == "cache":
        cache = OutputCache(NAMESPACE)
        for document in documents(9):
            cache.add(document.name, document.text)
        cache.save(folder / NAME)
    elif kind == "journal":
        with Journal(folder / NAME, IDENTITY, resume=False) as journal:
            for document in documents(9):
                journal.add(document.name, Outcome(document.text))
            journal.add("refused", Outcome(None, Refusal("length", "too long")))
    else:
        options = None if kind == "exact" else FaissOptions(kind=kind, neighbours=4, lists=4)  # type: ignore[arg-type]
        corpora.add_dense(NAME, passages(100), encode, options=options)


KINDS = ("bm25", "exact", "flat", "hnsw", "ivf", "tokens", "langchain", "cache", "journal")
EXPECTED: Mapping[str, tuple[type[Exception], ...]] = {
    "cache": (ValueError, OSError),
    "journal": (JournalError, OSError),
}
"""Errors that may report damage, by kind; for indexes only IndexFileError."""


def expected(kind: str) -> tuple[type[Exception], ...]:
    return EXPECTED.get(kind, (IndexFileError,))


def uses(kind: str, folder: Path) -> list[Callable[[], None]]:
    """Return what an application may do with an untrusted index: read, search, list, extend, rewrite, remove."""
    if kind == "cache":
        return [lambda: _use_cache(folder / NAME), lambda: OutputCache(NAMESPACE).save(folder / NAME)]
    if kind == "journal":
        return [partial(_use_journal, folder / NAME, journal) for journal in (None, True, False)]
    corpora, path = Corpora(folder), folder / NAME
    if kind == "tokens":
        made: list[Callable[[], object]] = [
            lambda: _use_datastore(path, True),
            lambda: _use_datastore(path, False),
            corpora.all,
            lambda: Datastore(path).append([[1, 2, 3]]),
            lambda: corpora.add_tokens(NAME, documents(2), Tokenizer()),  # type: ignore[arg-type]
        ]
    elif kind == "langchain":
        made = [lambda: _use_documents(path)]
    elif kind == "bm25":
        made = [lambda: _use_retriever(path), corpora.all, lambda: corpora.add_bm25(NAME, passages(2))]
    else:
        made = [lambda: _use_retriever(path), corpora.all, lambda: corpora.add_dense(NAME, passages(2), encode)]
    made += [lambda: DenseRetriever(["a", "b"], encode).save(path), lambda: corpora.remove(NAME)]
    return made  # type: ignore[return-value]


def _use_retriever(path: Path) -> None:
    retriever = load_retriever(path, encode=encode)
    for query in QUERIES:
        hits = retriever.search(query, 3)
        retriever.score(query, [hit.id for hit in hits])
    retriever.search_batch(list(QUERIES), 1000)
    load_passages(path, retriever.texts)
    retriever.add(["one more of the kettle"])
    retriever.search("kettle")


def _use_documents(path: Path) -> None:
    from copyspec.retrievers.langchain import DocumentRetriever

    DocumentRetriever.load(path).invoke("kettle")


def _use_datastore(path: Path, verify: bool) -> None:
    with Datastore(path, verify=verify) as store:
        for context in CONTEXTS:
            store.find(context, 8, 16)
            store.search(context)
        for number in range(min(store.num_documents, 3)):
            store.document(number)


def _use_cache(path: Path) -> None:
    cache = OutputCache.load(path, NAMESPACE)
    cache.references("d1 kettle")
    cache.save(path)


def _use_journal(path: Path, resume: bool | None) -> None:
    with Journal(path, IDENTITY, resume=resume) as journal:
        for document in documents(9):
            journal.get(document.name)
        journal.get("refused")
        journal.add("more", Outcome("text"))
