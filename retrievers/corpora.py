"""Named corpora: indexes in the sub-folders of one folder, for `copyspec index`. Also loads any saved retriever."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from copyspec.common.fingerprints import tokenizer_fingerprint as tokenizer_fingerprint
from copyspec.models.loading import BUNDLED, MODEL_VARIABLE, identity

from . import bm25, dense, files, hybrid
from .base import Folder, Retriever
from .bm25 import BM25Retriever
from .dense import DenseRetriever, Encode, FaissRetriever
from .embedding import HuggingFaceEmbedder
from .faiss_index import FaissIndex, FaissOptions
from .hybrid import HybridRetriever
from .passages import SHARED, UNSTAMPED, Document, Passage
from .places import file_of, read_places, read_stamps, write_passages
from .saving import Saving, remove, saving
from .terms import splitter, splitter_name
from .tokens import datastore
from .tokens.datastore import Datastore

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

KINDS = (bm25.KIND, dense.KIND, hybrid.KIND, datastore.KIND)

_Indexed = BM25Retriever | DenseRetriever | HybridRetriever

DEFAULT_LANGUAGE = "english"  # of a new corpus

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


@dataclass(frozen=True, slots=True)
class Corpus:
    """A corpus and its size."""

    name: str
    kind: str  # one of KINDS
    documents: int
    size: int  # number of passages, or of tokens of a datastore
    bytes: int  # on disk
    skipped: int = 0  # passages or documents that the last addition left out as duplicates
    replaced: int = 0  # old passages of changed or deleted files that the last addition removed


class Corpora:
    """The corpora of one folder. Adding to an existing name extends that corpus.

    Duplicates are skipped and counted (`Corpus.skipped`) unless `duplicates=True`: passages with the same text, and in
    a datastore documents with the same name and tokens.
    """

    def __init__(self, folder: Folder) -> None:
        self.folder = Path(folder)

    def path(self, name: str) -> Path:
        """Return the folder of a corpus. Raises ValueError for an invalid name."""
        if not _NAME.fullmatch(name):
            raise ValueError(
                f"{name!r} cannot name a corpus: letters, digits, '.', '_' and '-', a letter or digit first"
            )
        return self.folder / name

    @staticmethod
    def is_index(folder: Path) -> bool:
        """Whether a folder holds an index, of any version."""
        return (folder / files.MANIFEST).exists()

    def names(self) -> list[str]:
        """Return the names of all corpora, sorted, without indexes in folders whose name cannot be one."""
        if not self.folder.is_dir():
            return []
        names = (path.parent.name for path in self.folder.glob(f"*/{files.MANIFEST}"))
        return sorted(name for name in names if _NAME.fullmatch(name))

    def all(self, on_error: Callable[[str, Exception], object] | None = None) -> list[Corpus]:
        """Return all corpora, sorted by name. Raises files.IndexFileError for a damaged one, or leaves it out and gives
        its name and the error to `on_error`."""
        corpora = []
        for name in self.names():
            failed = None
            while (state := _manifest_state(self.folder / name)) is not None:  # else it has just been removed
                try:
                    corpora.append(self._corpus(name))
                    break
                except (ValueError, OSError) as error:
                    if state == failed:  # else it may have been removed and made again meanwhile
                        if on_error is None:
                            raise
                        on_error(name, error)
                        break
                    failed = state
        return corpora

    def remove(self, name: str) -> list[str]:
        """Delete a corpus; of a symbolic link, only the link. Files that do not belong to it stay with its folder, and
        their names are returned. Raises ValueError if there is no such corpus, BlockingIOError while another process
        writes it, and files.IndexFileError for a manifest of another program."""
        path = self._existing(name)
        if path.is_symlink():  # its target belongs to somebody else
            path.unlink()
            return []
        try:
            return remove(path)
        except FileNotFoundError:
            raise self._missing(name) from None

    def open(
        self, name: str, *, encode: Encode | str | os.PathLike[str] | None = None
    ) -> tuple[Retriever, list[Passage]]:
        """Open a corpus of passages: its retriever and the passages by id. `encode`: see `load_retriever`."""
        return load_corpus(self._existing(name), encode=encode)

    def stamps(self, name: str) -> dict[str, str]:
        """Return the stamps of the files that a corpus was made from, by file name, for `read_documents(known=...)`;
        empty if there is no such corpus."""
        path = self.path(name)
        if not (path / files.MANIFEST).exists():
            return {}
        with files.opened(path) as index:
            return read_stamps(index)

    def add_bm25(
        self,
        name: str,
        more: Iterable[Passage],
        *,
        language: str | None = None,
        duplicates: bool = False,
        stamps: Mapping[str, str] | None = None,
    ) -> Corpus:
        """Add passages to a corpus that is searched by words (BM25).

        `language`: of the Snowball stemmer, or "words" for no stemming; None: English, or that of the existing corpus.
        New corpora use Lucene's idf (bm25.Idf), which also works for few passages. `stamps`: of the files that the
        passages were read from, "" for a file that is gone; older passages of all these files are removed, except for
        files whose stamp is UNSTAMPED. Raises ValueError for an unknown language, or another than the corpus has."""
        return self._add(_Addition(name, bm25.KIND, more, duplicates, stamps, language=language))

    def add_dense(
        self,
        name: str,
        more: Iterable[Passage],
        encode: Encode,
        *,
        options: FaissOptions | Literal["exact"] | None = None,
        duplicates: bool = False,
        stamps: Mapping[str, str] | None = None,
    ) -> Corpus:
        """Add passages to a corpus that is searched by vectors: exactly, or by FAISS with these `options`. None: as the
        existing corpus, or exactly. Raises ValueError if an existing one has another kind of search."""
        return self._add(_Addition(name, dense.KIND, more, duplicates, stamps, encode, options))

    def add_hybrid(
        self,
        name: str,
        more: Iterable[Passage],
        encode: Encode,
        *,
        language: str | None = None,
        options: FaissOptions | Literal["exact"] | None = None,
        duplicates: bool = False,
        stamps: Mapping[str, str] | None = None,
    ) -> Corpus:
        """Add passages to a corpus that is searched by words and by vectors, with both rankings fused. Raises
        ValueError as `add_bm25` and `add_dense` do."""
        return self._add(_Addition(name, hybrid.KIND, more, duplicates, stamps, encode, options, language))

    def add_tokens(
        self,
        name: str,
        documents: Iterable[Document],
        tokenizer: PreTrainedTokenizerBase,
        *,
        duplicates: bool = False,
    ) -> Corpus:
        """Add documents to a datastore of tokens."""
        path, fingerprint = self.path(name), tokenizer_fingerprint(tokenizer)
        with saving(path) as index:
            store, places = _there(path, fingerprint) if index.is_there() else (None, list[Passage]())
            named = list(places)
            numbers: dict[str, list[int]] = {}  # document name -> numbers of the existing documents
            for number, place in enumerate(places):
                numbers.setdefault(place.document, []).append(number)
            skipped = 0

            def tokens() -> Iterator[list[int]]:
                nonlocal skipped
                for document in documents:
                    ids = tokenizer(document.text, add_special_tokens=False, verbose=False)["input_ids"]  # any length
                    known = numbers.get(document.name, ()) if store is not None and not duplicates else ()
                    if store is not None and any(store.document(document) == ids for document in known):
                        skipped += 1
                        continue
                    named.append(Passage(document.name, 0, ""))
                    yield ids

            def beside(index: Saving, count: int) -> None:
                write_passages(index, named)

            if store is None:
                Datastore.create_in(index, tokens(), fingerprint, beside)
            else:
                store.append_in(index, tokens(), beside=beside)
            return replace(self._corpus(name), skipped=skipped)

    def _add(self, addition: _Addition) -> Corpus:
        path, before, retriever = self.path(addition.name), list[Passage](), None
        more, new_stamps, earlier = list(addition.more), addition.stamps or {}, dict[str, str]()
        with saving(path) as index:
            if index.is_there():
                with files.opened(path, addition.kind) as stored:  # another kind is an error that names both
                    retriever = addition.read(stored)
                    before, earlier = read_places(stored, retriever.texts), read_stamps(stored)
            replaced = {file for file, stamp in new_stamps.items() if stamp != UNSTAMPED}
            remaining = [number for number, passage in enumerate(before) if file_of(passage, replaced) is None]
            held_before = [before[number] for number in remaining]
            new, twins = (more, list[Passage]()) if addition.duplicates else _unseen(more, held_before)
            wanted = [*held_before, *new]
            loses_text = bool({passage.text for passage in before}.difference(passage.text for passage in wanted))
            stamps = _stamps_after(earlier, new_stamps, twins, loses_text=loses_text)
            if before and not wanted:
                raise ValueError(
                    f"nothing is left to search for in {addition.name!r}: none of its files holds a text any more. The "
                    "corpus is unchanged; remove it with Corpora.remove or `copyspec index remove`"
                )
            if retriever is None or new or len(remaining) < len(before) or stamps != earlier:
                texts, contexts = [passage.text for passage in new], [passage.context for passage in new]
                if retriever is None:
                    retriever = addition.made(texts, contexts)
                elif len(remaining) < len(before):
                    numbers = {(passage.text, passage.context): number for number, passage in enumerate(before)}
                    again = (numbers.get((passage.text, passage.context)) for passage in new)
                    retriever = _rebuilt(retriever, wanted, [*remaining, *again])
                elif new:
                    retriever.add(texts, contexts)
                write_passages(index, wanted, stamps)
                retriever.write(index)
            corpus = self._corpus(addition.name)
            removed = len({*before}.difference(wanted))
            return replace(corpus, skipped=len(more) - len(new), replaced=removed)

    def _existing(self, name: str) -> Path:
        path = self.path(name)
        if not (path / files.MANIFEST).exists():
            raise self._missing(name)
        return path

    def _missing(self, name: str) -> ValueError:
        names = ", ".join(map(repr, self.names())) or "none"
        return ValueError(f"there is no corpus {name!r} in {str(self.folder)!r}; it holds {names}")

    def _corpus(self, name: str) -> Corpus:
        with files.opened(self._existing(name)) as index:
            kind, used = index.manifest.kind, sum(entry.size for entry in index.manifest.files.values())
            if kind == datastore.KIND:
                store = Datastore.read(index)
                return Corpus(name, kind, store.num_documents, store.num_tokens, used)
            places = read_places(index, index.strings("texts"))
            return Corpus(name, kind, len({place.document for place in places}), len(places), used)


@dataclass(frozen=True, slots=True)
class _Addition:
    """Arguments of an addition of passages to a corpus."""

    name: str
    kind: str
    more: Iterable[Passage]
    duplicates: bool
    stamps: Mapping[str, str] | None
    encode: Any = None  # for vectors
    options: FaissOptions | Literal["exact"] | None = None
    language: str | None = None

    def made(self, texts: list[str], contexts: list[str]) -> _Indexed:
        """A new retriever of these texts."""
        parts: list[BM25Retriever | DenseRetriever] = []
        if self.kind != dense.KIND:
            split = splitter(self.language or DEFAULT_LANGUAGE)
            parts.append(BM25Retriever(texts, split=split, idf="lucene", contexts=contexts))
        if self.kind != bm25.KIND:
            if isinstance(self.options, FaissOptions):
                parts.append(FaissRetriever(texts, self.encode, options=self.options, contexts=contexts))
            else:
                parts.append(DenseRetriever(texts, self.encode, contexts=contexts))
        return parts[0] if len(parts) == 1 else HybridRetriever(parts)

    def read(self, index: files.Opened) -> _Indexed:
        """The retriever of the corpus. Raises ValueError if it was made for another language or kind of search."""
        retriever: _Indexed
        if self.kind == bm25.KIND:
            retriever = BM25Retriever.read(index)
        else:
            retriever = (DenseRetriever if self.kind == dense.KIND else HybridRetriever).read(index, self.encode)
        for part in retriever.retrievers if isinstance(retriever, HybridRetriever) else (retriever,):
            if isinstance(part, BM25Retriever):
                self._check("language", splitter_name(part.split), self.language)
            elif isinstance(part, DenseRetriever):
                its = part.index.options.kind if isinstance(part.index, FaissIndex) else "exact"
                self._check(
                    "search", its, self.options.kind if isinstance(self.options, FaissOptions) else self.options
                )
        return retriever

    def _check(self, what: str, its: str | None, wanted: str | None) -> None:
        if wanted is not None and its is not None and wanted != its:
            raise ValueError(
                f"the corpus {self.name!r} has the {what} {its!r}, got {wanted!r}: name no other {what}, or add to a "
                "corpus of another name"
            )


def _there(path: Path, fingerprint: str) -> tuple[Datastore, list[Passage]]:
    """Open an existing datastore, with a placeholder passage for the name of each document."""
    store = Datastore(path, fingerprint=fingerprint)
    with files.opened(path, datastore.KIND) as index:
        return store, read_places(index, [""] * store.num_documents)


def _manifest_state(folder: Path) -> tuple[int, int] | None:
    """Return what changes when the manifest of an index is replaced; None if there is none."""
    try:
        status = (folder / files.MANIFEST).stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return status.st_ino, status.st_mtime_ns


def _rebuilt(retriever: _Indexed, wanted: Sequence[Passage], kept: Sequence[int | None]) -> _Indexed:
    """Make a retriever of `wanted`. `kept`: the passages' ids in `retriever`, whose vectors are reused, or None."""
    texts, contexts = [passage.text for passage in wanted], [passage.context for passage in wanted]
    if isinstance(retriever, BM25Retriever):
        return BM25Retriever(texts, split=retriever.split, idf=retriever.idf, contexts=contexts)
    if isinstance(retriever, DenseRetriever):
        return retriever.rebuilt(texts, contexts, kept)
    parts = [_rebuilt(part, wanted, kept) for part in retriever.retrievers if isinstance(part, _Indexed)]
    return HybridRetriever(parts, depth=retriever.depth, weights=retriever.weights)


