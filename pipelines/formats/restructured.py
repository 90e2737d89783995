"""reStructuredText: titles, paragraphs, items and notes are text; directives, literals, tables and markup are kept.

Blocks are recognised by their first line and indentation (docutils' reStructuredText specification). What is not
recognised is not prose.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator

from .whole import Prose, by_lines

FORBIDDEN = "*`|_\\[]<>"

_NOTES = (
    "attention caution danger error hint important note tip warning admonition seealso topic sidebar rubric epigraph "
    "highlights pull-quote compound container versionadded versionchanged versionremoved deprecated deprecated-removed"
)
_EXPLICIT = re.compile(r"\.\.(?:[ \t]+|$)")
_NAMED = _NOTES.replace(" ", "|")
_NOTE = re.compile(rf"\.\.[ \t]+(?:{_NAMED})::(?:[ \t]+|$)", re.I)
_VERSION = re.compile(r"\.\.[ \t]+(?:version\w+|deprecated[\w-]*)::[ \t]*[\w.]*[ \t]*", re.I)
_CLASSES = re.compile(r"\.\.[ \t]+container::.*", re.I)
_FOOTNOTE = re.compile(r"\.\.[ \t]+\[[#*\w.-]{1,80}\][ \t]+")
_FIELD = re.compile(
    r"(?::(?![: ])(?:[^:\\\n]|\\.|:(?![\s`]|$)){1,200}|@[a-z]{1,20}(?:[ \t]+\w{1,80})?):(?:[ \t]+|$)"  # or Epytext's
)
_TYPE = re.compile(r":(?:type|vartype|kwtype|rtype)\b", re.I)
"""A field of Sphinx that holds a type."""
_ITEM = re.compile(r"(?:[-*+•‣⁃]|\(?(?:\d{1,9}|[a-zA-Z]|#|[ivxlcdmIVXLCDM]{1,12})[.)])(?:[ \t]+|$)")
_LINE_BLOCK = re.compile(r"\|(?:[ \t]+|$)")
_OPTION = re.compile(r"(?:--?\w|/[A-Z]\b)")
_ADORNMENT = re.compile(r"([!-/:-@\[-`{-~])\1*[ \t]*$")
_TABLE = re.compile(r"\+[-=]+[-=+]*\+[ \t]*$|=+(?:[ \t]+=+)+[ \t]*$")
_SIMPLE_TABLE = re.compile(r"=+(?:[ \t]+=+)+[ \t]*$")
_FIXED = re.compile(
    r"\\(?:\r\n|.)|(?<![\w`])``(?!\s).{1,2000}?(?<!\s)``(?=[\s'\")\]}>\-/:.,;!?\\]|\Z)"
    r"|(?::[\w.+:-]{1,80}:)?`[^`\r\n]{1,2000}(?:(?:\r\n|\n|\r)[^`\r\n]{1,2000}){0,20}`(?::[\w.+-]{1,80}:|_{0,2})"
    r"|\|[^|\s](?:[^|\r\n]{0,200}[^|\s])?\|_{0,2}|\[[#*\w.-]{1,80}\]_"
    r"|(?<!\w)\w(?:[\w.+-]{0,200}\w)?__?(?!\w)|::(?=\s*\Z)",
    re.DOTALL,
)
_MARKUP = re.compile(r"\*{1,2}(?=\S)|(?<=\S)\*{1,2}")
BORDER = re.compile(
    rf"(?:[ \t]*(?:([!-/:-@\[-`{{-~])\1*[ \t]*)?(?:\r\n|\n|\r))*[ \t]*(?:\.\.[ \t]+(?:{_NAMED})::\s*)?[*]{{0,2}}", re.I
)
"""Between two paragraphs: lines below and above titles, and what begins a note."""
_DOCTEST = ">>>"
_BLOCKS = (_EXPLICIT, _FIELD, _ITEM, _LINE_BLOCK, _OPTION, _ADORNMENT, _TABLE, re.compile(_DOCTEST))
_SECTION = re.compile(
    r"(?:Args|Arguments|Parameters|Params|Attributes|Keyword Arg(?:ument)?s|Other Parameters|Raises|Warns"
    r"|(?P<value>Returns|Yields|Receives))(?P<colon>:?)",
    re.I,
)
"""The title of a docstring's section: with a colon in Google's style, underlined in NumPy's."""
_UNDERLINED = re.compile(r"(?:\r\n|\n|\r)[ \t]*-{3,}[ \t]*(?![^\r\n])")
_BRACKETS = r"(?:\[(?:[^\[\]\n]|\[(?:[^\[\]\n]|\[[^\[\]\n]{0,200}\]){0,200}\]){0,200}\])?"
_ENTRY = re.compile(
    # names and a type, or only a type: `name (int, optional): `, `*args, **kwargs: `, `dict[str, int] or None: `
    rf"[\\*`]{{0,4}}[\w.]{{1,200}}`{{0,2}}{_BRACKETS}"
    rf"(?:(?:,|[ \t]+or|[ \t]+of|[ \t]*\|)[ \t]*[\\*`]{{0,4}}[\w.]{{1,200}}`{{0,2}}{_BRACKETS}){{0,8}}"
    r"(?:[ \t]*\((?:[^()\n]|\([^()\n]{0,200}\)){0,400}\))?[ \t]?:(?:[ \t]+|$)"
)
_NAMES = re.compile(
    r"[\\*`]{0,4}[\w.]{1,200}`{0,2}(?:,[ \t]*[\\*`]{0,4}[\w.]{1,200}`{0,2}){0,8}(?:[ \t]{1,8}:(?:[ \t]|$)|[ \t]*$)"
)
_NEXT_LINE = re.compile(r"[ \t]*(?:\r\n|\n|\r)([ \t]*)(?=[^\s])")

