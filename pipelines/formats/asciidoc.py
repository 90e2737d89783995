"""AsciiDoc: titles, paragraphs, items and notes are text; attributes, macros, listings, tables and markup are kept.

Blocks are recognised line by line (AsciiDoc Language Documentation, "Blocks"). What is not recognised is not prose.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from .whole import Prose, by_lines

FORBIDDEN = "*_`#^~+[]{}<>|\\"

_VERBATIM = re.compile(r"(-{4,}|\.{4,}|\+{4,}|/{4,}|`{3,}|[|,:!]={3,})[^`]*$")
_CONTAINER = re.compile(r"(?:={4,}|\*{4,}|_{4,}|--|'{3,}|<{3,}|\+|~{4,})[ \t]*$")
_WRAPPER = re.compile(r"(?:={4,}|\*{4,}|_{4,}|--)$")
"""Delimits a listing below its attributes. Without them it delimits a container, whose content is prose."""
_TITLE = re.compile(r"(?:={1,6}|#{1,6})[ \t]+(?=\S)")
_UNDERLINE = re.compile(r"(=+|-+|~+|\^+|\++)[ \t]*$")
"""The line below a section title in old AsciiDoc: as long as the title, give or take one character."""
_CAPTION = re.compile(r"\.(?=[^\s.])")
_ATTRIBUTES = re.compile(r"\[.*\][ \t]*$")
_LISTING = re.compile(r"\[(?:source|listing|literal|stem|latexmath|asciimath|verse|pass|mermaid|plantuml)\b", re.I)
_ENTRY = re.compile(r":!?[\w-]{1,80}!? ?:(?:\s|$)")  # with a slip that authors make: ":navtitle : x"
_MACRO = re.compile(r"[a-z_]\w{0,40}::\S{0,2000}\[.*\][ \t]*$")
_ITEM = re.compile(r"[ \t]*(?:\*{1,9}|-|\.{1,9}|\d{1,9}\.|[a-zA-Z]\.|<(?:\d{1,4}|\.)>)[ \t]+(?:\[[ xX*]\][ \t]+)?")
_TERM = re.compile(r"(?=\S)((?:[^:;\n]|:(?!:)|;(?!;)){1,500})(?::{2,4}|;;)(?:[ \t]+|$)")
_NOTE = re.compile(r"(?:NOTE|TIP|IMPORTANT|WARNING|CAUTION):[ \t]+")
_BLOCKS = (
    *(_VERBATIM, _CONTAINER, _TITLE, _UNDERLINE, _CAPTION, _ATTRIBUTES, _ENTRY, _MACRO, _ITEM, _TERM, _NOTE),
    re.compile(r"//|\|"),
)
BORDER = re.compile(rf"(?:(?:\[[^\]\r\n]{{0,200}}\])?[ \t]*(?:\r\n|\n|\r))*(?:[=#]{{1,6}}[ \t]+|\.|{_NOTE.pattern})?")
"""Between two paragraphs: block attributes, and what begins a title or a note."""
_FIXED = re.compile(
    r"\\[^\r\n]|``(?=[^`\r\n]{1,200}'')|``[^`]{1,2000}``|(?<![\w`])`(?![\s`])[^`]{0,2000}`"
    r"|\+{3}[^+]{1,2000}\+{3}|\+\+?[^+\r\n]{1,2000}\+\+?|\{[\w-]{1,80}\}|<<[^<>]{1,400}>>|\[\[[^\]]{1,400}\]\]"
    r"|\b[a-z]{2,20}:[^\s\[\]]{0,2000}\[[^\]]{0,2000}\]|[\[\]]|\[[^\[\]\r\n]{0,400}\](?=[#*_`])"
    r"|&(?:[a-zA-Z]{1,40}|#\w{1,10});|<\d{1,3}>|[ \t]\+(?![^\r\n])|\([CRTM]{1,2}\)|->|<-|=>|<=",
)
_COMMENT = re.compile(r"(?<![^\r\n])(?://|(?:ifn?def|ifeval|endif|include)::(?=\S))[^\r\n]*(?:\r\n|\n|\r)?")
"""A comment or a directive of the preprocessor, which may stand inside a paragraph."""
_MARKUP = re.compile(r"(?<!\w)[*_#^~]{1,2}(?=\S)|(?<=\S)[*_#^~]{1,2}(?!\w)")


def begins_block(line: str) -> bool:
    """Whether a line without its indentation would not continue a paragraph."""
    return any(pattern.match(line) for pattern in _BLOCKS)


def blocks(text: str) -> Iterator[Prose]:
    """Yield the prose of every block."""
    return by_lines(text, _Reader(text))


class _Reader:
    def __init__(self, text: str) -> None:
        self.text = text
        self.lines: list[tuple[int, int]] = []  # of the open paragraph: start and end of the prose in each line
        self.is_item = False
        self.heading: tuple[int, int] | None = None  # a line that is a title if the next line underlines it
        self.closes: str | None = None  # the last line of an open block without prose
        self.until_blank = False  # inside a listing without delimiters, or in the lines below the document title
        self.is_listing = False  # below the attributes of a listing, before its first line
        self.number = 0  # of lines so far that are neither blank nor comments

    def feed(self, start: int, body: str) -> Iterator[Prose]:
        stripped = body.rstrip(" \t")
        if self.closes is not None:
            self.closes = None if stripped == self.closes else self.closes
            return
        self.number += stripped != "" and not stripped.startswith("//")
        if not stripped:
            self.until_blank = False
            yield from self.flush()
            return
        if self.until_blank and not _VERBATIM.match(stripped):
            if self.is_listing and _WRAPPER.match(stripped):
                self.closes, self.until_blank = stripped, False
            self.is_listing &= stripped[0] in ".["  # a caption, or more attributes
            return
        self.until_blank = False
        end = start + len(stripped)
        if self._is_underline(stripped):
            self.until_blank = self.number == 2  # under the document title
            (line,), self.lines = self.lines, []
            yield Prose(*line, fixed=[line], is_title=True)  # its underline would no longer fit a longer title
            return
        self.heading = None
        if (match := _VERBATIM.match(stripped)) is not None:
            yield from self.flush()
            self.closes = match[1]
        elif _CONTAINER.match(stripped) or (_ATTRIBUTES.match(stripped) and stripped[0] == "["):
            yield from self.flush()
            self.is_listing = self.until_blank = _LISTING.match(stripped) is not None
        elif _COMMENT.match(stripped):
            return
        elif (title := _TITLE.match(stripped)) is not None:
            yield from self.flush()
            yield self._prose(start + title.end(), end, is_title=True)
            self.until_blank = self.number == 1
        elif not self.lines and (_ENTRY.match(stripped) or _MACRO.match(stripped)):
            return
        elif not self.lines and (caption := _CAPTION.match(stripped)) is not None:
            yield self._prose(start + caption.end(), end, is_title=True)
        else:
            yield from self._leaf(start, end, stripped)

    def _is_underline(self, body: str) -> bool:
        """Whether the line underlines a title."""
        if self.heading is None or self.lines != [self.heading] or not _UNDERLINE.match(body):
            return False
        return abs(len(body) - (self.heading[1] - self.heading[0])) < 2

    def flush(self) -> Iterator[Prose]:
        """Yield the open paragraph."""
        if self.lines:
            yield self._prose(self.lines[0][0], self.lines[-1][1], is_item=self.is_item)
            self.lines, self.is_item = [], False

    def _leaf(self, start: int, end: int, body: str) -> Iterator[Prose]:
        """Read a line of a paragraph, an item or a term."""
        if (item := _ITEM.match(body)) is not None:
            yield from self.flush()
            start, self.is_item = start + item.end(), True
        elif not self.lines and body[0] in " \t":
            self.until_blank = True  # a literal paragraph
            return
        elif (term := _TERM.match(body)) is not None:
            yield from self.flush()
            yield self._prose(start, start + term.end(1), is_item=True)
            start, self.is_item = start + term.end(), True
        elif not self.lines and (note := _NOTE.match(body)) is not None:
            start += note.end()
        elif not self.lines:
            self.heading = (start, end)
        if start < end:
            self.lines.append((start, end))

    def _prose(self, start: int, end: int, *, is_title: bool = False, is_item: bool = False) -> Prose:
        markup, fixed = (
            [match.span() for match in pattern.finditer(self.text, start, end)] for pattern in (_MARKUP, _FIXED)
        )
        comments = [match.span() for match in _COMMENT.finditer(self.text, start, end)]
        return Prose(start, end, markup, fixed, comments, is_title=is_title, is_item=is_item)
