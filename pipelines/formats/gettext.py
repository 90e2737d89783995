"""Gettext catalogs (`.po`): translations are text; message ids, contexts, comments and the header are kept."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from itertools import pairwise

from ..documents import FormatError
from .reading import lines_of
from .whole import Prose, within

FORBIDDEN = '"\\%{}<>'

_KEYWORD = re.compile(r"[ \t]*(msgctxt|msgid_plural|msgid|msgstr(?:\[\d{1,3}\])?)[ \t]*(?=\")")
_STRING = re.compile(r"[ \t]*\"((?:[^\"\\\r\n]|\\.)*)\"[ \t]*(?:\r?\n|\r)?\Z", re.DOTALL)
_FIXED = re.compile(
    r"\\.|%(?:\(\w{1,80}\))?[-+ #0]{0,5}\d{0,9}(?:\.\d{1,9})?(?:hh|h|ll|l|L|q|j|z|t)?[a-zA-Z%]|%\d{1,9}(?:\$\w)?"
    r"|\{[^{}\n]{0,80}\}|<[^<>\n]{0,200}>|&(?:[a-zA-Z]+|#\w+);|[_&](?=\w)",
    re.DOTALL,
)
_BREAK = re.compile(r"(?:\\[nrt])+")
_LINE_CHARS = 64 << 10  # longest line that is read: matching a string takes a hundred bytes for each character


def translations(text: str) -> Iterator[Prose]:
    """Yield every translation, paragraph by paragraph. The entry with an empty message id is the header.

    Raises FormatError if no line is a message."""
    at = 0
    keyword, is_header, is_known = "", True, False
    strings: list[tuple[int, int]] = []  # of the open translation: spans between the quotes
    for line in lines_of(text):
        opening = _KEYWORD.match(line)
        string = _STRING.match(line, opening.end() if opening else 0) if len(line) <= _LINE_CHARS else None
        if opening or not string:
            if keyword.startswith("msgstr") and not is_header:
                yield from _paragraphs(text, strings)
            strings, keyword = [], ""
        if opening and string:
            is_known = True
            keyword = opening[1]
            if keyword == "msgid":
                is_header = True  # unless a string follows
        if string and keyword:
            span = at + string.start(1), at + string.end(1)
            if keyword == "msgid":
                is_header = is_header and span[0] == span[1]
            strings.append(span)
        at += len(line)
    if keyword.startswith("msgstr") and not is_header:
        yield from _paragraphs(text, strings)
    if text.strip() and not is_known:
        raise FormatError("not a message catalog: no line begins with msgid or msgstr")


def _paragraphs(text: str, strings: list[tuple[int, int]]) -> Iterator[Prose]:
    """Split a translation at its line breaks. The quotes between its lines are left out."""
    strings = [string for string in strings if string[0] < string[1]]
    if not strings:
        return
    between = [(first[1], second[0]) for first, second in pairwise(strings)]
    cuts = [cut for start, end in strings for cut in _breaks(text, start, end)]
    edges = [strings[0][0], *(edge for cut in cuts for edge in cut), strings[-1][1]]
    fixed = list(_fixed(text, strings))
    for start, end in zip(edges[::2], edges[1::2], strict=True):
        if start < end:
            quotes = within(between, start, end)
            yield Prose(start, end, fixed=within(fixed, start, end), left_out=quotes)


def _fixed(text: str, strings: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Placeholders, tags and the like; one that continues on the next line gives a span for each line."""
    begins, joined = [], ""
    for start, end in strings:
        begins.append(len(joined))
        joined += text[start:end]
    for match in _FIXED.finditer(joined):
        first, last = bisect_right(begins, match.start()) - 1, bisect_left(begins, match.end())
        for (start, end), begin in zip(strings[first:last], begins[first:last], strict=True):
            yield start + max(match.start() - begin, 0), min(start + match.end() - begin, end)


def _breaks(text: str, start: int, end: int) -> list[tuple[int, int]]:
    """Escaped line breaks; an escaped backslash before `n` is not one."""
    breaks, at = [], start
    while at < end:
        at = text.find("\\", at, end)
        if at < 0:
            break
        if escapes := _BREAK.match(text, at, end):
            breaks.append(escapes.span())
            at = escapes.end()
        else:
            at += 2
    return breaks
