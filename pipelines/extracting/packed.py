"""Extracts text from Word, PowerPoint and EPUB files: zip archives of XML, unpacked in bounded memory."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from urllib.parse import unquote
from xml.etree import ElementTree

from copyspec.common.filesystem import open_input
from copyspec.retrievers import Document

from ..documents import FormatError
from ..formats.archives import unpacked
from .markup import MAX_ROW, Text, decoded, fill_from_html, joined

MAX_FILE = 200 << 20
_MC = "{http://schemas.openxmlformats.org/markup-compatibility/2006}"
_HEADING_STYLE = re.compile(r"(?:heading|titre|berschrift|ttulo)\s*([1-9])", re.IGNORECASE)
_CONTENTS_STYLE = re.compile(r"(?:toc|verzeichnis|tm|tdc|sommario|inhopg)\s*[1-9]\Z", re.IGNORECASE)
_DOCUMENT = re.compile(r"word/document\d*\.xml")  # with a number if Word for the web saved it
_SLIDE = re.compile(r"ppt/slides/slide(\d{1,6})\.xml")
_SIGNS = {"tab": " ", "ptab": " ", "br": " ", "cr": " ", "noBreakHyphen": "-"}


def read_docx(path: Path) -> Document:
    """Read the paragraphs and table rows of a Word file. Headings are found by their style, and so are the lines of
    tables of contents, which are left out."""
    parts = _unpacked(_read(path), lambda names: [name for name in names if _DOCUMENT.fullmatch(name)], "Word document")
    if not parts:
        raise FormatError("not a Word document: the archive holds no word/document.xml")
    text = Text()
    name, xml = min(parts.items())
    document = _parsed(xml, name)
    w = _space(document, "wordprocessingml")
    for paragraph in _filled(document, w, text):
        style = paragraph.find(f"{w}pPr/{w}pStyle")
        value = style.get(f"{w}val", "") if style is not None else ""
        if _CONTENTS_STYLE.match(value):
            continue
        heading = _HEADING_STYLE.search(value)
        level = 1 if value.lower() == "title" else int(heading.group(1)) if heading else None
        is_item = paragraph.find(f"{w}pPr/{w}numPr") is not None and level is None
        text.paragraph(("- " if is_item else "") + joined(_runs(paragraph, w)), level=level, tight=is_item)
    return text.document(str(path))


def read_pptx(path: Path) -> Document:
    """Read the slides of a PowerPoint file: each is a page with its title as heading."""
    slides = _unpacked(_read(path), lambda names: [name for name in names if _SLIDE.fullmatch(name)], "PowerPoint file")
    if not slides:
        raise FormatError("not a PowerPoint file: the archive holds no slide")
    text = Text()
    for name in sorted(slides, key=lambda name: int(_SLIDE.fullmatch(name).group(1))):  # type: ignore[union-attr]
        text.page()
        slide = _parsed(slides[name], name)
        p, a = _space(slide, "presentationml"), _space(slide, "drawingml")
        for shape in _outermost(slide, (f"{p}sp", f"{p}graphicFrame")):
            place = shape.find(f"{p}nvSpPr/{p}nvPr/{p}ph")
            is_title = place is not None and place.get("type") in ("title", "ctrTitle")
            for paragraph in _filled(shape, a, text):
                text.paragraph(joined(_runs(paragraph, a)), level=1 if is_title else None, tight=not is_title)
    return text.document(str(path))


def read_epub(path: Path) -> Document:
    """Read the chapters of an EPUB in reading order."""
    data = _read(path)
    container = _unpacked(data, lambda names: [name for name in names if name == "META-INF/container.xml"], "EPUB")
    if not container:
        raise FormatError("not an EPUB: the archive holds no META-INF/container.xml")
    roots = [
        element.get("full-path", "")
        for element in _every(_parsed(container["META-INF/container.xml"], "it"), "rootfile")
    ]
    package = _unpacked(data, lambda names: [name for name in names if name in roots[:1]], "EPUB")
    if not package:
        raise FormatError(f"not an EPUB: the archive holds no {', '.join(roots) or 'package document'}")
    ((root, package_document),) = package.items()
    tree, folder = _parsed(package_document, root), posixpath.dirname(root)
    hrefs = {item.get("id"): item.get("href", "") for item in _every(tree, "item")}
    order = [hrefs.get(element.get("idref"), "") for element in _every(tree, "itemref")]
    wanted = list(dict.fromkeys(posixpath.normpath(posixpath.join(folder, unquote(href))) for href in order if href))
    chapters = _unpacked(data, lambda names: _present(wanted, set(names)), "EPUB")
    text = Text()
    for name, chapter in chapters.items():
        fill_from_html(decoded(chapter, name), text)
    return text.document(str(path))


def _present(wanted: Sequence[str], names: Collection[str]) -> list[str]:
    return [name for name in wanted if name in names]


def _read(path: Path) -> bytes:
    with open_input(path) as file:
        data = file.read(MAX_FILE + 1)
    if len(data) > MAX_FILE:
        raise FormatError(f"it has more than {MAX_FILE >> 20} MB")
    return data


def _unpacked(data: bytes, choose: Callable[[list[str]], list[str]], kind: str) -> dict[str, bytes]:
    return unpacked(data, choose, kind, "it may be damaged or of another kind")


def _parsed(data: bytes, name: str) -> ElementTree.Element:
    """Parse XML. Document types are refused, because they can define entities or refer to other files. Content for old
    programs is left out: it is there a second time for others."""

    class Untyped(ElementTree.TreeBuilder):
        def doctype(self, *_: object) -> None:  # called before any entity is defined, in every encoding
            raise FormatError(f"{name} has a document type, which no program writes there")

    try:
        root: ElementTree.Element = ElementTree.fromstring(data, ElementTree.XMLParser(target=Untyped()))
    except FormatError:
        raise
    except (ElementTree.ParseError, ValueError, LookupError) as error:
        raise FormatError(f"{name} is not XML: {error!s:.100}") from None
    for alternatives in root.iter(f"{_MC}AlternateContent"):
        alternatives[:] = [alternative for alternative in alternatives if alternative.tag != f"{_MC}Fallback"]
    return root


def _space(tree: ElementTree.Element, kind: str) -> str:
    """The namespace of tags in a document, in braces. It is another one if the document was saved as "strict"."""
    if tree.tag.startswith("{http://purl.oclc.org/ooxml/"):
        return f"{{http://purl.oclc.org/ooxml/{kind}/main}}"
    return f"{{http://schemas.openxmlformats.org/{kind}/2006/main}}"


def _every(tree: ElementTree.Element, tag: str) -> Iterator[ElementTree.Element]:
    return (
        element for element in tree.iter() if isinstance(element.tag, str) and element.tag.rpartition("}")[2] == tag
    )


def _outermost(tree: ElementTree.Element, tags: Collection[str]) -> Iterator[ElementTree.Element]:
    """The elements with these tags that stand in no other of them, in order."""
    waiting = [tree]
    while waiting:
        element = waiting.pop()
        if element.tag in tags:
            yield element
        else:
            waiting += reversed(element)


def _filled(tree: ElementTree.Element, space: str, text: Text) -> Iterator[ElementTree.Element]:
    """Yield the paragraphs of a document in order, and add the rows of its tables to `text` where they come. In tables
    that only arrange texts, with one column or with longer texts, the paragraphs are yielded."""
    waiting = [tree]
    while waiting:
        element = waiting.pop()
        rows = list(_rows(element, space)) if element.tag == f"{space}tbl" else []
        if any(len(row) > 1 for row in rows) and all(sum(map(len, row)) <= MAX_ROW for row in rows):
            is_named = element.find(f"{space}tr/{space}trPr/{space}tblHeader") is not None
            for number, row in enumerate(rows):
                text.row(row, is_first=number == 0, is_header=number == 0 and is_named)
            continue
        if element.tag == f"{space}p":
            yield element
        waiting += reversed(element)


def _rows(table: ElementTree.Element, space: str) -> Iterator[list[str]]:
    """The texts of the cells of each row. A cell that is merged with the one above has its text."""
    above: list[str] = []
    for row in _outermost(table, (f"{space}tr",)):
        cells = []
        for place, cell in enumerate(_outermost(row, (f"{space}tc",))):
            mark = cell.find(f"{space}tcPr/{space}vMerge")
            goes_on = cell.get("vMerge") == "1" or (mark is not None and mark.get(f"{space}val") != "restart")
            own = joined(" ".join("".join(_runs(paragraph, space)) for paragraph in cell.iter(f"{space}p")))
            cells.append(above[place] if goes_on and place < len(above) and not own else own)
        yield cells
        above = cells


def _own(paragraph: ElementTree.Element) -> Iterator[ElementTree.Element]:
    """Everything in a paragraph in order, without the paragraphs in it (of text boxes), which stand for themselves, and
    text that was moved elsewhere while changes were tracked."""
    left_out = (paragraph.tag, f"{paragraph.tag[:-1]}moveFrom")
    waiting = list(reversed(paragraph))
    while waiting:
        element = waiting.pop()
        if element.tag not in left_out:
            yield element
            waiting += reversed(element)


def _runs(paragraph: ElementTree.Element, space: str) -> Iterator[str]:
    """The text of a paragraph in pieces. `space`: the namespace of its tags."""
    for element in _own(paragraph):
        name = element.tag.removeprefix(space)
        yield (element.text or "") if name == "t" else _SIGNS.get(name, "")
