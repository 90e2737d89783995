"""Passages: pieces of documents that a search returns, each with its place in the document it comes from."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from . import files
from .base import Folder
from .saving import Saving

_FILES = ("passages.names", "passages.documents", "passages.starts")
_LAST_START = 1 << 50  # characters: no text is longer

MAX_CHARS = 1000
"""Of a passage: about 250 tokens, the document size of RaLMSpec's experiments (at most 256 tokens)."""

SUFFIXES = (".txt", ".md", ".jsonl")
"""Of the files that are read from folders."""

_PARAGRAPHS = re.compile(r"\n[ \t]*\n\s*")
_SENTENCES = re.compile(r"(?<=[.!?])\s+|(?<=[.!?][\"')\]”’])\s+|\n")
_WORDS = re.compile(r"\s+")


@dataclass(frozen=True, slots=True)
class Document:
    """One text as it was read."""

    name: str  # a file's path; for lines of a .jsonl file with ":" and the line's number
    text: str


@dataclass(frozen=True, slots=True)
class Passage:
    """text == the document's text[start : start + len(text)]."""

    document: str  # name
    start: int  # characters
    text: str


def read_documents(paths: Iterable[Folder], *, field: str = "text") -> Iterator[Document]:
    """The texts of files and of the .txt, .md and .jsonl files in folders, in the order of their names.

    Lines of .jsonl files are objects with their text under `field`. Raises ValueError for what is none of these,
    naming the file and line.
    """
    if isinstance(paths, str):
        raise TypeError(f"paths must be a list of paths, got one string: write [{paths!r}]")
    for path in [Path(given) for given in paths]:
        if path.is_dir():
            found = sorted(file for file in path.rglob("*") if file.is_file() and file.suffix in SUFFIXES)
            if not found:
                raise ValueError(f"folder {str(path)!r} holds no file with one of the endings {', '.join(SUFFIXES)}")
        elif path.exists():
            found = [path]
        else:
            raise FileNotFoundError(f"there is no file or folder {str(path)!r}")
        for file in found:
            yield from _read(file, field)


def split_passages(document: Document, *, max_chars: int = MAX_CHARS) -> list[Passage]:
    """The document in passages of at most `max_chars` characters: whole paragraphs while they fit, else sentences,
    else words. Nothing but white space is left out."""
    if max_chars < 1:
        raise ValueError(f"max_chars must be at least 1, got {max_chars!r}")
    passages: list[Passage] = []
    start = end = 0
    for piece_start, piece_end in _pieces(document.text, 0, len(document.text), max_chars, 0):
        if start < end and piece_end - start > max_chars:
            passages.append(Passage(document.name, start, document.text[start:end]))
            start = piece_start
        elif start == end:
            start = piece_start
        end = piece_end
    if start < end:
        passages.append(Passage(document.name, start, document.text[start:end]))
    return passages


def write_passages(index: Saving, passages: Sequence[Passage]) -> None:
    """Writes where the passages stand, not their texts: those are the index's own, by id."""
    names = {name: number for number, name in enumerate(dict.fromkeys(passage.document for passage in passages))}
    index.strings("passages.names", list(names))
    index.array("passages.documents", np.array([names[passage.document] for passage in passages], np.uint32))
    index.array("passages.starts", np.array([passage.start for passage in passages], np.uint64))


def read_places(index: files.Opened, count: int) -> list[tuple[str, int]]:
    """Document and start of each of the index's `count` passages. Raises files.IndexFileError for others."""
    if "passages.names" not in index.manifest.files:
        raise files.IndexFileError(
            f"{os.fspath(index.folder)!r} does not say where its passages stand: build it with `copyspec index add`"
        )
    files.check_keys(index.folder, index.manifest, _FILES, tuple(index.manifest.files))
    names = index.strings("passages.names")
    documents, starts = index.array("passages.documents", np.uint32), index.array("passages.starts", np.uint64)
    if len(documents) != count or len(starts) != count:
        raise index.wrong(
            "passages.starts", f"{len(documents)} and {len(starts)} places, but the index holds {count} passages"
        )
    if count and (documents.max() >= len(names) or starts.max() > _LAST_START):
        raise index.wrong("passages.documents", f"places beyond the {len(names)} documents or the end of a text")
    return [(names[number], start) for number, start in zip(documents.tolist(), starts.tolist(), strict=True)]


def load_passages(folder: Folder, texts: Sequence[str]) -> list[Passage]:
    """The passages of these texts: those of the index in `folder`, or the first of them where passages were added
    since. Raises files.IndexFileError where they are none of its; `load_corpus` reads both at once."""
    with files.opened(folder) as index:
        held = index.strings("texts") if "texts" in index.manifest.files else []
        if held[: len(texts)] != list(texts):
            raise files.IndexFileError(
                f"the index in {os.fspath(folder)!r} holds {len(held)} passages, and these {len(texts)} texts are not "
                "the first of them: load its retriever again"
            )
        places = read_places(index, len(held))
    return [Passage(name, start, text) for (name, start), text in zip(places, texts, strict=False)]


def _read(file: Path, field: str) -> Iterator[Document]:
    try:
        text = file.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{str(file)!r} is not UTF-8 (byte {error.start}); convert it first") from error
    if file.suffix != ".jsonl":
        yield Document(str(file), text)
        return
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            yield Document(f"{file}:{number}", _field(file, number, line, field))


def _field(file: Path, number: int, line: str, field: str) -> str:
    where = f"{str(file)!r}, line {number}"
    try:
        row = json.loads(line)
    except ValueError as error:
        raise ValueError(f"{where}: not JSON ({error})") from None
    if not isinstance(row, dict) or not isinstance(row.get(field), str):
        held = f"; it has {', '.join(map(repr, row))}" if isinstance(row, dict) else ""
        raise ValueError(f"{where}: no text under {field!r}{held}; name the field that holds it")
    return str(row[field])


def _pieces(text: str, start: int, end: int, max_chars: int, level: int) -> Iterator[tuple[int, int]]:
    """Spans of at most `max_chars`, cut at the coarsest borders that make them short enough."""
    borders = (_PARAGRAPHS, _SENTENCES, _WORDS)
    start += len(text[start:end]) - len(text[start:end].lstrip())
    end = start + len(text[start:end].rstrip())
    if start >= end:
        return
    if end - start <= max_chars and level > 0:
        yield start, end
    elif level == len(borders):
        yield from ((at, min(at + max_chars, end)) for at in range(start, end, max_chars))
    else:
        at = start
        for border in borders[level].finditer(text, start, end):
            yield from _pieces(text, at, border.start(), max_chars, level + 1)
            at = border.end()
        yield from _pieces(text, at, end, max_chars, level + 1)
