"""Word documents: paragraphs, tables, headers, footers and notes; corrections come as tracked changes."""

from __future__ import annotations

import io
import re
import struct
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import BinaryIO

from ..documents import Edit, FormatError, Part, Refusal, Segment
from .docx_revisions import Revision, spliced
from .docx_xml import OBJECT, Paragraph, paragraphs
from .reading import as_label, changed, joined, segment_of

_STORIES = re.compile(r"word/(?:document|header|footer|footnotes|endnotes)\d*\.xml")
_IDS = re.compile(rb"\bid=[\"'](\d{1,9})[\"']")
_SIZE_LIMIT = 64 << 20
"""Bytes of XML after unpacking, counted as they come: a header may say less. No person writes more."""
_RATIO_LIMIT, _RATIO_FREE = 100, 8 << 20
"""Bytes after unpacking for each byte of the file, above so many: Word's own XML packs ten to twenty to one."""
_CHUNK = 1 << 16
_PACKINGS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
"""What Word documents are packed with (ECMA-376 part 2, annex C); others do not unpack in small steps."""
_BROKEN = (
    zipfile.BadZipFile,
    zipfile.LargeZipFile,
    zlib.error,
    struct.error,
    RuntimeError,
    NotImplementedError,
    EOFError,
    OSError,
    ValueError,
    IndexError,
)


@dataclass(frozen=True, slots=True)
class _Placed:
    """A paragraph, and where its text begins in the part's."""

    story: str
    paragraph: Paragraph
    start: int


@dataclass(frozen=True, slots=True)
class _Document:
    data: bytes
    placed: tuple[_Placed, ...]


class DocxFormat:
    """The whole document is one part, its text the paragraphs, a line each; it is held in memory."""

    def __init__(self, *, is_tracked: bool = True, author: str = "copyspec") -> None:
        """`is_tracked`: changes can be accepted or rejected in a word processor; else they are made outright."""
        self.revision = Revision(author, is_tracked)

    def read(self, stream: BinaryIO) -> Iterator[Part]:
        data = stream.read()
        text, at = [], 0
        placed: list[_Placed] = []
        segments: list[Segment] = []
        refused: list[Refusal] = []
        for story, xml in _stories(data).items():
            for paragraph in paragraphs(xml):
                placed.append(_Placed(story, paragraph, at))
                found = _segment(paragraph, at)
                if isinstance(found, Refusal):
                    refused.append(found)
                elif found:
                    segments.append(found)
                text.append(paragraph.text + "\n")
                at += len(text[-1])
        yield Part("".join(text), tuple(segments), tuple(refused), _Document(data, tuple(placed)))

    def write(self, part: Part, edits: Sequence[Edit]) -> bytes:
        document = part.carried
        if not isinstance(document, _Document):
            raise TypeError(f"a part of another format: {part!r}")
        if not edits:
            return document.data
        changed(part.text, edits)  # raises for what may not be written
        changes = _by_story(document.placed, edits)
        stories = _stories(document.data)
        next_id = 1 + max((int(found[1]) for xml in stories.values() for found in _IDS.finditer(xml)), default=0)
        new: dict[str, bytes] = {}
        for story, pairs in changes.items():
            new[story], next_id = spliced(stories[story], pairs, self.revision, next_id)
        return _rezipped(document.data, new)


