"""Extracts text from PDF files, page by page, with pypdf (the extra copyspec[documents])."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

from copyspec.common.extras import install
from copyspec.common.filesystem import NotRegularError, open_input
from copyspec.retrievers import Document, Heading, without_surrogates

from ..documents import FormatError
from ..guards.vocabulary import is_english, is_rare
from .markup import MAX_TITLE

MAX_FILE = 200 << 20
MAX_PAGES = 10_000
MAX_PAGE_CONTENT_BYTES = 8 << 20  # per page; text pages need a few KB, pypdf takes minutes on 8 MiB
MAX_CONTENT_BYTES = 32 * MAX_PAGE_CONTENT_BYTES  # of all pages, 26 KB for each of 10,000; pages may share a stream
_FORM_BYTES = 1 << 10  # what each use of a form costs besides its content: pypdf reads its fonts again
MAX_TEXT = 64 << 20  # characters per file
_MAX_OUTLINE = 2_000  # bookmarks read
_MAX_LEVELS = 10  # of bookmarks below one another
# A word that is divided at the end of a line. It begins where a run of letters begins, for linear time.
_DIVIDED = re.compile(r"(?<!\w)(\w+)([-\u2010\u00ad])[ \t]*\n[ \t]*(\w+)(\S*)[ \t]*\n?")


def read_pdf(path: Path) -> Document:
    """Read the pages of a PDF, with its bookmarks as headings. Raises FormatError if it cannot be read."""
    try:
        import pypdf
    except ImportError:
        raise FormatError(f"PDF files need pypdf: {install('documents')}") from None
    if path.stat().st_size > MAX_FILE:
        raise FormatError(f"it has more than {MAX_FILE >> 20} MB")
    # It warns of each irregular object. Not restored: another thread may be reading a file meanwhile.
    logging.getLogger("pypdf").setLevel(logging.ERROR)
    try:
        with open_input(path) as file:
            reader = pypdf.PdfReader(file)
            # Many PDFs are encrypted with an empty user password: they only restrict printing or copying.
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
    page_starts: list[int] = []
    length = size = 0
    for number in range(count):
        text, page_size = _extracted(reader.pages[number])
        if page_size > MAX_PAGE_CONTENT_BYTES:
            raise FormatError(
                f"page {number + 1}: its content stream is larger than {MAX_PAGE_CONTENT_BYTES >> 20} MiB, with the "
                "forms that it draws (probably a drawing); split the file or remove that page"
            )
        size += page_size
        if size > MAX_CONTENT_BYTES:
            raise FormatError(f"its pages have more than {MAX_CONTENT_BYTES >> 20} MiB of content: divide it")
        page_starts.append(length)
        pieces.append(text)
        length += len(text)
        if length > MAX_TEXT:
            raise FormatError(f"it has more than {MAX_TEXT >> 20} million characters")
    try:
        headings = tuple(_headings(reader, page_starts))
    except Exception:  # damaged bookmarks are no reason to lose the text
        headings = ()
    return Document(name=str(path), text="".join(pieces), headings=headings, pages=tuple(page_starts))


def _extracted(page: Any) -> tuple[str, int]:
    """The text of a page, and the bytes of its content stream and of each form (Form XObject) as often as it is drawn.
    Beyond MAX_PAGE_CONTENT_BYTES, the text is not read."""
    content = page.get_contents()
    size = len(content.get_data()) if content is not None else 0
    if size > MAX_PAGE_CONTENT_BYTES:
        return "", size
    read_form = page.extract_xform_text

    def counted(form: Any, *arguments: Any, **options: Any) -> str:
        nonlocal size
        size += len(form.get_data()) + _FORM_BYTES
        if size > MAX_PAGE_CONTENT_BYTES:
            return ""
        text: str = read_form(form, *arguments, **options)
        return text

    page.extract_xform_text = counted  # forms draw other forms, and pypdf reads each of them by this method
    return undivided(without_surrogates(page.extract_text())).strip() + "\n\n", size


def undivided(text: str) -> str:
    """Join the words that were divided at the ends of lines, so that they are found. The line ends after the word."""
    return _DIVIDED.sub(_joined, text)


def _joined(divided: re.Match[str]) -> str:
    first, hyphen, last, rest = divided.groups()
    whole = first + last
    # What no list has, as in other languages, is joined unless both halves are words: "well-known".
    is_one = is_english(whole) or is_rare(whole) or not (is_english(first) and is_english(last))
    is_one = hyphen == "\u00ad" or (is_one and last.islower() and whole.isalpha())
    return f"{first}{last}{rest}\n" if is_one else f"{first}-{last}{rest}\n"


def _headings(reader: Any, page_starts: list[int]) -> list[Heading]:
    headings: list[Heading] = []
    stack: list[tuple[Any, int]] = [(entry, 1) for entry in reversed(reader.outline)]
    while stack and len(headings) < _MAX_OUTLINE:
        entry, level = stack.pop()
        if isinstance(entry, list):  # the bookmarks below the one before
            if level < _MAX_LEVELS:
                stack += [(inner, level + 1) for inner in reversed(entry)]
            continue
        number = reader.get_destination_page_number(entry)
        if number is not None and 0 <= number < len(page_starts) and entry.title:
            title = " ".join(without_surrogates(str(entry.title)).split())
            headings.append(Heading(page_starts[number], level, title[:MAX_TITLE]))
    return sorted(headings, key=lambda heading: heading.start)
