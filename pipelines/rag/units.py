"""Divides a passage into units: sentences, list items, rows and lines of code, which can be quoted as an answer.

Questions, headings, rules and lines of a table of contents are not units: they only announce other text.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, takewhile

from copyspec.retrievers import UNSPACED, share_of_word
from copyspec.text.sentence_marks import CLOSING, QUESTION_MARKS, SENTENCE_ENDS

from ..sentences import sentences

MAX_LINE = 200  # characters of a line of a table of contents

_TITLE = re.compile(
    r"(?:\d{1,2}\.?\s+)?(?:(?:table of )?contents|inhalt(?:sverzeichnis)?|sommaire|table des matières|índice|indice)",
    re.IGNORECASE,
)
_PAGE = re.compile(r"(?:(\d{1,4})|[ivxl]{1,7})\Z")
_DOTS = re.compile(r"(?:[.…·_‥]\s?){3,}\Z|[…‥]\s?\Z")
_NUMBERED_LINE = re.compile(r"(?:\d{1,2}\.)*\d{1,2}[.)]?\s+\S|(?:chapter|part|section|appendix)\s", re.IGNORECASE)
_LINK = re.compile(r"(?:[-*+•]\s+|\d{1,2}[.)]\s+)?\[[^\[\]]+\]\(#[^()\s]*\)")


def lines_of_contents(text: str) -> frozenset[int]:
    """Return where the lines of tables of contents begin.

    They are links to places in the same text, and two or more lines whose page numbers never fall, after dots or below
    a title such as "Contents". Below such a title, numbered lines need no page."""
    places: set[int] = set()
    run: list[tuple[int, int]] = []  # lines and pages, 0 without one
    is_below, at = False, 0
    for line in [*text.splitlines(keepends=True), ""]:
        place, at, bare = at, at + len(line), line.strip()
        entry = _entry(bare, is_below) if len(bare) <= MAX_LINE else None
        if _LINK.fullmatch(bare):
            places.add(place)
        elif entry is not None:
            run.append((place, entry))
            continue
        pages = [page for _, page in run if page]
        if len(run) > 1 - is_below * bool(pages) and all(first <= second for first, second in pairwise(pages)):
            places.update(place for place, _ in run)
        run.clear()
        if bare and not bare.strip("=-~*_"):
            continue  # an underline
        if bare:
            is_below = _TITLE.fullmatch(bare.strip("#*=_: \t")) is not None
            places.update({place} if is_below else ())
    return frozenset(places)


def _entry(line: str, is_below: bool) -> int | None:
    """The page of a line of a table of contents, 0 without a number; None for other lines. `is_below`: below a title of
    one."""
    last = line.rpartition(" ")[2].lstrip(".…·_‥\t")
    page = _PAGE.match(last)
    before = line[: len(line) - len(last)].rstrip()
    if page and any(map(str.isalpha, before)) and (is_below or _DOTS.search(before)):
        return int(page[1] or 0)
    return 0 if is_below and _NUMBERED_LINE.match(line) and not line.endswith(tuple(SENTENCE_ENDS)) else None


MAX_UNIT = 400  # longest list item, or paragraph with its question, that is quoted whole, as `extent` counts characters
WORD_LENGTH = 6  # characters of an English word, with the space
MAX_TITLE = 70  # characters of a heading without marks

_ITEM = re.compile(r"[ \t]*(?:[-*+•]|\d{1,2}[.)])[ \t]+\S")
_TABLE = re.compile(r"[ \t]*\|.*\|[ \t]*$")
_RULE = re.compile(r"[|:=\-~^+*\"'`.#\s]+$")
_RULE_BELOW = re.compile(r"[ \t]*\r?\n(?=[^\n]*[=-])[|:=+ \t-]+(?:\n|\Z)")  # of the names of a table's columns
_HEADING = re.compile(r"[ \t]{0,3}#{1,6}[ \t]")
_NUMBERED = re.compile(
    r"(?:\d{1,2}\.)*\d{1,2}[.)]?[ \t]+[^\W\d]|(?:chapter|part|section|appendix)[ \t]\w+(?:[.:]|[ \t]*\Z)", re.IGNORECASE
)
_NO_TITLE = re.compile(r"[\d:=`|<>]")
_NO_ENDS = (*SENTENCE_ENDS, ",", ";")  # a heading has none of these
_EMPTY_LINE = re.compile(r"\n[ \t]*\r?\n")
_FENCE = re.compile(r"[ \t]*(?:```|~~~)")
_TARGET = re.compile(r"\]\([^()\s]*\)")  # of a link in Markdown

_Block = tuple[int, int, str]  # start, end, and kind: text, item, row or code


@dataclass(frozen=True, slots=True)
class Unit:
    """A part of a passage that can be quoted: text[start:end] is a sentence, a list item, a row or a line of code."""

    start: int
    end: int
    head: int  # start of the list item or block that it belongs to
    is_prose: bool = True
    heading: str = ""  # the last heading above it in the passage; of a table's row with the first row
    question: str = ""  # the paragraph or heading that it answers


def units(text: str, context: str = "") -> list[Unit]:
    """Return the units of a passage, in order. `context`: its headings, joined with " > ", with which it may begin."""
    blocks = list(_blocks(text))
    titles, above = _titles(text, blocks), context.split(" > ")
    leading = takewhile(lambda block: text[slice(*block[:2])] in above, blocks)
    titles |= {begin: text[begin:end] for begin, end, _ in leading}
    headings = sorted([*_headings(text), *titles.items()])
    starts = [start for start, _ in headings]
    pieces: list[Unit] = []
    passed, question = 0, ""  # the number of headings above
    header = ""  # the first row of the open table
    last_end, last_kind = 0, ""
    for begin, end, kind in blocks:
        if begin in titles:
            continue
        piece, number = text[begin:end], bisect_left(starts, begin)
        heading = headings[number - 1][1] if number else ""
        if number != passed:
            passed, question = number, heading if asks(heading) else ""
        continues, last_kind = kind == last_kind and not _EMPTY_LINE.search(text, last_end, begin), kind
        last_end = end
        unit = Unit(begin, end, begin, kind != "code", heading, question)
        if kind in ("text", "item") and asks(piece):
            question = piece
        elif kind == "row":
            header = header if continues else piece
            if continues or not _RULE_BELOW.match(text, end):
                pieces.append(replace(unit, heading=f"{heading} {header}"))
        elif kind == "item" and continues and question and extent(text[pieces[-1].start : end]) <= MAX_UNIT:
            pieces[-1] = replace(pieces[-1], end=end)
        elif kind == "code" or (extent(piece) <= MAX_UNIT and (kind == "item" or question or _asks_first(piece))):
            pieces.append(unit)
        else:
            pieces += _sentences(text, unit)
        if kind == "text" and question != piece and not piece.endswith(":"):
            question = ""
    return pieces


def _sentences(text: str, block: Unit) -> Iterator[Unit]:
    """The sentences of a block, each with the questions right before it."""
    begin = -1
    for first, last in sentences(text[block.start : block.end]):
        begin = first if begin < 0 else begin
        if not asks(text[block.start + first : block.start + last]):
            yield replace(block, start=block.start + begin, end=block.start + last)
            begin = -1


def asks(text: str) -> bool:
    """Whether a text consists of questions."""
    plain = _TARGET.sub("", text).rstrip(CLOSING + "# \t")
    return plain.endswith(QUESTION_MARKS) and all(
        plain[first:last].rstrip(CLOSING).endswith(QUESTION_MARKS) for first, last in sentences(plain)
    )


def _titles(text: str, blocks: Sequence[_Block]) -> dict[int, str]:
    """The headings without marks, with their places: short lines without an end, which stand alone above a paragraph or
    another heading."""
    titles: dict[int, str] = {}
    following, next_kind = len(text), ""
    for number, (begin, end, kind) in reversed([*enumerate(blocks)]):
        piece = text[begin:end]
        is_above = next_kind == "text" or following in titles
        is_line = len(piece) <= MAX_TITLE and "\n" not in piece and _EMPTY_LINE.search(text, end, following) is not None
        looks = _NUMBERED.match(piece) is not None or (kind == "text" and not _NO_TITLE.search(piece))
        is_answer = number > 0 and asks(text[slice(*blocks[number - 1][:2])])
        if is_line and is_above and looks and not is_answer and not piece.rstrip(CLOSING).endswith(_NO_ENDS):
            titles[begin] = piece
        following, next_kind = begin, kind
    return titles


def _headings(text: str) -> Iterator[tuple[int, str]]:
    """The headings with their positions."""
    at, before, fenced = 0, (0, ""), False
    for line in text.splitlines(keepends=True):
        bare = line.strip()
        fenced ^= _FENCE.match(line) is not None
        if not fenced and _HEADING.match(line):
            yield at, bare.strip("# ")
        elif not fenced and len(bare) > 2 and before[1] and not bare.strip(bare[0]) and bare[0] in "=-~^.":
            yield before
        before, at = (at, bare), at + len(line)


def _asks_first(block: str) -> bool:
    """Whether a paragraph is a question and its answer, which are quoted together."""
    parts = sentences(block)
    return len(parts) > 1 and block[slice(*parts[0])].rstrip(CLOSING).endswith(QUESTION_MARKS)


def extent(text: str) -> float:
    """Return the length of a text in characters of English: in scripts without spaces, a character that is half a word
    counts as half an English word."""
    if text.isascii():
        return len(text)
    return len(text) + sum(WORD_LENGTH * share_of_word(word) - 1 for word in UNSPACED.findall(text))


def _blocks(text: str) -> list[_Block]:
    """Paragraphs, list items and single lines (of tables and code), without headings and tables of contents."""
    blocks: list[_Block] = []
    contents = lines_of_contents(text)
    kind, begin, end, fenced = "", 0, 0, False
    item = 0  # the indentation of the list item that is open
    at = 0
    for line in text.splitlines(keepends=True):
        start, at = at, at + len(line)
        bare = line.strip()
        if start in contents and not fenced:
            kind, begin, end = _close_block(blocks, kind, begin, end)
            continue
        if _FENCE.match(line) and (fenced or not kind or "`" in line):
            kind, begin, end = _close_block(blocks, kind, begin, end)
            fenced = not fenced
            continue
        is_line = fenced or _TABLE.match(line) or bare.startswith((">>>", "$ "))
        indent = len(line) - len(line.lstrip())
        if not bare and kind == "item":
            continue  # indented text after a list item belongs to it
        if (
            kind == "item"
            and indent <= item
            and not _ITEM.match(line)
            and text[end:start].strip() == ""
            and (text[end:start].count("\n") > 1)
        ):
            kind, begin, end = _close_block(blocks, kind, begin, end)
        if not bare or _HEADING.match(line) or (_RULE.match(line) and not fenced):
            if kind == "text" and bare and _RULE.match(line) and "\n" not in text[begin:end].strip():
                kind = ""  # the line above a rule is a heading
            kind, begin, end = _close_block(blocks, kind, begin, end)
        elif is_line:
            kind, begin, end = _close_block(blocks, kind, begin, end)
            if any(map(str.isalnum, bare)):
                kind_of_line = "row" if _TABLE.match(line) and not fenced else "code"
                blocks.append((start + indent, start + len(line.rstrip()), kind_of_line))
        elif _ITEM.match(line):
            _close_block(blocks, kind, begin, end)
            item = indent
            kind, begin, end = "item", start + indent, start + len(line.rstrip())
        elif kind:
            end = start + len(line.rstrip())
        else:
            kind, begin, end = "text", start + len(line) - len(line.lstrip()), start + len(line.rstrip())
    _close_block(blocks, kind, begin, end)
    return blocks


def _close_block(blocks: list[_Block], kind: str, begin: int, end: int) -> tuple[str, int, int]:
    """Append the open block, if there is one, and return the state without one."""
    if kind and begin < end:
        blocks.append((begin, end, kind))
    return "", 0, 0
