"""Markdown: paragraphs, headings, list items and table cells are text; code, HTML, math and markup are kept.

Blocks are recognised line by line (CommonMark 0.31, GFM tables, front matter), so that a file can be streamed. Nothing
is rendered: a line that is not recognised has no segments.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import BinaryIO, Protocol

from copyspec.common.lists import Lists

from ..documents import Edit, Part, Refusal, Segment
from .anchors import linked
from .markdown_inline import ACTIVE, cells, markup
from .neighbours import in_context
from .reading import BOM, FRONT_MATTER_KEY, changed, check_encoding, encode, gathered, read_lines
from .segments import merged_spans, segment_of
from .text import PARAGRAPH_LIMIT

_QUOTES = re.compile(r"(?: {0,3}>[ \t]?)*")
_ITEM = re.compile(r"(?:[-*+]|\d{1,9}[.)])(?=[ \t]|$)")
_TASK = re.compile(r"\[[ xX]\][ \t]+")
_FENCE = re.compile(r"(`{3,})[^`]*$|(~{3,})")
_RULE = re.compile(r"([-*_])[ \t]*(?:\1[ \t]*){2,}$")
_UNDERLINE = re.compile(r"(?:=+|-+)[ \t]*$")
_HEADING = re.compile(r"#{1,6}(?:[ \t]+|$)")
_DEFINITION = re.compile(r"\[(?!\^)[^\]]+\]:|\*\[[^\]]+\]:")
_FOOTNOTE = re.compile(r"\[\^[^\]\s]+\]:[ \t]*")
_ROW_OF_DASHES = re.compile(r"(?=.*\|)\|?[ \t]*:?-+:?[ \t]*(?:\|[ \t]*:?-+:?[ \t]*)*\|?[ \t]*$")
_GRID = re.compile(r"\+[-=:]+(?:\+[-=:]+)*\+[ \t]*$")  # the first line of a table of pandoc
_ADMONITION = re.compile(  # of Python-Markdown and its tabs; the content is indented
    r"(?:(?:!!!|\?\?\?\+?)[ \t]?[\w-]+(?:[ \t]+[\w-]+){0,2}(?:[ \t]+\"[^\"]*\")?|===[!+]?[ \t]+\"[^\"]*\")[ \t]*$"
)
_DIRECTIVE = re.compile(r":{3,}|\{%.*%\}[ \t]*$|\([^()\s]{1,200}\)=[ \t]*$")  # or a label of MyST
_STATEMENT = re.compile(  # of MDX
    r"import .* from ['\"]|import ['\"][^'\"]*['\"];?[ \t]*$|import (?:type )?(?:[\w$]+, ?)?\{"
    r"|export (?:default|const|function) |export (?:async|class|enum|interface|let|type|var) .*[={(]|export ?[{*]"
)
_COMPONENT = re.compile(r"<[A-Z][\w.]*(?=\s|$)")  # of MDX

_OPENINGS = [
    (re.compile(begin), re.compile(end[0]) if end else None) for begin, *end in Lists(__file__).rows("openings")
]
"""How a block begins, and how its last line ends; None: it ends at a blank line."""
_OPENING_CHARS = "`~<$\\{"
_ALONE = 6  # index of the opening that cannot interrupt a paragraph

_ENVIRONMENT = re.compile(r"\\(begin|end)\{([^{}]+)\}")

_CODE = re.compile(r"[\"'`()\[\]{}]|(?<!=)>|(?<!:)//.*|/\*")
_CODE_WITHIN = {"`": re.compile(r"\\.|`|\$\{"), "/*": re.compile(r"\*/")}  # a template, a comment
_STRING_ENDS = {quote: re.compile(rf"[^{quote}\\]*(?:\\.[^{quote}\\]*)*{quote}") for quote in "\"'"}

_BLOCKS = (
    *(_ITEM, _FENCE, _RULE, _UNDERLINE, _HEADING, _DEFINITION, _FOOTNOTE, _ROW_OF_DASHES, _GRID, _ADMONITION),
    *(_DIRECTIVE, _STATEMENT, _COMPONENT, re.compile(r">|\\begin\{")),
    *(opening for opening, _ in _OPENINGS),
)

_LINKS_WITHIN = 32 << 20
"""Characters in which links are looked for; hand-written files are far smaller."""
BORDER = re.compile(r"(?:[ \t>]*(?:(?:=+|--+)[ \t]*)?(?:\r\n|\n|\r))*[ \t>]*(?:#{1,6}[ \t]+)?(?:#+[ \t]*)?")
"""Between two paragraphs: the marks of quotations and headings."""
_NESTING = 100
"""Maximum depth of lists nested on one line; each level requires another look at the rest of the line."""


class MarkdownFormat:
    """Each part is a block: a paragraph, an item, a table row, or lines without prose."""

    def __init__(self, *, encoding: str = "utf-8") -> None:
        self.encoding = check_encoding(encoding)

    def read(self, stream: BinaryIO) -> Iterator[Part]:
        lines = read_lines(stream, self.encoding)
        head, size = [], 0
        for line in lines:  # a link may stand before its heading, or after it
            head.append(line)
            size += len(line)
            if size > _LINKS_WITHIN:
                break
        parts = blocks(chain(head, lines))
        return gathered(in_context(parts, BORDER, linked("".join(head))), self.encoding)

    def write(self, part: Part, edits: Sequence[Edit]) -> bytes:
        return encode(changed(part.text, edits), self.encoding)


def begins_block(line: str) -> bool:
    """Whether a line without its indentation would not continue a paragraph."""
    return any(pattern.match(line) for pattern in _BLOCKS)


def blocks(lines: Iterable[str]) -> Iterator[Part]:
    """Yield the blocks of a text, given as lines with their ends."""
    reader = _Reader()
    for line in lines:
        yield from reader.feed(line)
    yield from reader.flush()


class _Block(Protocol):
    """Lines without prose, the last of which can be told from its text."""

    def is_over(self, line: str) -> bool:
        """Whether the block has ended before `line`."""
        return False

    def ends(self, line: str) -> bool:
        """Whether `line` is the last one of the block."""


@dataclass(slots=True)
class _Until(_Block):
    """A block that ends at the first line with a pattern."""

    closing: re.Pattern[str]

    def ends(self, line: str) -> bool:
        return self.closing.search(line) is not None


@dataclass(slots=True)
class _Fenced(_Block):
    """Code that ends at a fence of the same character, at least as long, indented by fewer columns than `limit`."""

    fence: str
    limit: int

    def ends(self, line: str) -> bool:
        mark = line.strip(" \t")
        if len(mark) < len(self.fence) or mark.strip(self.fence[0]):
            return False
        return _columns(line[: line.index(mark)]) < self.limit


@dataclass(slots=True)
class _Environment(_Block):
    """An environment of LaTeX, which may hold others of the same name."""

    name: str
    depth: int = 0

    def ends(self, line: str) -> bool:
        for which, name in _ENVIRONMENT.findall(line):
            if name == self.name:
                self.depth += 1 if which == "begin" else -1
        return self.depth <= 0


class _Brackets(_Block):
    """A statement or a tag of MDX, which ends where all brackets are closed.

    If one is never closed, or was counted wrongly, the rest of the file would be lost. Code inside brackets is usually
    indented, so after a blank line a line at the margin is taken as text.
    """

    def __init__(self, opened: str = "", margin: int = 0) -> None:
        self.opened = list(opened)  # `<` is the beginning of a tag, "`" a template, "/*" a comment
        self.margin = margin  # column of the list item around it
        self.after_blank = False

    def is_over(self, line: str) -> bool:
        text = line.lstrip(" \t")
        if not text or self.opened[-1] in _CODE_WITHIN:
            return False
        indent = _columns(line[: len(line) - len(text)]) - self.margin
        return indent < 0 or (indent == 0 and self.after_blank and text[0] not in ")]}>/")

    def ends(self, line: str) -> bool:
        self.after_blank = not line.strip()
        at, unclosed = 0, ""
        while match := _CODE_WITHIN.get(self.opened[-1] if self.opened else "", _CODE).search(line, at):
            token, at = match[0], match.end()
            if token in _STRING_ENDS:
                string = None if token in unclosed else _STRING_ENDS[token].match(line, at)
                if string:
                    at = string.end()
                else:
                    unclosed += token  # an apostrophe
            elif self._follow(token):
                return True
        return not self.opened

    def _follow(self, token: str) -> bool:
        """Open or close a bracket. Whether it closes the tag, after which comes text."""
        inner = self.opened[-1] if self.opened else ""
        if token == inner == "`" or token in (")", "]", "}", "*/") or (token == ">" and inner == "<"):
            if self.opened:
                self.opened.pop()
            return inner == "<" and not self.opened
        if token in ("(", "[", "{", "`", "${", "/*"):
            self.opened.append(token)
        return False


class _Reader:
    """Collects the lines of a paragraph; every other line is yielded at once."""

    def __init__(self) -> None:
        self.text = ""  # of the open paragraph
        self.lines: list[tuple[int, int, int]] = []  # lines of the open paragraph: (start, start of the prose, end)
        self.is_item = False  # it begins an item or a footnote
        self.depth = 0  # number of block quotes around it
        self.indents: list[int] = []  # columns at which the contents of the open list items begin
        self.block: _Block | None = None  # the open one
        self.block_depth = 0
        self.until_blank = False
        self.in_table = False
        self.front: str | None = None  # the line that will end the front matter
        self.number = 0

    def feed(self, line: str) -> Iterator[Part]:
        self.number += 1
        body = line.rstrip("\r\n")
        if self._is_front_matter(body.lstrip(BOM) if self.number == 1 else body):
            yield Part(line)
            return
        at = 1 if self.number == 1 and body.startswith(BOM) else 0
        quotes = _QUOTES.match(body, at)
        at = quotes.end() if quotes else at
        depth = body[:at].count(">")
        if self._is_inside(body, at, depth):
            yield from self.flush()
            yield Part(line)
            return
        yield from self._block(line, body, at, depth)

    def flush(self, *, is_title: bool = False) -> Iterator[Part]:
        """Yield the open paragraph, or heading."""
        text, lines, is_item = self.text, self.lines, self.is_item
        self.text, self.lines, self.is_item = "", [], False
        if lines:
            yield _paragraph(text, lines, is_title=is_title, is_item=is_item)

    def _is_front_matter(self, body: str) -> bool:
        if self.number == 1 and body.rstrip() in ("---", "+++"):
            self.front = body.rstrip()
            return True
        if self.front is None:
            return False
        if self.number == 2 and not FRONT_MATTER_KEY.match(body):
            self.front = None  # a thematic break, not the beginning of front matter
            return False
        if body.rstrip() == self.front or (self.front == "---" and body.rstrip() == "..."):
            self.front = None
        return True

    def _is_inside(self, body: str, at: int, depth: int) -> bool:
        """Whether a line belongs to an open block of code, HTML or math."""
        if self.block is not None:
            line = body if depth > self.block_depth else body[at:]  # further marks of quotes belong to the block
            if depth < self.block_depth or self.block.is_over(line):
                self.block = None
                return False
            if self.block.ends(line):
                self.block = None
            return True
        if self.until_blank and body[at:].strip():
            return True
        self.until_blank = False
        return False

    def _block(self, line: str, body: str, at: int, depth: int) -> Iterator[Part]:
        rest = body[at:].lstrip(" \t")
        if not rest:
            self.in_table = False
            yield from self.flush()
            yield Part(line)
            return
        if depth != self.depth:
            yield from self.flush()
            self.indents, self.depth, self.in_table = [], depth, False
        indent = _columns(body[at : len(body) - len(rest)])
        at = len(body) - len(rest)
        in_list = bool(self.indents)
        while self.indents and indent < self.indents[-1]:
            self.indents.pop()
        inner = indent - (self.indents[-1] if self.indents else 0)
        if inner >= 4 and not self.lines:
            yield Part(line)  # indented code
            return
        if self.lines and _UNDERLINE.match(rest) and not self.in_table and inner < 4:
            yield from self.flush(is_title=True)
            yield Part(line)
            return
        while inner < 4 and (item := _ITEM.match(rest)) and not _RULE.match(rest):
            if self.lines and item[0][0].isdigit() and item[0][:-1] != "1" and not in_list:
                break  # a number that begins a line inside a paragraph
            yield from self.flush()
            self.is_item = True
            at, inner = self._enter(body, at, len(item[0]), indent)
            indent, rest = self.indents[-1] + inner, body[at:]
            if not rest or inner >= 4 or len(self.indents) > _NESTING:
                yield Part(line)
                return
        yield from self._leaf(line, body, at, indent)

    def _enter(self, body: str, at: int, width: int, indent: int) -> tuple[int, int]:
        """Open a list item with a marker of `width` characters; return the start and the indentation of its content."""
        self.in_table = False
        content = len(body) - len(body[at + width :].lstrip(" \t"))
        space = content - at - width
        step = width + (space if 0 < space < 5 else 1)
        self.indents.append(indent + step)
        return content, max(0, content - at - step)

    def _leaf(self, line: str, body: str, at: int, indent: int) -> Iterator[Part]:
        """Handle a line without its quote and list markers."""
        rest = body[at:]
        if self._opens(rest, indent) or self._states(rest) or _RULE.match(rest) or _DIRECTIVE.match(rest):
            self.in_table = False
            yield from self.flush()
            yield Part(line)
        elif _ADMONITION.match(rest) and (not self.lines or len(rest.split()) == 2):
            self.in_table = False
            yield from self.flush()
            self.indents.append(indent + 4)
            yield Part(line)
        elif not self.lines and _GRID.match(rest):
            self.until_blank = True
            yield Part(line)
        elif heading := _HEADING.match(rest):
            self.in_table = False
            yield from self.flush()
            yield _prose(line, [(at + heading.end(), _heading_end(body, at + heading.end()))], is_title=True)
        elif _DEFINITION.match(rest) and not self.lines:
            yield Part(line)
        elif self.in_table:
            yield _prose(line, cells(line, at, len(body)))
        elif self.lines and _ROW_OF_DASHES.match(rest) and "|" in self.text[self.lines[-1][1] :]:
            yield from self._table_head()
            yield Part(line)
        else:
            mark = _FOOTNOTE.match(rest) or (None if self.lines else _TASK.match(rest))
            if mark and mark.re is _FOOTNOTE:
                yield from self.flush()
                self.is_item = True
            self.lines.append(
                (len(self.text), len(self.text) + at + (mark.end() if mark else 0), len(self.text) + len(body))
            )
            self.text += line
            if len(self.text) > PARAGRAPH_LIMIT:
                yield from self.flush()

    def _table_head(self) -> Iterator[Part]:
        """Turn the last line of the open paragraph into the first row of a table."""
        start, prose, end = self.lines.pop()
        head, self.text = self.text[start:], self.text[:start]
        yield from self.flush()
        self.text, self.in_table = "", True
        yield _prose(head, cells(head, prose - start, end - start))

    def _opens(self, rest: str, indent: int) -> bool:
        """Whether a line begins a block without prose, which may end on the same line."""
        if rest[0] not in _OPENING_CHARS:
            return False
        margin = self.indents[-1] if self.indents else 0
        if fence := _FENCE.match(rest):
            # A fence that continues a paragraph may be indented by more columns, and so may its end.
            limit = max(margin + 4, indent + 1)
            return self._open(_Fenced(fence[1] or fence[2], limit))
        if (begin := _ENVIRONMENT.match(rest)) and begin[1] == "begin":
            environment = _Environment(begin[2])
            return environment.ends(rest) or self._open(environment)
        for number, (opening, closing) in enumerate(_OPENINGS):
            match = opening.match(rest)
            if not match or (number == _ALONE and self.lines):
                continue
            if closing is None:
                self.until_blank = True
            elif not closing.search(rest, match.end()):
                self._open(_Until(closing))
            return True
        if not self.lines and _COMPONENT.match(rest):
            brackets = _Brackets("<", margin)
            return not brackets.ends(rest) and self._open(brackets)
        return False

    def _open(self, block: _Block) -> bool:
        self.block, self.block_depth = block, self.depth
        return True

    def _states(self, rest: str) -> bool:
        """Whether a line begins with a statement of MDX, which may go on."""
        if not _STATEMENT.match(rest):
            return False
        if not (self.lines or self.indents or self.depth):  # elsewhere it is more likely text
            brackets = _Brackets()
            if not brackets.ends(rest):
                self._open(brackets)
            elif rest.rstrip(" \t").endswith(("=", "=>")):
                self.until_blank = True
        return True


def _columns(space: str) -> int:
    return len(space.expandtabs(4))


def _heading_end(body: str, start: int) -> int:
    """End of a heading's text, before closing `#` and attributes in braces."""
    heading = body[start - 1 :].rstrip(" \t")  # includes the space before the text, which "# #" lacks
    if heading.endswith("}") and (brace := heading.rfind("{")) >= 0 and "}" not in heading[brace:-1]:
        heading = heading[:brace].rstrip(" \t")
    closed = heading.rstrip("#")
    if closed != heading and closed.endswith((" ", "\t")):
        heading = closed.rstrip(" \t")
    return max(start, start - 1 + len(heading))


