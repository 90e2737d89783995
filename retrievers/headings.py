"""Headings of plain text, Markdown and reStructuredText: where the parts of a document begin, and their titles."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

MAX_TITLE = 200  # characters: a longer line is a paragraph, whatever stands under it

_LINE = re.compile(r"[^\n]*(?:\n|$)")
_ATX = re.compile(r" {0,3}(#{1,6})[ \t]+(\S.*?)[ \t]*#*[ \t]*$")
_RULE = re.compile(r"([=\-~^+*\"'`:.])\1{2,}[ \t]*$")
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
_LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)|`([^`<]+?)\s*<[^>]*>`_+")
_MARKS = re.compile(r"[*`|]+|(?<!\w)_+|_+(?!\w)")


@dataclass(frozen=True, slots=True)
class Heading:
    """A heading and where it begins."""

    start: int  # characters
    level: int  # 1: the highest
    title: str
    underlined: bool = False  # two lines, the second a rule


def found_headings(text: str) -> tuple[Heading, ...]:
    """Lines that begin with "#", and lines over a rule of one character, outside fenced code.

    Beside "#" a rule of "=" is the first level and one of "-" the second; in texts without "#", as in reStructuredText,
    levels come in the order in which they are first used.
    """
    found: list[tuple[int, int | str, str]] = []
    fence, before, title, start = "", "", "", 0  # the lines before this one, and where the last of them began
    for match in _LINE.finditer(text):
        line = match.group().rstrip("\n")
        rule = _RULE.fullmatch(line)
        if fence:
            if line.strip().startswith(fence) and not line.strip().strip(fence[0]):
                fence = ""
        elif rule and _is_title(title, before, line):
            found.append((start, rule.group(1), title))
        elif opened := _FENCE.match(line):
            fence = opened.group(1)
        elif heading := _ATX.fullmatch(line):
            found.append((match.start(), len(heading.group(1)), heading.group(2)))
        before, title, start = title, line, match.start()
        if match.end() == len(text):
            break
    return tuple(_levelled(found))


def path_at(headings: Sequence[Heading], place: int) -> str:
    """The titles of the parts that `place` lies in, from the highest down."""
    open_parts: list[Heading] = []
    for heading in headings:
        if heading.start > place:
            break
        open_parts = [part for part in open_parts if part.level < heading.level] + [heading]
    return " > ".join(part.title for part in open_parts if part.title)


def plain_title(title: str) -> str:
    """A title without links and marks."""
    linked = _LINK.sub(lambda match: match.group(1) or match.group(2) or "", title)
    return " ".join(_MARKS.sub("", linked).split())[:MAX_TITLE]


def _is_title(title: str, before: str, rule: str) -> bool:
    """Whether a line is a heading: by itself above a rule of its length, or of any length if of "="."""
    said, length = title.strip(), len(rule.strip())
    if not said or len(said) > MAX_TITLE or said != title.rstrip() or not any(map(str.isalnum, said)):
        return False
    return not (before.strip() and not _RULE.fullmatch(before)) and (length >= len(said) or rule[0] == "=")


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
