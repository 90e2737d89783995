"""Extracts text from PDF files, page by page, with pypdf (the extra copyspec[documents])."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from copyspec.filesystem import NotRegularError, open_input
from copyspec.retrievers import Document, Heading

from ..documents import FormatError

MAX_FILE = 200 << 20
MAX_PAGES = 10_000
MAX_CONTENT = 8 << 20  # bytes of a page's content stream: text has some thousands; parsing 8 MB takes minutes
MAX_TEXT = 64 << 20  # characters per file
_MAX_OUTLINE = 2_000  # bookmarks read


def read_pdf(path: Path) -> Document:
    """Read the pages of a PDF, with its bookmarks as headings. Raises FormatError if it cannot be read."""
    try:
        import pypdf
    except ImportError:
        raise FormatError("PDF files need pypdf: pip install 'copyspec[documents]'") from None
    if path.stat().st_size > MAX_FILE:
        raise FormatError(f"it has more than {MAX_FILE >> 20} MB")
    logging.getLogger("pypdf").setLevel(logging.ERROR)  # it warns of each irregular object
    try:
        with open_input(path) as file:
            reader = pypdf.PdfReader(file)
            if reader.is_encrypted and not reader.decrypt(""):
                raise FormatError("it is encrypted: save it without its password")
            count = len(reader.pages)
            if count > MAX_PAGES:
                raise FormatError(f"it has {count:,} pages, more than {MAX_PAGES:,}: divide it")
            return _document(path, reader, count)
    except (FormatError, NotRegularError):
        raise
    except RecursionError:
        raise FormatError("not a PDF: its objects are nested without end") from None
    except Exception as error:  # damaged files make the parser raise anything
        raise FormatError(f"not a readable PDF: {type(error).__name__} {error!s:.100}") from None


def _document(path: Path, reader: Any, count: int) -> Document:
    pieces: list[str] = []
    starts: list[int] = []
    length = 0
    for number in range(count):
        page = reader.pages[number]
        content = page.get_contents()
        if content is not None and len(content.get_data()) > MAX_CONTENT:
            raise FormatError(f"page {number + 1} has more than {MAX_CONTENT >> 20} MB of drawing")
        text = page.extract_text().strip() + "\n\n"
        starts.append(length)
        pieces.append(text)
        length += len(text)
        if length > MAX_TEXT:
            raise FormatError(f"it has more than {MAX_TEXT >> 20} million characters")
    return Document(str(path), "".join(pieces), tuple(_headings(reader, starts)), tuple(starts))


def _headings(reader: Any, starts: list[int]) -> list[Heading]:
    found: list[Heading] = []
    waiting: list[tuple[Any, int]] = [(each, 1) for each in reversed(reader.outline)]
    while waiting and len(found) < _MAX_OUTLINE:
        each, level = waiting.pop()
        if isinstance(each, list):
            if level < 10:
                waiting += [(inner, level + 1) for inner in reversed(each)]
            continue
        number = reader.get_destination_page_number(each)
        if number is not None and 0 <= number < len(starts) and each.title:
            found.append(Heading(starts[number], level, " ".join(str(each.title).split())[:200]))
    return sorted(found, key=lambda heading: heading.start)
