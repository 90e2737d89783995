"""OpenDocument texts: paragraphs, headings, cells and notes are text; corrections are untracked, other bytes kept."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import BinaryIO
from xml.sax.saxutils import escape

from ..documents import Edit, FormatError, Part, Refusal, Segment
from .anchors import linked
from .archives import parse, repacked, unpacked, xml_parser
from .docx_styles import Style
from .docx_xml import TAG
from .neighbours import SPACE, in_context
from .reading import changed
from .segments import OBJECT, document_part, paragraph_segment
from .whole import names

_CONTENT = "content.xml"
_TEXT, _TABLE, _OFFICE, _STYLE = (
    f"urn:oasis:names:tc:opendocument:xmlns:{name}:1.0 " for name in ("text", "table", "office", "style")
)
_PARAGRAPHS = frozenset({_TEXT + "p", _TEXT + "h"})
_ITEMS = frozenset({_TEXT + "list-item", _TABLE + "table-cell"})
_INLINE = frozenset({_TEXT + "span", _TEXT + "a", _TEXT + "meta"})
_SIGNS = {_TEXT + "s": " ", _TEXT + "tab": "\t", _TEXT + "line-break": "\n"}
_MARKS = frozenset(
    _TEXT + name
    for name in names(
        "bookmark bookmark-start bookmark-end soft-page-break reference-mark reference-mark-start reference-mark-end "
        "alphabetical-index-mark toc-mark user-index-mark"
    )
)
"""Elements that do not stand for a character."""
_REVISIONS = frozenset(_TEXT + name for name in ("change", "change-start", "change-end"))
_ASIDE = frozenset({_TEXT + "tracked-changes", _OFFICE + "annotation"})


@dataclass(frozen=True, slots=True)
class _Piece:
    """Characters of a paragraph, and the bytes of the XML that hold them."""

    start: int  # bytes
    end: int
    text: str
    is_plain: bool  # the characters are in the XML as such; otherwise a reference or an element stands for them
    in_cdata: bool = False

    def byte(self, at: int) -> int:
        """The byte offset of character `at`."""
        if at >= len(self.text):
            return self.end
        return self.start + len(self.text[:at].encode()) if self.is_plain else self.start


@dataclass(slots=True)
class _Paragraph:
    is_title: bool
    is_item: bool  # in a list or a table
    is_code: bool
    pieces: list[_Piece] = field(default_factory=list)
    is_revised: bool = False

    @property
    def text(self) -> str:
        return "".join(piece.text for piece in self.pieces)


@dataclass(frozen=True, slots=True)
class _Document:
    data: bytes
    pieces: tuple[_Piece, ...]  # of all paragraphs, with one for each line break between them


class OpenDocumentFormat:
    """The whole document is one part, with a line for each paragraph; it is held in memory."""

    def read(self, stream: BinaryIO) -> Iterator[Part]:
        data = stream.read()
        content = _content(data)
        paragraphs = _Parser(content).found
        part, _ = document_part((paragraph.text, _segment(paragraph)) for paragraph in paragraphs)
        pieces = (piece for paragraph in paragraphs for piece in (*paragraph.pieces, _Piece(0, 0, "\n", False)))
        part = replace(part, carried=_Document(data, tuple(pieces)))
        yield from in_context([part], SPACE, linked(content.decode(errors="replace")))

    def write(self, part: Part, edits: Sequence[Edit]) -> bytes:
        document = part.carried
        if not isinstance(document, _Document):
            raise TypeError(f"a part of another format: {part!r}")
        if not edits:
            return document.data
        changed(part.text, edits)  # raises for edits that must not be written
        xml = _content(document.data)
        starts = list(accumulate((len(piece.text) for piece in document.pieces), initial=0))
        out, at = [], 0
        for start, end, new in sorted(splice for edit in edits for splice in _splices(document.pieces, starts, edit)):
            out += [xml[at:start], new]
            at = end
        return repacked(document.data, {_CONTENT: b"".join([*out, xml[at:]])})


def _segment(paragraph: _Paragraph) -> Segment | Refusal | None:
    pieces = ((piece.text, piece.is_plain) for piece in paragraph.pieces)
    return paragraph_segment(paragraph, pieces, "the word processor")


def _splices(pieces: Sequence[_Piece], starts: Sequence[int], edit: Edit) -> Iterator[tuple[int, int, bytes]]:
    """Yield (first byte, last byte, new XML) for an edit."""
    new = escape(edit.replacement).encode()
    if edit.start == edit.end:
        # After the preceding piece; at the beginning of a paragraph, before the first one.
        number = max(0, bisect_left(starts, edit.start) - 1)
        if pieces[number].text == "\n" and not pieces[number].end:
            number += 1
        place = pieces[number].byte(edit.start - starts[number])
        # The insertion is escaped, and CDATA sections do not resolve references: the section is closed and reopened.
        yield place, place, b"]]>" + new + b"<![CDATA[" if pieces[number].in_cdata else new
        return
    for number in range(bisect_right(starts, edit.start) - 1, bisect_left(starts, edit.end)):
        piece, first = pieces[number], starts[number]
        if not piece.is_plain:
            raise ValueError(f"{edit!r} touches something other than text")
        yield piece.byte(max(edit.start - first, 0)), piece.byte(edit.end - first), new
        new = b""


def _content(data: bytes) -> bytes:
    def chosen(names: list[str]) -> list[str]:
        if _CONTENT not in names:
            raise FormatError(f"not an OpenDocument text: the archive has no {_CONTENT}")
        return [_CONTENT]

    return unpacked(data, chosen, "OpenDocument text (.odt)", "encrypted files cannot be read")[_CONTENT]


class _Parser:
    """Finds the paragraphs of a document's content, in the order of their ends. Raises as `parse`."""

    def __init__(self, xml: bytes) -> None:
        self.xml = xml
        self.found: list[_Paragraph] = []
        self.paragraphs: list[_Paragraph] = []  # open paragraphs; notes nest them
        self.objects: list[
            tuple[int, int, int]
        ] = []  # open elements that are read as one object: (depth, byte, number of open paragraphs)
        self.depth = self.cells = self.asides = 0
        self.codes: list[int] = []  # depths of open spans of code
        self.bases: dict[str, str] = {}  # styles of the content, and the named ones that they are based on
        self.in_cdata = False
        self.parser = xml_parser(xml)
        self.parser.StartElementHandler = self._start
        self.parser.EndElementHandler = self._end
        self.parser.CharacterDataHandler = self._characters
        self.parser.StartCdataSectionHandler = lambda: self._cdata(True)
        self.parser.EndCdataSectionHandler = lambda: self._cdata(False)
        parse(self.parser, xml)

    def _cdata(self, is_open: bool) -> None:
        self.in_cdata = is_open

    @property
    def _is_inside(self) -> bool:
        """Whether characters belong to the innermost paragraph."""
        inner = self.objects and self.objects[-1][2] == len(self.paragraphs)
        return bool(self.paragraphs) and not inner and not self.asides

    def _named(self, attributes: dict[str, str]) -> Style:
        """The named style of a paragraph or a span."""
        style = attributes.get(_TEXT + "style-name", "")
        return Style.named(self.bases.get(style, style).replace("_20_", " "))

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        self.depth += 1
        self.asides += name in _ASIDE
        self.cells += name in _ITEMS
        if name in _PARAGRAPHS:
            style = self._named(attributes)
            self.paragraphs.append(_Paragraph(name == _TEXT + "h" or style.is_title, self.cells > 0, style.is_code))
        elif name == _STYLE + "style":
            self.bases[attributes.get(_STYLE + "name", "")] = attributes.get(_STYLE + "parent-style-name", "")
        elif self._is_inside:
            if name in _REVISIONS:
                self.paragraphs[-1].is_revised = True
            elif name in _INLINE:
                if self._named(attributes).is_code:
                    self.codes.append(self.depth)
            elif name not in _MARKS:
                self.objects.append((self.depth, self.parser.CurrentByteIndex, len(self.paragraphs)))

    def _end(self, name: str) -> None:
        if name in _PARAGRAPHS:
            paragraph = self.paragraphs.pop()
            if not self.asides:
                self.found.append(paragraph)
        elif self.objects and self.objects[-1][0] == self.depth:
            _, start, _ = self.objects.pop()
            # For an empty element expat reports the position after its tag, otherwise that of the closing tag.
            tag = TAG.match(self.xml, start)
            assert tag is not None
            is_empty = tag[0].endswith(b"/>")
            end = tag.end() if is_empty else self.xml.index(b">", self.parser.CurrentByteIndex) + 1
            self.paragraphs[-1].pieces.append(_Piece(start, end, _SIGNS.get(name, OBJECT), False))
        elif self.codes and self.codes[-1] == self.depth:
            self.codes.pop()
        self.asides -= name in _ASIDE
        self.cells -= name in _ITEMS
        self.depth -= 1

    def _characters(self, text: str) -> None:
        if not self._is_inside:
            return
        start = self.parser.CurrentByteIndex
        raw = text.encode()
        if self.in_cdata or self.xml[start : start + len(raw)] != raw or raw.startswith(b"&"):
            mark = self.xml.find(b";", start) + 1 if self.xml[start : start + 1] == b"&" else 0
            is_crlf = raw == b"\n" and self.xml[start : start + 2] == b"\r\n"
            end = mark if mark and not self.in_cdata else start + len(raw) + is_crlf
            self.paragraphs[-1].pieces.append(_Piece(start, end, text, False, self.in_cdata))
        else:
            self.paragraphs[-1].pieces.append(_Piece(start, start + len(raw), text, not self.codes))
