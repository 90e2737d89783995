"""Word documents: paragraphs, tables, headers, footers and notes; corrections are written as tracked changes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import BinaryIO

from ..documents import Edit, FormatError, Part, Refusal, Segment
from .archives import repacked, unpacked
from .docx_revisions import Revision, spliced
from .docx_styles import Styles
from .docx_xml import Paragraph, paragraphs
from .neighbours import SPACE, in_context
from .reading import changed
from .segments import document_part, paragraph_segment

_STORIES = re.compile(r"word/(?:document|header|footer|footnotes|endnotes)\d*\.xml")
_IDS = re.compile(rb"\bid=[\"'](\d{1,9})[\"']")


@dataclass(frozen=True, slots=True)
class _Placed:
    """A paragraph, and the offset of its text in the part."""

    story: str
    paragraph: Paragraph
    start: int


@dataclass(frozen=True, slots=True)
class _Document:
    data: bytes
    placed: tuple[_Placed, ...]


class DocxFormat:
    """The whole document is one part, with a line for each paragraph; it is held in memory."""

    def __init__(self, *, is_tracked: bool = True, author: str = "copyspec") -> None:
        """`is_tracked`: write tracked changes, to be accepted or rejected in a word processor; otherwise apply them."""
        self.revision = Revision(author, is_tracked)

    def read(self, stream: BinaryIO) -> Iterator[Part]:
        data = stream.read()
        stories, styles = _stories(data), Styles(data)
        found = [(story, each) for story, xml in stories.items() for each in paragraphs(xml, styles)]
        part, starts = document_part((each.text, _segment(each)) for _, each in found)
        placed = tuple(_Placed(*each, at) for each, at in zip(found, starts, strict=True))
        part = replace(part, carried=_Document(data, placed))
        yield from in_context([part], SPACE)

    def write(self, part: Part, edits: Sequence[Edit]) -> bytes:
        document = part.carried
        if not isinstance(document, _Document):
            raise TypeError(f"a part of another format: {part!r}")
        if not edits:
            return document.data
        changed(part.text, edits)  # raises for edits that must not be written
        changes = _by_story(document.placed, edits)
        stories = _stories(document.data)
        next_id = 1 + max((int(found[1]) for xml in stories.values() for found in _IDS.finditer(xml)), default=0)
        new: dict[str, bytes] = {}
        for story, pairs in changes.items():
            new[story], next_id = spliced(stories[story], pairs, self.revision, next_id)
        return repacked(document.data, new)


def _stories(data: bytes) -> dict[str, bytes]:
    """The XML of the files with text, the main one first. Raises FormatError if the data is not a Word document."""

    def chosen(names: list[str]) -> list[str]:
        stories = [name for name in names if _STORIES.fullmatch(name)]
        if not any(name.startswith("word/document") for name in stories):
            raise FormatError("not a Word document: the archive has no word/document.xml")
        return sorted(stories, key=lambda name: (name[5] != "d", name))

    return unpacked(data, chosen, "Word document (.docx)", "encrypted and old .doc files cannot be read")


def _segment(paragraph: Paragraph) -> Segment | Refusal | None:
    atoms = ((atom.text, atom.is_text and not run.is_fixed) for run in paragraph.runs for atom in run.atoms)
    return paragraph_segment(paragraph, atoms, "Word")


def _by_story(placed: Sequence[_Placed], edits: Sequence[Edit]) -> dict[str, list[tuple[Paragraph, list[Edit]]]]:
    """Edits by file and paragraph, with offsets in it. Raises ValueError for one that exceeds its paragraph."""
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