_ROOM = 8
"""Columns by which an underline must be longer than its title, so that a corrected title does not outgrow it, of which
docutils warns. Most corrections of a title add fewer."""
_TOO_SHORT = 4
"""Docutils takes a shorter line below a longer one for text."""
_NESTING = 100
"""Maximum depth of items nested on one line; each level requires another look at the rest of the line."""


def begins_block(line: str) -> bool:
    """Whether a line without its indentation may begin something else than a paragraph."""
    return any(pattern.match(line) for pattern in _BLOCKS)


def blocks(text: str) -> Iterator[Prose]:
    """Yield the prose of every block."""
    return by_lines(text, _Reader(text))


def docstring(text: str) -> Iterator[Prose]:
    """Yield the prose of every block of a Python docstring."""
    return by_lines(text, _DocstringReader(text))


class _Reader:
    """Collects the lines of a paragraph, and skips blocks without prose."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.margin = 0  # columns before every line
        self.lines: list[tuple[int, int]] = []  # of the open paragraph: start and end of the prose in each line
        self.indent: int | None = 0  # of its continuation lines; None: known from the next line
        self.block = 0  # indentation of the block around it
        self.is_title = self.is_item = False
        self.skips: int | None = None  # skip lines that are indented by more than this
        self.until_blank = False  # skip lines up to the next blank one
        self.in_table = False  # in a simple table, which may hold blank lines
        self.after_border = False
        self.in_options = False  # in the fields at the beginning of a directive

    def feed(self, start: int, body: str) -> Iterator[Prose]:
        rest = body.lstrip(" \t")
        indent = max(0, _columns(body[: len(body) - len(rest)]) - self.margin)
        if not rest:
            self.in_table &= not self.after_border
            self.until_blank = self.in_options = False
            yield from self.flush()
            return
        if self.skips is not None and indent > self.skips:
            return
        self.skips = None
        if self.in_table:
            self.after_border = _SIMPLE_TABLE.match(rest) is not None
            return
        if self.until_blank:
            return
        yield from self._line(start + len(body) - len(rest), start + len(body), rest.rstrip(" \t"), indent)

    def flush(self, *, is_fixed: bool = False) -> Iterator[Prose]:
        """Yield the open paragraph, which may be a title that must not change. A literal block follows after `::`."""
        if not self.lines:
            return
        (start, _), (_, end) = self.lines[0], self.lines[-1]
        self.lines = []
        if self.text[start:end].rstrip(" \t").endswith("::"):
            self.skips = self.block
        markup = [match.span() for match in _MARKUP.finditer(self.text, start, end)]
        fixed = [(start, end)] if is_fixed else [match.span() for match in _FIXED.finditer(self.text, start, end)]
        yield Prose(start, end, markup, fixed, is_title=self.is_title, is_item=self.is_item)

    def _line(self, start: int, end: int, rest: str, indent: int) -> Iterator[Prose]:
        if self.lines and rest == "::":
            yield from self.flush()
            self.skips = self.block  # a literal block follows
            return
        if self.lines and len(rest) > 1 and _ADORNMENT.match(rest):
            self.is_title = True  # underlines the line above as a title
            yield from self.flush(is_fixed=self._is_tight(rest, indent))  # a longer title would no longer fit
            return
        if self.lines and rest.startswith(_DOCTEST):
            yield from self.flush()  # docutils wants a blank line before it, but few docstrings have one
            self.until_blank = True
            return
        if self.lines and self.indent in (None, indent) and (self.indent is not None or indent > self.block):
            self.indent = indent
            self.lines.append((start, end))
            return
        if len(self.lines) == 1 and indent > self.block:
            self.is_item = True  # a term whose definition follows
        yield from self.flush()
        if self.skips is not None and indent > self.skips:
            return
        if self.in_options and _FIELD.match(rest):
            return
        self.block = indent
        self._open(start, end, rest, indent)

    def _is_tight(self, underline: str, indent: int) -> bool:
        """Whether the open paragraph is a title that could outgrow its underline, or an overline of the same length."""
        if len(self.lines) > 1:
            return False
        room = indent + len(underline) - self.block - _width(self.text[slice(*self.lines[0])].rstrip(" \t"))
        return room < _ROOM and (room >= 0 or len(underline) >= _TOO_SHORT)

    def _open(self, start: int, end: int, rest: str, indent: int) -> None:
        """Handle the first line of a block."""
        self.is_title = self.is_item = self.in_options = False
        if _TABLE.match(rest):
            self.in_table = _SIMPLE_TABLE.match(rest) is not None
            self.after_border, self.until_blank = False, not self.in_table
        elif rest.startswith((_DOCTEST, "__ ")):
            self.until_blank = True
        elif _EXPLICIT.match(rest):
            note = _NOTE.match(rest)
            opening = (
                ((_VERSION.match(rest) or _CLASSES.match(rest)) if note else None) or note or _FOOTNOTE.match(rest)
            )
            self.in_options = note is not None
            if opening is None:
                self.skips = indent
            elif opening.end() < len(rest):
                self._begin(start + opening.end(), end, None)
        elif _TYPE.match(rest) and _FIELD.match(rest):
            self.skips = indent
        elif match := _FIELD.match(rest):
            self.is_item = True
            if match.end() < len(rest):
                self._begin(start + match.end(), end, None)
        elif _OPTION.match(rest):
            self.skips = indent
        elif not (_ADORNMENT.match(rest) and len(rest) > 3):
            self._items(start, end, rest, indent)

    def _items(self, start: int, end: int, rest: str, indent: int) -> None:
        """Begin a paragraph, possibly the first one in one or more nested items."""
        for _ in range(_NESTING):
            mark = _ITEM.match(rest) or _LINE_BLOCK.match(rest)
            if mark is None:
                break
            self.is_item = True
            start, indent, rest = start + mark.end(), indent + mark.end(), rest[mark.end() :]
        if _EXPLICIT.match(rest) or rest.startswith(_DOCTEST):
            self.block = indent
            self._open(start, end, rest, indent)
        elif rest:
            self._begin(start, end, indent)

    def _begin(self, start: int, end: int, indent: int | None) -> None:
        self.lines, self.indent = [(start, end)], indent


class _DocstringReader(_Reader):
    """Knows sections of Google's and NumPy's style too. Names and types at the beginning of entries are no prose."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.outside: int | None = None  # a line indented by at most this ends the open section
        self.entries: int | None = None  # indentation of its entries; None: known from the next line
        self.is_value = False  # its entry is mostly one, often without a name
        self.is_underlined = False  # in NumPy's style
        self.below = min((_columns(line[1]) for line in _NEXT_LINE.finditer(text)), default=0)

    def feed(self, start: int, body: str) -> Iterator[Prose]:
        self.margin = self.below if start else 0  # the first line stands behind the quotes (PEP 257)
        yield from super().feed(start, body)

    def _line(self, start: int, end: int, rest: str, indent: int) -> Iterator[Prose]:
        is_underlined = _UNDERLINED.match(self.text, end) is not None
        if is_underlined or (self.outside is not None and indent <= self.outside):
            self.outside = None
        title = _SECTION.fullmatch(rest)
        if title is not None and is_underlined != bool(title["colon"]):
            yield from self._between(indent)
            self.is_value, self.is_underlined = title["value"] is not None, is_underlined
            self.outside, self.entries = (indent - 1, indent) if is_underlined else (indent, None)
            return
        if self.outside is not None:
            self.entries = indent if self.entries is None else self.entries
            if indent == self.entries and not (_EXPLICIT.match(rest) or rest.startswith(_DOCTEST)):
                goes_on = bool(self.lines) and self.indent == indent
                if self.is_underlined:
                    if not goes_on and self._is_entry(rest, end, indent):
                        yield from self._between(indent)
                        self.skips = indent if rest.endswith("::") else None
                        return
                elif not (goes_on and self.is_value) and (head := _ENTRY.match(rest)) is not None:
                    yield from self._between(indent)
                    self.is_item = True
                    if head.end() < len(rest):
                        self._begin(start + head.end(), end, None)
                    return
                elif self.lines and self.indent is None and not _ITEM.match(rest):
                    self.indent = indent  # an entry goes on without indentation
        yield from super()._line(start, end, rest, indent)

    def _is_entry(self, rest: str, end: int, indent: int) -> bool:
        """Whether a line of a section in NumPy's style holds names or a type, and no description."""
        below = _NEXT_LINE.match(self.text, end)
        return _NAMES.match(rest) is not None or (below is not None and _columns(below[1]) - self.margin > indent)

    def _between(self, indent: int) -> Iterator[Prose]:
        """End the open paragraph at a line without prose."""
        yield from self.flush()
        self.block, self.skips, self.in_options = indent, None, False


def _columns(space: str) -> int:
    return len(space.expandtabs(8))


def _width(title: str) -> int:
    """The columns of a title, of which docutils gives two to a wide character."""
    return sum(2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in title)