def _prose(line: str, spans: Sequence[tuple[int, int]], *, is_title: bool = False) -> Part:
    """A heading or a table row: a segment per span, none of which may gain a capital or a full stop."""
    segments = [_segment(line, start, end, is_title=is_title, is_item=True) for start, end in spans if start < end]
    refused = tuple(segment for segment in segments if isinstance(segment, Refusal))
    return Part(line, tuple(segment for segment in segments if isinstance(segment, Segment)), refused)


def _paragraph(text: str, lines: Sequence[tuple[int, int, int]], *, is_title: bool, is_item: bool) -> Part:
    segment = _segment(text, lines[0][1], lines[-1][2], is_title=is_title, is_item=is_title or is_item)
    if not isinstance(segment, Segment):
        return Part(text, refused=(segment,) if segment else ())
    hidden = tuple((start, prose) for start, prose, _ in lines[1:] if text[start:prose].strip())
    return Part(text, (replace(segment, hidden=hidden),))


def _segment(text: str, start: int, end: int, *, is_title: bool, is_item: bool) -> Segment | Refusal | None:
    segment = segment_of(text, start, end)
    if not isinstance(segment, Segment):
        return segment
    return replace(
        segment,
        protected=merged_spans(segment.protected, markup(text, segment.start, segment.end)),
        forbidden=ACTIVE,
        begins_block=begins_block,
        begins=not is_item,
        ends=not is_item,
        is_title=is_title,
    )
