"""Extracts text and headings from HTML; each paragraph, list item and table row gets a line of its own."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from html.parser import HTMLParser
from pathlib import Path

from copyspec.common.filesystem import open_input
from copyspec.retrievers import Document, Heading

from ..documents import FormatError

MAX_BYTES = 16 << 20  # largest page: on malicious ones the parser's time is more than linear
MAX_TITLE = 200  # characters of a heading or bookmark that are kept
MAX_ROW = 400  # characters of a table's row; cells with more than that only arrange texts
_HIDDEN = frozenset({"title", "script", "style", "template", "noscript", "svg", "nav"})
"""Elements that are not shown. All need an end tag; `head` does not, and has no text beside that of these."""
_BLOCKS = frozenset(
    """address article aside blockquote body caption center dd details dialog div dl dt fieldset figcaption figure
    footer form header hr legend li main menu ol optgroup option p pre section summary table tbody thead tr
    ul""".split()  # noqa: SIM905
)
_IN_CELLS = frozenset({"p", "div", "center"})
_HEADINGS = {f"h{level}": level for level in range(1, 7)}
_VOID = frozenset({"br", "img", "input", "link", "meta", "col", "area", "base", "source", "track", "embed"})


class Text:
    """Builds a text from paragraphs, and records the positions of headings and pages."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self.length = 0
        self.headings: list[Heading] = []
        self.pages: list[int] = []

    def paragraph(self, text: str, *, level: int | None = None, tight: bool = False) -> None:
        """Add a paragraph after an empty line. `level`: of a heading; `tight`: without the empty line."""
        cleaned = " ".join(text.split()) if not tight or "\n" not in text else text.strip("\n")
        if not cleaned.strip():
            return
        self._add(("\n" if tight else "\n\n") if self.length else "")
        if level is not None:
            self.headings.append(Heading(self.length, level, cleaned[:MAX_TITLE]))
        self._add(cleaned)

    def row(self, cells: Sequence[str], *, is_first: bool = False, is_header: bool = False) -> None:
        """Add a row of a table, as in Markdown."""
        if any(cells):
            self.paragraph(f"| {' | '.join(cells)} |", tight=not is_first)
            self.paragraph("|" + "---|" * len(cells) if is_header else "", tight=True)

    def page(self) -> None:
        """Begin a new page."""
        if self.length:
            self._add("\n\n")
        self.pages.append(self.length)

    def document(self, name: str) -> Document:
        """Return the text as a document."""
        return Document(name, "".join(self._pieces), tuple(self.headings), tuple(self.pages))

    def _add(self, piece: str) -> None:
        self._pieces.append(piece)
        self.length += len(piece)