def _unseen(more: Sequence[Passage], before: Sequence[Passage]) -> tuple[list[Passage], list[Passage]]:
    """Return the passages of `more` with new texts, each text once, and those whose text another document has."""
    documents = {passage.text: passage.document for passage in before}
    new, twins = list[Passage](), list[Passage]()
    for passage in more:
        if passage.text not in documents:
            documents[passage.text] = passage.document
            new.append(passage)
        elif documents[passage.text] != passage.document:
            twins.append(passage)
    return new, twins


def _stamps_after(
    earlier: Mapping[str, str], stamps: Mapping[str, str], twins: Sequence[Passage], *, loses_text: bool
) -> dict[str, str]:
    """Return the stamps of a corpus after an addition; `stamps`: of the added files, "" for one that is gone.

    A passage that is in two files is stored once, for the first of them. The stamp of the second, whose passages are
    `twins`, begins with SHARED. When the corpus loses a text, it may be such a passage: these files are then UNSTAMPED,
    so that they are read again and give it."""
    shared = {file_of(twin, stamps) for twin in twins}
    new = {
        file: SHARED * (file in shared) + stamp
        for file, stamp in stamps.items()
        if stamp != UNSTAMPED or file not in earlier
    }
    if loses_text:
        earlier = {file: UNSTAMPED if stamp.startswith(SHARED) else stamp for file, stamp in earlier.items()}
    return {file: stamp for file, stamp in {**earlier, **new}.items() if stamp}


