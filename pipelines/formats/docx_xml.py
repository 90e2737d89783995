"""Parses WordprocessingML into paragraphs and runs (ECMA-376 part 1, 17.3), with their byte offsets."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from xml.sax.saxutils import unescape

from ..documents import FormatError
from .archives import parse, xml_parser
from .docx_styles import Styles, is_outlined
from .segments import OBJECT

_SPACES = (
    "http://schemas.openxmlformats.org/wordprocessingml/2006/main",
    "http://purl.oclc.org/ooxml/wordprocessingml/main",
)
_SIGNS = {"tab": "\t", "br": "\n", "cr": "\n", "noBreakHyphen": "\u2011", "softHyphen": "\u00ad"}
_SILENT = frozenset({"lastRenderedPageBreak", "rPr"})
_REVISIONS = frozenset({"ins", "del", "moveFrom", "moveTo", "rPrChange", "pPrChange"})
_FORMULA = re.compile(rb"<(?:[\w.-]+:)?t(?:\s[^<>]*)?>([^<>]*)<")
"""The letters and signs of a formula."""
_XML_SPACE = "http://www.w3.org/XML/1998/namespace space"
TAG = re.compile(rb"<[^\"'>]*(?:\"[^\"]*\"[^\"'>]*|'[^']*'[^\"'>]*)*>")
"""A start or end tag; values of attributes may hold `>`."""


@dataclass(slots=True)
class Atom:
    """A child of a run: its text, or a character that stands for it."""

    start: int  # bytes
    end: int
    text: str
    is_text: bool


@dataclass(slots=True)
class Run:
    start: int  # bytes
    end: int = 0
    head: bytes = b""  # its start tag
    properties: bytes = b""
    atoms: list[Atom] = field(default_factory=list)
    is_opaque: bool = False  # holds elements that cannot be split
    is_fixed: bool = False  # the result of a field, hidden text, or text excluded from proofreading
    in_link: bool = False

    @property
    def size(self) -> int:
        return sum(len(atom.text) for atom in self.atoms)


@dataclass(slots=True)
class Paragraph:
    runs: list[Run] = field(default_factory=list)
    is_revised: bool = False  # already holds tracked changes
    is_title: bool = False
    is_item: bool = False  # an item of a list, or in a table cell
    is_code: bool = False

    @property
    def text(self) -> str:
        return "".join(atom.text for run in self.runs for atom in run.atoms)


def paragraphs(xml: bytes, styles: Styles) -> list[Paragraph]:
    """Return the paragraphs of a file, including those in tables and text boxes, in the order of their ends.

    Raises FormatError for XML that is malformed, not UTF-8, has a document type or no namespace prefixes.
    """
    return _Parser(xml, styles).found


class _Parser:
    def __init__(self, xml: bytes, styles: Styles) -> None:
        self.xml = xml
        self.styles = styles
        self.found: list[Paragraph] = []
        self.paragraphs: list[Paragraph] = []  # open paragraphs; text boxes nest them
        self.runs: list[Run] = []
        self.path: list[str] = []
        self.starts: list[int] = []
        self.fields = 0  # number of open fields; a table of contents is one field over many paragraphs
        # Number of open elements by name: searching `path` would take quadratic time in the depth.
        self.open = dict.fromkeys(("hyperlink", "fldSimple", "tc", "Fallback"), 0)
        self.keeps_space = [False]  # xml:space, inherited
        self.chars: list[str] = []
        self.head = b"<w:r>"
        self.parser = xml_parser(xml)
        self.parser.StartElementHandler = self._start
        self.parser.EndElementHandler = self._end
        self.parser.CharacterDataHandler = self.chars.append
        self.parser.CommentHandler = self.parser.ProcessingInstructionHandler = self._aside
        parse(self.parser, xml)

    def _aside(self, *_: object) -> None:
        """Handle a comment, which would be lost if its run were rewritten."""
        if self.runs:
            self.runs[-1].is_opaque = True

    def _start(self, expanded: str, attributes: dict[str, str]) -> None:
        space, _, name = expanded.rpartition(" ")
        name = name if space in _SPACES else f"{space} {name}"
        at = self.parser.CurrentByteIndex
        parent = self.path[-1] if self.path else ""
        if (kind := name.rpartition(" ")[2]) in self.open:
            self.open[kind] += 1
        if parent == "t" and self.runs:
            self.runs[-1].is_opaque = True  # elements inside text
        if name == "p":
            self.paragraphs.append(Paragraph(is_item=self.open["tc"] > 0))
        elif name == "pStyle" and self.paragraphs:
            paragraph, style = self.paragraphs[-1], self.styles.of(_value(attributes, "val"))
            paragraph.is_title |= style.is_title
            paragraph.is_item |= style.is_item
            paragraph.is_code |= style.is_code
        elif name == "outlineLvl" and self.paragraphs:
            self.paragraphs[-1].is_title |= is_outlined(_value(attributes, "val"))
        elif name == "numPr" and self.paragraphs:
            self.paragraphs[-1].is_item = True
        elif name == "rStyle" and self.runs:
            self.runs[-1].is_fixed |= self.styles.of(_value(attributes, "val")).is_code
        elif name == "r" and self.paragraphs and parent != "r":
            in_link = self.open["hyperlink"] > 0
            fixed = self.fields > 0 or self.open["fldSimple"] > 0
            self.head = self._tag(at)
            if b":" not in self.head.split(maxsplit=1)[0]:  # changes have attributes, which need a prefix
                raise FormatError("the XML has no namespace prefixes: save the document in a word processor first")
            self.runs.append(Run(at, head=_opened(self.head), is_fixed=fixed, in_link=in_link))
        elif name == "fldChar":
            kind = _value(attributes, "fldCharType")
            self.fields = max(0, self.fields + {"begin": 1, "end": -1}.get(kind, 0))
        elif name in _REVISIONS and self.paragraphs:
            self.paragraphs[-1].is_revised = True
        space_kept = attributes.get(_XML_SPACE, "preserve" if self.keeps_space[-1] else "")
        self.keeps_space.append(space_kept == "preserve")
        self.chars.clear()
        self.path.append(name)
        self.starts.append(at)

    def _end(self, _: str) -> None:
        name, start, keeps = self.path.pop(), self.starts.pop(), self.keeps_space.pop()
        parent = self.path[-1] if self.path else ""
        if (kind := name.rpartition(" ")[2]) in self.open:
            self.open[kind] -= 1
        at, opening = self.parser.CurrentByteIndex, self._tag(start)
        # For an empty element expat reports the position after it, otherwise that of the closing tag.
        end = start + len(opening) if opening.endswith(b"/>") else at + len(self._tag(at))
        if parent == "r" and self.runs:
            self._child(self.runs[-1], name, start, end, keeps=keeps)
        elif name == "r" and self.runs:
            run = self.runs.pop()
            run.end = end
            self.paragraphs[-1].runs.append(_whole(run) if run.is_opaque else run)
        elif name.endswith(" oMath") and self.paragraphs:
            formula = _whole(Run(start, end, head=self.head, is_opaque=True))
            formula_text = b"".join(_FORMULA.findall(self.xml, start, end)).decode()
            formula.atoms[0].text = unescape(formula_text) or OBJECT
            self.paragraphs[-1].runs.append(formula)
        elif name == "p" and self.paragraphs:
            paragraph = self.paragraphs.pop()
            if not self.open["Fallback"]:
                self.found.append(paragraph)
        self.chars.clear()

    def _child(self, run: Run, name: str, start: int, end: int, *, keeps: bool) -> None:
        if name == "rPr":
            run.properties = self.xml[start:end]
            run.is_fixed |= b"noProof" in run.properties or b"vanish" in run.properties
        elif name == "t":
            text = "".join(self.chars)
            run.atoms.append(Atom(start, end, text if keeps else text.strip(" \t\r\n"), True))
        elif name in _SIGNS:
            run.atoms.append(Atom(start, end, _SIGNS[name], False))
        elif name not in _SILENT:
            run.is_opaque = True

    def _tag(self, at: int) -> bytes:
        match = TAG.match(self.xml, at)
        return match[0] if match else b""


def _value(attributes: dict[str, str], key: str) -> str:
    return next((value for name, value in attributes.items() if name.endswith(f" {key}")), "")


def _opened(tag: bytes) -> bytes:
    return tag[:-2] + b">" if tag.endswith(b"/>") else tag


def _whole(run: Run) -> Run:
    run.atoms = [Atom(run.start, run.end, OBJECT, False)]
    return run
