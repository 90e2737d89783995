"""Finds headings in plain text, Markdown and reStructuredText, so that passages know the titles above them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

MAX_TITLE = 200  # characters; a longer line is a paragraph even if it is underlined
MAX_SCANNED = 5 * MAX_TITLE  # characters of a title with its markup: finding markup may take quadratic time

_LINE = re.compile(r"[^\n]*(?:\n|$)")
_ATX = re.compile(r" {0,3}(#{1,6})[ \t]+(\S.*)")
_RULE = re.compile(r"([=\-~^+*\"'`:.])\1{2,}[ \t]*$")
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
_LINK = re.compile(r"!?\[([^\[\]]*)\]\([^)]*\)|`([^`<]+)<[^>]*>`_+")
_MARKS = re.compile(r"[*`|]+|(?<!\w)_+|_+(?!\w)")


@dataclass(frozen=True, slots=True)
class Heading:
    """A heading and its position."""

    start: int  # in characters
    level: int  # 1 is the highest
    title: str
    underlined: bool = False  # whether it has a second line, the underline


def found_headings(text: str) -> tuple[Heading, ...]:
    """Find the headings of a text: lines that begin with "#", and underlined lines, outside fenced code.

    In texts with "#" headings, an underline of "=" means level 1 and one of "-" level 2. In others, as in
    reStructuredText, each underline character gets its level by the order of first use.
    """
    found: list[tuple[int, int | str, str]] = []
    fence, before, title, start = "", "", "", 0  # `before`, `title`: the last two lines; `start`: of `title`
    for match in _LINE.finditer(text):
        line = match.group().rstrip("\r\n")
        rule = _RULE.fullmatch(line)
        if fence:
            if line.strip().startswith(fence) and not line.strip().strip(fence[0]):
                fence = ""
        elif rule and _is_title(title, before, line):
            found.append((start, rule.group(1), title))
        elif opened := _FENCE.match(line):
            fence = opened.group(1)
        elif heading := _ATX.fullmatch(line):
            found.append((match.start(), len(heading.group(1)), _without_closing(heading.group(2))))
        before, title, start = title, line, match.start()
        if match.end() == len(text):
            break
    return tuple(_levelled(found))


def paths_at(headings: Sequence[Heading], places: Iterable[int]) -> Iterator[str]:
    """For each of the ascending `places`, yield the titles of the sections around it, highest level first, joined with
    " > "."""
    open_parts: list[Heading] = []
    coming = 0
    for place in places:
        while coming < len(headings) and headings[coming].start <= place:
            heading = headings[coming]
            open_parts = [part for part in open_parts if part.level < heading.level] + [heading]
            coming += 1
        yield " > ".join(part.title for part in open_parts if part.title)


def plain_title(title: str) -> str:
    """Return a title without link targets and markup, of at most MAX_TITLE characters."""
    linked = _LINK.sub(lambda match: match.group(1) or (match.group(2) or "").rstrip(), title[:MAX_SCANNED])
    return " ".join(_MARKS.sub("", linked).split())[:MAX_TITLE]


def _without_closing(title: str) -> str:
    """The title of a "#" heading without the white space and the "#" that may close the line."""
    title = title.rstrip(" \t")
    return title.rstrip("#").rstrip(" \t") or title[0]


def _is_title(title: str, before: str, rule: str) -> bool:
    """Whether a line is a heading: nothing above it, and an underline at least as long (any length for "=")."""
    text, length = title.strip(), len(rule.strip())
    if not text or len(text) > MAX_TITLE or text != title.rstrip() or not any(map(str.isalnum, text)):
        return False
    return not (before.strip() and not _RULE.fullmatch(before)) and (length >= len(text) or rule[0] == "=")


def _levelled(found: Iterable[tuple[int, int | str, str]]) -> list[Heading]:
    found, headings = list(found), []
    is_markdown = any(isinstance(mark, int) for _, mark, _ in found)
    ranks: list[str] = ["=", "-"] if is_markdown else []
    for start, mark, title in found:
        if isinstance(mark, str) and mark not in ranks:
            ranks.append(mark)
        level = mark if isinstance(mark, int) else ranks.index(mark) + 1
        headings.append(Heading(start, level, plain_title(title), isinstance(mark, str)))
    return headings
