"""Corpora by name: indexes in the sub-folders of one folder, added to, removed and listed."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from copyspec.fingerprints import tokenizer_fingerprint as tokenizer_fingerprint
from copyspec.loading import BUNDLED, MODEL_VARIABLE, identity

from . import bm25, datastore, dense, files, passages
from .base import Folder, Retriever
from .bm25 import BM25Retriever
from .datastore import Datastore
from .dense import DenseRetriever, Encode, FaissRetriever
from .embedding import HuggingFaceEmbedder
from .faiss_index import FaissOptions
from .passages import Document, Passage

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

KINDS = (bm25.KIND, dense.KIND, datastore.KIND)

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


@dataclass(frozen=True, slots=True)
class Corpus:
    """What a folder of corpora says about one of them."""

    name: str
    kind: str  # one of KINDS
    documents: int
    size: int  # passages, or tokens of a datastore
    bytes: int  # on disk
    skipped: int = 0  # passages or documents of the last addition that were there already


class Corpora:
    """The corpora of one folder. Adding to a name that is there goes on with it.

    What is there already is skipped and counted (`Corpus.skipped`), unless `duplicates=True`: passages with the same
    text, and in a datastore documents with the same name and tokens.
    """

    def __init__(self, folder: Folder) -> None:
        self.folder = Path(folder)

    def path(self, name: str) -> Path:
        """The folder of a corpus. Raises ValueError for what cannot be a name."""
        if not _NAME.fullmatch(name):
            raise ValueError(
                f"{name!r} cannot name a corpus: letters, digits, '.', '_' and '-', a letter or digit first"
            )
        return self.folder / name

    def names(self) -> list[str]:
        """The corpora there are, sorted."""
        if not self.folder.is_dir():
            return []
        return sorted(path.parent.name for path in self.folder.glob(f"*/{files.MANIFEST}"))

    def all(self) -> list[Corpus]:
        """What is known of each corpus, sorted by name. Raises files.IndexFileError for a damaged one."""
        return [self._corpus(name) for name in self.names()]

    def remove(self, name: str) -> None:
        """Deletes a corpus. Raises ValueError where there is none of this name."""
        path = self._existing(name)
        (path / files.MANIFEST).unlink()  # first: what is left of a removal that stops here is no index
        shutil.rmtree(path)

    def open(
        self, name: str, *, encode: Encode | str | os.PathLike[str] | None = None
    ) -> tuple[Retriever, list[Passage]]:
        """A corpus of passages, and where they stand; `encode`: see `load_retriever`."""
        path = self._existing(name)
        retriever = load_retriever(path, encode=encode)
        return retriever, passages.load_passages(path, retriever.texts)

    def add_bm25(self, name: str, more: Sequence[Passage], *, duplicates: bool = False) -> Corpus:
        """Adds passages to a corpus that is searched by words; those of a new one count as in Lucene (bm25.Idf), so
        that few passages are told apart, too."""

        def made(texts: list[str]) -> Retriever:
            return BM25Retriever(texts, idf="lucene")

        return self._add(name, bm25.KIND, more, made, BM25Retriever.load, duplicates)

    def add_dense(
        self,
        name: str,
        more: Sequence[Passage],
        encode: Encode,
        *,
        options: FaissOptions | None = None,
        duplicates: bool = False,
    ) -> Corpus:
        """Adds passages to a corpus that is searched by vectors, through FAISS where `options` are given."""

        def made(texts: list[str]) -> Retriever:
            return DenseRetriever(texts, encode) if options is None else FaissRetriever(texts, encode, options=options)

        return self._add(name, dense.KIND, more, made, lambda path: DenseRetriever.load(path, encode), duplicates)

    def add_tokens(
        self,
        name: str,
        documents: Iterable[Document],
        tokenizer: PreTrainedTokenizerBase,
        *,
        duplicates: bool = False,
    ) -> Corpus:
        """Adds documents to a datastore of tokens."""
        path, fingerprint = self.path(name), tokenizer_fingerprint(tokenizer)
        there = name in self.names()
        if there:
            store, places = Datastore(path, fingerprint=fingerprint), passages.load_places(path)
        else:
            store, places = Datastore.create(path, fingerprint=fingerprint), []
        named = [Passage(document, start, "") for document, start in places]
        numbers: dict[str, list[int]] = {}  # of the documents that were there, by name
        for number, (document_name, _) in enumerate(places):
            numbers.setdefault(document_name, []).append(number)
        skipped = 0

        def tokens() -> Iterator[list[int]]:
            nonlocal skipped
            for document in documents:
                ids = tokenizer(document.text, add_special_tokens=False, verbose=False)["input_ids"]  # of any length
                if not duplicates and any(store.document(each) == ids for each in numbers.get(document.name, ())):
                    skipped += 1
                    continue
                named.append(Passage(document.name, 0, ""))
                yield ids

        try:
            store.append(tokens())
        except BaseException:
            if not there:
                self.remove(name)
            raise
        passages.save_passages(path, named)
        return replace(self._corpus(name), skipped=skipped)

    def _add(
        self,
        name: str,
        kind: str,
        more: Sequence[Passage],
        made: Callable[[list[str]], Retriever],
        load: Callable[[Path], Retriever],
        duplicates: bool,
    ) -> Corpus:
        path, before, retriever = self.path(name), list[Passage](), None
        if name in self.names():
            files.read_manifest(path, kind)  # another kind is an error that names both
            retriever = load(path)
            before = passages.load_passages(path, retriever.texts)
        new = list(more) if duplicates else _unseen(more, before)
        if retriever is None or new:
            texts = [passage.text for passage in new]
            if retriever is None:
                retriever = made(texts)
            else:
                retriever.add(texts)
            retriever.save(path)
            passages.save_passages(path, [*before, *new])
        return replace(self._corpus(name), skipped=len(more) - len(new))

    def _existing(self, name: str) -> Path:
        path = self.path(name)
        if not (path / files.MANIFEST).exists():
            held = ", ".join(map(repr, self.names())) or "none"
            raise ValueError(f"there is no corpus {name!r} in {str(self.folder)!r}; it holds {held}")
        return path

    def _corpus(self, name: str) -> Corpus:
        path = self._existing(name)
        manifest = files.read_manifest(path)
        places = passages.load_places(path)
        tokens = manifest.kind == datastore.KIND
        size = Datastore(path, verify=False).num_tokens if tokens else len(places)
        documents = len(places) if tokens else len({document for document, _ in places})
        used = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
        return Corpus(name, manifest.kind, documents, size, used)


def _unseen(more: Sequence[Passage], before: Sequence[Passage]) -> list[Passage]:
    """Of equal texts the first, where none was there before."""
    seen, new = {passage.text for passage in before}, []
    for passage in more:
        if passage.text not in seen:
            seen.add(passage.text)
            new.append(passage)
    return new


def load_retriever(folder: Folder, *, encode: Encode | str | os.PathLike[str] | None = None) -> Retriever:
    """The retriever that was saved in a folder, whichever it is.

    `encode`: the encoder of a dense one, or its hub id or folder. An index is data, and names no model to be loaded:
    without `encode` only the bundled model and the one of $COPYSPEC_MODEL are. Raises ValueError for any other.
    """
    return files.read_whole(folder, lambda: _load(folder, encode))


def _load(folder: Folder, encode: Encode | str | os.PathLike[str] | None) -> Retriever:
    manifest = files.read_manifest(folder)
    if manifest.kind == bm25.KIND:
        return BM25Retriever.load(folder)
    if manifest.kind != dense.KIND:
        raise files.IndexFileError(
            f"{str(folder)!r} holds an index of kind {manifest.kind!r}, which finds no passages; open it as Datastore"
        )
    if encode is None or isinstance(encode, (str, os.PathLike)):
        encode = _encoder(folder, manifest.facts["encoder"], encode)
    return DenseRetriever.load(folder, encode)


def _encoder(folder: Folder, made_with: object, named: str | os.PathLike[str] | None) -> HuggingFaceEmbedder:
    """The encoder that the caller names, with the prefix of the index. What the index names is not loaded for that."""
    made_with = made_with if isinstance(made_with, dict) else {}
    name, prefix = made_with.get("name"), made_with.get("prefix")
    if not isinstance(name, str):
        raise ValueError(f"the index in {str(folder)!r} names no encoder: give encode=, the one it was made with")
    if named is None:
        named = name
        if identity(name) not in map(identity, (BUNDLED, os.environ.get(MODEL_VARIABLE))):
            raise ValueError(
                f"the index in {str(folder)!r} was made with the encoder {name!r}, which is loaded only when you name "
                f"it: give encode={name!r} if you trust it"
            )
    return HuggingFaceEmbedder(named, prefix=prefix if isinstance(prefix, str) else "")