def _stories(data: bytes) -> dict[str, bytes]:
    """The XML of the parts that hold text, the main one first. Raises FormatError for what is no document."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            names = archive.namelist()
            if len(set(names)) < len(names):
                raise FormatError("the archive holds two files of the same name, which no word processor writes")
            stories = [name for name in names if _STORIES.fullmatch(name)]
            if not any(name.startswith("word/document") for name in stories):
                raise FormatError("no Word document: the archive has no word/document.xml")
            left = min(_SIZE_LIMIT, max(_RATIO_FREE, _RATIO_LIMIT * len(data)))
            found = {}
            for name in sorted(stories, key=lambda name: (name[5] != "d", name)):
                found[name] = _unpacked(archive, name, left)
                left -= len(found[name])
            return found
    except FormatError:
        raise
    except _BROKEN as error:
        raise FormatError(f"no Word document (.docx): {error}; encrypted and old .doc files cannot be read") from None


def _unpacked(archive: zipfile.ZipFile, name: str, limit: int) -> bytes:
    """A file of the archive, unpacked step by step. Raises FormatError where it is longer than `limit`."""
    info = archive.getinfo(name)
    if info.compress_type not in _PACKINGS:
        raise FormatError(f"{name!r} is packed by method {info.compress_type}: Word documents are deflated or stored")
    pieces, size = [], 0
    with archive.open(info) as file:
        while piece := file.read(_CHUNK):
            size += len(piece)
            if size > limit:
                raise FormatError(
                    f"{name!r} unpacks to more than {limit >> 20} MB: a document's text is {_SIZE_LIMIT >> 20} MB at "
                    f"most, and {_RATIO_LIMIT} times its file where that is more than {_RATIO_FREE >> 20} MB"
                )
            pieces.append(piece)
    return b"".join(pieces)


def _segment(paragraph: Paragraph, offset: int) -> Segment | Refusal | None:
    text = paragraph.text
    found = segment_of(text, 0, len(text))
    if not isinstance(found, Segment):
        return found
    found = as_label(text, found) if paragraph.is_label else found
    if paragraph.is_revised:
        return Refusal("tracked", f"{text[:40]!r} holds tracked changes: accept or reject them first")
    protected: list[tuple[int, int]] = []
    hidden: list[tuple[int, int]] = []
    at = 0
    for run in paragraph.runs:
        for atom in run.atoms:
            span = (max(at, found.start), min(at + len(atom.text), found.end))
            at += len(atom.text)
            if span[0] >= span[1]:
                continue
            if run.is_fixed or not atom.is_text:
                protected.append((span[0] + offset, span[1] + offset))
            if atom.text == OBJECT:
                hidden.append((span[0] + offset, span[1] + offset))
    return replace(
        found,
        start=found.start + offset,
        end=found.end + offset,
        protected=joined(((start + offset, end + offset) for start, end in found.protected), protected),
        hidden=tuple(hidden),
    )


def _by_story(placed: Sequence[_Placed], edits: Sequence[Edit]) -> dict[str, list[tuple[Paragraph, list[Edit]]]]:
    """Edits with offsets in their paragraphs. Raises ValueError for one that goes beyond its paragraph."""
    found: dict[str, list[tuple[Paragraph, list[Edit]]]] = {}
    waiting = list(reversed(edits))
    for place in placed:
        end = place.start + len(place.paragraph.text)
        mine: list[Edit] = []
        while waiting and waiting[-1].start <= end:
            edit = waiting.pop()
            if edit.start < place.start or edit.end > end:
                raise ValueError(f"{edit!r} goes beyond its paragraph ({place.start} to {end})")
            mine.append(Edit(edit.start - place.start, edit.end - place.start, edit.replacement))
        if mine:
            found.setdefault(place.story, []).append((place.paragraph, mine))
    return found


def _rezipped(data: bytes, new: dict[str, bytes]) -> bytes:
    """The archive with some of its files replaced. The others are not even unpacked: their bytes are copied."""
    out = io.BytesIO()
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive, zipfile.ZipFile(out, "w") as copy:
            copy.comment = archive.comment
            listed = sorted(archive.infolist(), key=lambda info: info.header_offset)
            borders = [*(info.header_offset for info in listed), archive.start_dir]
            for info, (start, end) in zip(listed, pairwise(borders), strict=True):
                if info.filename in new:
                    copy.writestr(info, new[info.filename], compress_type=info.compress_type)
                    continue
                if not 0 <= start + info.compress_size <= end <= len(data):
                    raise FormatError(
                        f"files of the archive overlap at {info.filename!r}: no word processor writes that"
                    )
                info.header_offset = out.tell()
                out.write(data[start:end])
                copy.filelist.append(info)
                copy.start_dir = out.tell()
    except FormatError:
        raise
    except _BROKEN as error:
        raise FormatError(f"the document cannot be packed again: {error}") from None
    return out.getvalue()
