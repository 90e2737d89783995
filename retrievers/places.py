"""Retrievers on disk, and where their passages stand: beside the texts of an index, document and position of each."""

from __future__ import annotations

import contextlib
import os
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from typing import ClassVar

import numpy as np

from . import files
from .base import ADD_LOCK, Folder, Retriever
from .passages import Passage
from .saving import Saving, saving

_FILES = ("passages.names", "passages.documents", "passages.starts")
_CONTEXT_FILES = ("passages.titles", "passages.headings", "passages.pages")
_LAST_START = 1 << 50  # characters; no text is longer


def write_passages(index: Saving, passages: Sequence[Passage], stamps: Mapping[str, str] | None = None) -> None:
    """Write the places of the passages; their texts are in the index itself, by id. `stamps`: of the files that they
    were read from, by name."""
    if stamps:
        index.strings("passages.stamps", [part for pair in stamps.items() for part in pair])
    names = {name: number for number, name in enumerate(dict.fromkeys(passage.document for passage in passages))}
    index.strings("passages.names", list(names))
    index.array("passages.documents", np.array([names[passage.document] for passage in passages], np.uint32))
    index.array("passages.starts", np.array([passage.start for passage in passages], np.uint64))
    titles = {title: number for number, title in enumerate(dict.fromkeys(passage.heading for passage in passages))}
    index.strings("passages.titles", list(titles))
    index.array("passages.headings", np.array([titles[passage.heading] for passage in passages], np.uint32))
    index.array("passages.pages", np.array([passage.page or 0 for passage in passages], np.uint32))


def keep_places(index: Saving, texts: Sequence[str]) -> None:
    """Write the places, and LangChain's ids, metadata and filter, of the index that the folder holds, if `texts` begin
    with its texts, so that a corpus that was loaded, added to and saved stays one. Later texts have a place in no
    document, named "", no id and no metadata."""
    before = index.before()
    if "passages.names" in index.files or before is None or not before.files.keys() & {"passages.names", "documents"}:
        return
    with contextlib.suppress(files.IndexFileError), files.opened(index.folder) as stored:  # a damaged one is replaced
        known = stored.strings("texts")
        if list(texts[: len(known)]) != known:
            return
        added = texts[len(known) :]
        if "passages.names" in before.files:
            places = [*read_places(stored, known), *(Passage("", 0, text) for text in added)]
            write_passages(index, places, read_stamps(stored))
        if "documents" in before.files and "documents" not in index.files:
            index.strings("documents", stored.strings("documents") + ["[null, {}]"] * len(added))
            if "retriever" in before.files:
                index.strings("retriever", stored.strings("retriever"))


class SavedRetriever(Retriever, ABC):
    """A retriever that saves itself; its `load` enters `files.opened(folder, kind)` and gives that to its `read`."""

    kind: ClassVar[str]

    @abstractmethod
    def write_files(self, index: Saving) -> tuple[str, dict[str, object]]:
        """Write the files. Returns the fingerprint and the facts for the manifest."""

    def save(self, folder: Folder) -> None:
        """Write the index into `folder`, which is created if missing. Raises BlockingIOError while another process
        writes there."""
        with saving(folder) as index:
            self.write(index)

    def write(self, index: Saving) -> None:
        """Write the files into `index`, and commit it with all that was written to it before, or with the places of the
        texts that the folder holds."""
        with ADD_LOCK:
            made_with, facts = self.write_files(index)
            keep_places(index, self.texts)
        index.commit(self.kind, made_with, facts)


def read_places(index: files.Opened, texts: Sequence[str]) -> list[Passage]:
    """Return the passages of `texts`, which are all texts of the index. Raises files.IndexFileError if they do not
    fit."""
    count = len(texts)
    if "passages.names" not in index.manifest.files:
        raise files.IndexFileError(
            f"{os.fspath(index.folder)!r} does not say where its passages stand: build it with `copyspec index add`"
        )
    index.require(*_FILES)
    names = index.strings("passages.names")
    documents, starts = index.array("passages.documents", np.uint32), index.array("passages.starts", np.uint64)
    if len(documents) != count or len(starts) != count:
        raise index.wrong(
            "passages.starts", f"{len(documents)} and {len(starts)} places, but the index holds {count} passages"
        )
    if count and (documents.max() >= len(names) or starts.max() > _LAST_START):
        raise index.wrong("passages.documents", f"places beyond the {len(names)} documents or the end of a text")
    contexts = _read_contexts(index, count)
    placed = zip(documents.tolist(), starts.tolist(), texts, contexts, strict=True)
    return [Passage(names[number], start, text, *context) for number, start, text, context in placed]


def read_stamps(index: files.Opened) -> dict[str, str]:
    """Return the stamps of the files that an index was made from, by name. Raises files.IndexFileError if damaged."""
    if "passages.stamps" not in index.manifest.files:
        return {}
    strings = index.strings("passages.stamps")
    if len(strings) % 2:
        raise index.wrong("passages.stamps", f"{len(strings)} names and stamps")
    return dict(zip(strings[::2], strings[1::2], strict=True))


def file_of(passage: Passage, file_names: Collection[str]) -> str | None:
    """The one of these files that a passage comes from, or from a line of which; None if there is none."""
    name = passage.document
    if name in file_names:
        return name
    file, _, line = name.rpartition(":")
    return file if file in file_names and line.isdigit() else None


def _read_contexts(index: files.Opened, count: int) -> list[tuple[str, int | None]]:
    """Heading and page of each passage; empty for indexes of versions that did not store them."""
    if not any(key in index.manifest.files for key in _CONTEXT_FILES):
        return [("", None)] * count
    index.require(*_CONTEXT_FILES)
    titles = index.strings("passages.titles")
    headings, pages = index.array("passages.headings", np.uint32), index.array("passages.pages", np.uint32)
    if len(headings) != count or len(pages) != count or (count and headings.max() >= len(titles)):
        raise index.wrong("passages.headings", f"headings and pages of {len(headings)} and {len(pages)} passages")
    return [(titles[number], page or None) for number, page in zip(headings.tolist(), pages.tolist(), strict=True)]


def load_passages(folder: Folder, texts: Sequence[str]) -> list[Passage]:
    """Return the passages of `texts`, which are the texts of the index in `folder`, or the first of them if more were
    added since. Raises files.IndexFileError otherwise; `load_corpus` reads retriever and passages at once."""
    with files.opened(folder) as index:
        stored = index.strings("texts") if "texts" in index.manifest.files else []
        if stored[: len(texts)] != list(texts):
            raise files.IndexFileError(
                f"the index in {os.fspath(folder)!r} holds {len(stored)} passages, and these {len(texts)} texts are "
                "not the first of them: load its retriever again"
            )
        return read_places(index, stored)[: len(texts)]