def load_retriever(folder: Folder, *, encode: Encode | str | os.PathLike[str] | None = None) -> Retriever:
    """Load the retriever saved in a folder, of any kind.

    `encode`: the encoder of a dense index, or its hub id or folder. An untrusted index must not choose a model to load:
    without `encode`, only the bundled model and that of $COPYSPEC_MODEL are loaded, others raise ValueError.
    """
    with files.opened(folder) as index:
        return read_retriever(index, encode)


def load_corpus(
    folder: Folder, *, encode: Encode | str | os.PathLike[str] | None = None
) -> tuple[Retriever, list[Passage]]:
    """Load a retriever and its passages from the same state of a folder that may be written to; see
    `load_retriever`."""
    with files.opened(folder) as index:
        retriever = read_retriever(index, encode)
        return retriever, read_places(index, retriever.texts)


def read_retriever(index: files.Opened, encode: Encode | str | os.PathLike[str] | None = None) -> Retriever:
    """Do the work of `load_retriever` for an opened index."""
    kind, folder = index.manifest.kind, index.folder
    if kind == bm25.KIND:
        return BM25Retriever.read(index)
    if kind not in (dense.KIND, hybrid.KIND):
        raise files.IndexFileError(
            f"{str(folder)!r} holds an index of kind {kind!r}, which has no passages; open it as Datastore"
        )
    chosen: Any = encode
    takes_prefix = hasattr(chosen, "prefixed")  # it has none of its own yet
    if takes_prefix or chosen is None or isinstance(chosen, (str, os.PathLike)):
        by_vectors = index if kind == dense.KIND else hybrid.parts(index)[1]
        made_with = dense.read_facts(by_vectors)["encoder"]
        prefix = made_with.get("prefix") if isinstance(made_with, dict) else None
        chosen = chosen.prefixed(prefix or "") if takes_prefix else _encoder(folder, made_with, chosen)
    return DenseRetriever.read(index, chosen) if kind == dense.KIND else HybridRetriever.read(index, chosen)


def _encoder(folder: Folder, made_with: object, named: str | os.PathLike[str] | None) -> HuggingFaceEmbedder:
    """Load the encoder that the caller names, with the prefix of the index; without a name only trusted ones."""
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