class _Reader(HTMLParser):
    """Adds the visible text of a page to a `Text`."""

    def __init__(self, into: Text) -> None:
        super().__init__(convert_charrefs=True)
        self._into = into
        self._texts: list[str] = []
        self._has_text = False  # whether any of it is not white space
        self._cells: list[str] = []  # ended cells of the open row
        self._in_cell, self._is_first, self._names = False, False, 0  # `_names`: how many of its cells are headers
        self._hidden: list[str] = []  # open elements that are not shown
        self._level: int | None = None
        self._pre = 0
        self._bullet, self._was_tight = "", False
        self._linked: str | None = ""  # text of a link to a place in the page; None: it has not ended

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in _VOID:
            self._texts.append("\n" if tag == "br" and self._pre else " ")
            return
        if self._hidden:
            if tag == self._hidden[-1]:
                self._hidden.append(tag)
            return
        if tag in _HIDDEN:
            self._hidden.append(tag)
        elif tag == "a" and not self._has_text:
            self._linked = None if (dict(attrs).get("href") or "").startswith("#") else ""
        elif tag in _HEADINGS:
            self.flush()
            self._level = _HEADINGS[tag]
        elif tag in ("td", "th"):
            if self._in_cell:
                self._cells.append(self._taken())
            else:
                self.flush()
            self._in_cell, self._names = True, self._names + (tag == "th")
        elif self._is_in_row(tag):
            self._texts.append(" ")
        elif tag in _BLOCKS:
            self.flush()
            self._is_first = self._is_first or tag == "table"
            self._pre += tag == "pre"
            self._bullet = "- " if tag == "li" else self._bullet
            self._was_tight = tag in ("li", "tr", "dd", "option")

    def handle_endtag(self, tag: str) -> None:
        if self._hidden:
            if tag == self._hidden[-1]:
                self._hidden.pop()
        elif tag == "a" and self._linked is None and self._has_text:
            self._linked = " ".join("".join(self._texts).split())
        elif self._is_in_row(tag):
            self._texts.append(" ")
        elif tag in _HEADINGS or tag in _BLOCKS:
            self.flush()
            self._pre = max(0, self._pre - (tag == "pre"))

    def handle_data(self, data: str) -> None:
        if not self._hidden:
            self._texts.append(data)
            self._has_text = self._has_text or not data.isspace()

    def flush(self) -> None:
        """End the current paragraph."""
        if self._cells:
            cells, is_first = [*self._cells, self._taken()], self._is_first
            self._into.row(cells, is_first=is_first, is_header=is_first and self._names == len(cells))
            self._cells, self._is_first, self._was_tight = [], False, False
        self._in_cell, self._names = False, 0
        if cleaned := self._taken():
            bullet = self._bullet if self._level is None else ""
            if not bullet or cleaned != self._linked:  # else an item of a table of contents
                self._into.paragraph(bullet + cleaned, level=self._level, tight=self._was_tight or bool(self._pre))
            self._bullet, self._was_tight, self._linked = "", False, ""
        self._level = None

    def _taken(self) -> str:
        """The text since the last element that begins or ends a paragraph or cell."""
        text, self._texts, self._has_text = "".join(self._texts), [], False
        return text if self._pre and text.strip() else " ".join(text.split())

    def _is_in_row(self, tag: str) -> bool:
        """Whether an element only divides the text of a cell into lines."""
        return self._in_cell and tag in _IN_CELLS and sum(map(len, self._texts)) <= MAX_ROW


def fill_from_html(page: str, into: Text) -> None:
    """Add the visible text of an HTML page to `into`. Raises FormatError for what the parser cannot read."""
    reader = _Reader(into)
    try:
        reader.feed(_without_open_ends(page))
        reader.close()
    except AssertionError as error:  # of the parser, for "<![" without a name
        raise FormatError(f"no HTML that can be read: {error!s:.100}") from None
    reader.flush()


def _without_open_ends(page: str) -> str:
    """Make plain text of what begins a tag or comment that nothing ends: the parser searches the rest of the page for
    the end of each, which took 40 seconds for 36 kB of "<a "."""
    page = page.replace("<![", "<!")  # "<![CDATA[" in HTML ends at the next ">", as this does
    last = page.rfind("-->") + 3 if "-->" in page else 0
    page = page[:last] + page[last:].replace("<!--", "&lt;!--")
    last = page.rfind(">") + 1
    return page[:last] + page[last:].replace("<", "&lt;")


def decoded(data: bytes, name: str) -> str:
    """Decode a page: as UTF-8, as UTF-16 if it has a byte order mark, or in the encoding that it names. Raises
    FormatError if none fits."""
    if len(data) > MAX_BYTES:
        raise FormatError(f"{name} has more than {MAX_BYTES >> 20} MB")
    named = re.search(rb"(?:charset|encoding)\s*=\s*[\"']?([\w.:-]{2,40})", data[:2048])
    by_bom = "utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    for encoding in (by_bom, named.group(1).decode("ascii") if named else "utf-8"):
        try:
            text = data.decode(encoding)
            text.encode()  # unicode_escape, for one, may bring lone surrogates
            return text
        except (UnicodeError, LookupError):
            continue
    raise FormatError(f"{name} is not UTF-8, and names no encoding that it is in")


def read_html(path: Path) -> Document:
    """Read the text of an HTML file."""
    with open_input(path) as file:
        data = file.read(MAX_BYTES + 1)
    text = Text()
    fill_from_html(decoded(data, path.name), text)
    return text.document(str(path))


def joined(parts: Iterable[str]) -> str:
    """Join the runs of a paragraph into one line."""
    return " ".join("".join(parts).split())
