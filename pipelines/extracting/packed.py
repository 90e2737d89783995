"""Extracts text from Word, PowerPoint and EPUB files: zip archives of XML, unpacked in bounded memory."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from urllib.parse import unquote
from xml.etree import ElementTree

from copyspec.filesystem import open_input
from copyspec.retrievers import Document

from ..documents import FormatError
from ..formats.archives import unpacked
from .markup import Text, decoded, fill_from_html, joined

MAX_FILE = 200 << 20
_W = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
_A = "{http://schemas.openxmlformats.org/drawingml/2006/main}"
_P = "{http://schemas.openxmlformats.org/presentationml/2006/main}"
_HEADING_STYLE = re.compile(r"(?:heading|titre|berschrift|ttulo)\s*([1-9])", re.IGNORECASE)
_SLIDE = re.compile(r"ppt/slides/slide(\d{1,6})\.xml")


def read_docx(path: Path) -> Document:
    """Read the paragraphs of a Word file. Headings are found by their style; each table cell is a paragraph."""
    part = "word/document.xml"
    found = _unpacked(_held(path), lambda names: [name for name in names if name == part], "Word document")
    if part not in found:
        raise FormatError(f"not a Word document: the archive holds no {part}")
    text = Text()
    for paragraph in _parsed(found[part], part).iter(f"{_W}p"):
        style = paragraph.find(f"{_W}pPr/{_W}pStyle")
        value = style.get(f"{_W}val", "") if style is not None else ""
        heading = _HEADING_STYLE.search(value)
        level = 1 if value.lower() == "title" else int(heading.group(1)) if heading else None
        is_item = paragraph.find(f"{_W}pPr/{_W}numPr") is not None and level is None
        text.paragraph(("- " if is_item else "") + joined(_runs(paragraph)), level=level, tight=is_item)
    return text.document(str(path))


def read_pptx(path: Path) -> Document:
    """Read the slides of a PowerPoint file; each is a page, with its title as heading."""
    found = _unpacked(_held(path), lambda names: [name for name in names if _SLIDE.fullmatch(name)], "PowerPoint file")
    if not found:
        raise FormatError("not a PowerPoint file: the archive holds no slide")
    text = Text()
    for name in sorted(found, key=lambda each: int(_SLIDE.fullmatch(each).group(1))):  # type: ignore[union-attr]
        text.page()
        for shape in _outermost(_parsed(found[name], name), f"{_P}sp"):
            place = shape.find(f"{_P}nvSpPr/{_P}nvPr/{_P}ph")
            is_title = place is not None and place.get("type") in ("title", "ctrTitle")
            for paragraph in shape.iter(f"{_A}p"):
                line = joined(run.text or "" for run in _own(paragraph) if run.tag == f"{_A}t")
                text.paragraph(line, level=1 if is_title else None, tight=not is_title)
    return text.document(str(path))


def read_epub(path: Path) -> Document:
    """Read the chapters of an EPUB in reading order."""
    held = _held(path)
    container = _unpacked(held, lambda names: [name for name in names if name == "META-INF/container.xml"], "EPUB")
    if not container:
        raise FormatError("not an EPUB: the archive holds no META-INF/container.xml")
    roots = [
        each.get("full-path", "") for each in _every(_parsed(container["META-INF/container.xml"], "it"), "rootfile")
    ]
    package = _unpacked(held, lambda names: [name for name in names if name in roots[:1]], "EPUB")
    if not package:
        raise FormatError(f"not an EPUB: the archive holds no {', '.join(roots) or 'package document'}")
    ((root, data),) = package.items()
    tree, folder = _parsed(data, root), posixpath.dirname(root)
    hrefs = {item.get("id"): item.get("href", "") for item in _every(tree, "item")}
    order = [hrefs.get(each.get("idref"), "") for each in _every(tree, "itemref")]
    wanted = list(dict.fromkeys(posixpath.normpath(posixpath.join(folder, unquote(href))) for href in order if href))
    chapters = _unpacked(held, lambda names: _present(wanted, set(names)), "EPUB")
    text = Text()
    for name, chapter in chapters.items():
        fill_from_html(decoded(chapter, name), text)
    return text.document(str(path))


def _present(wanted: Sequence[str], names: Collection[str]) -> list[str]:
    return [name for name in wanted if name in names]


def _held(path: Path) -> bytes:
    with open_input(path) as file:
        held = file.read(MAX_FILE + 1)
    if len(held) > MAX_FILE:
        raise FormatError(f"it has more than {MAX_FILE >> 20} MB")
    return held


def _unpacked(held: bytes, choose: Callable[[list[str]], list[str]], kind: str) -> dict[str, bytes]:
    return unpacked(held, choose, kind, "it may be damaged or of another kind")


def _parsed(data: bytes, name: str) -> ElementTree.Element:
    """Parse XML. Document types are refused, because they can define entities or refer to other files."""

    class Untyped(ElementTree.TreeBuilder):
        def doctype(self, *_: object) -> None:  # called before any entity is defined, in every encoding
            raise FormatError(f"{name} has a document type, which no program writes there")

    try:
        root: ElementTree.Element = ElementTree.fromstring(data, ElementTree.XMLParser(target=Untyped()))
        return root
    except FormatError:
        raise
    except (ElementTree.ParseError, ValueError, LookupError) as error:
        raise FormatError(f"{name} is not XML: {error!s:.100}") from None


def _every(tree: ElementTree.Element, tag: str) -> Iterator[ElementTree.Element]:
    return (each for each in tree.iter() if isinstance(each.tag, str) and each.tag.rpartition("}")[2] == tag)


def _outermost(tree: ElementTree.Element, tag: str) -> Iterator[ElementTree.Element]:
    """The elements with this tag that stand in no other of them, in order."""
    waiting = [tree]
    while waiting:
        each = waiting.pop()
        if each.tag == tag:
            yield each
        else:
            waiting += reversed(each)


def _own(paragraph: ElementTree.Element) -> Iterator[ElementTree.Element]:
    """Everything in a paragraph in order, without the paragraphs in it (of text boxes), which stand for themselves."""
    waiting = list(reversed(paragraph))
    while waiting:
        each = waiting.pop()
        if each.tag != paragraph.tag:
            yield each
            waiting += reversed(each)


def _runs(paragraph: ElementTree.Element) -> Iterator[str]:
    for each in _own(paragraph):
        if each.tag == f"{_W}t":
            yield each.text or ""
        elif each.tag in (f"{_W}tab", f"{_W}br", f"{_W}cr"):
            yield " "
