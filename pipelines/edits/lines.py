"""Compares two versions of a text line by line."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from difflib import SequenceMatcher

from copyspec.common.sequences import common_prefix

LINE_END = re.compile(r"\r\n|\n|\r")


def aligned(before: Sequence[str], lines: Sequence[str]) -> Iterator[tuple[str, int, int, int, int]]:
    """Yield opcodes as `SequenceMatcher.get_opcodes` does, what both texts begin and end with as equal."""
    first = common_prefix(before, lines)
    last = min(common_prefix(before[::-1], lines[::-1]), len(before) - first, len(lines) - first)
    old, new = before[first : len(before) - last], lines[first : len(lines) - last]
    if first:
        yield "equal", 0, first, 0, first
    for tag, a, b, c, d in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        yield tag, first + a, first + b, first + c, first + d
    if last:
        yield "equal", len(before) - last, len(before), len(lines) - last, len(lines)


def new_lines(lines: Sequence[str], before: Sequence[str]) -> Iterator[str]:
    """Yield the lines of a text that another one does not have, or not as often."""
    known = Counter(before)
    for line in lines:
        if known[line]:
            known[line] -= 1
        else:
            yield line


def distance(lines: Sequence[str], before: Sequence[str], *, exact: bool = False) -> int:
    """Number of lines that only one of two texts has, in any order."""
    ours, theirs = (Counter(line if exact else line.strip() for line in side) for side in (lines, before))
    return (ours - theirs).total() + (theirs - ours).total()


def shared(lines: Iterable[str], before: Sequence[str]) -> bool:
    """Whether any of the lines that have a letter or digit is in `before`, surrounding blanks apart."""
    known = {line.strip() for line in before}
    return any(line.strip() in known for line in lines if any(map(str.isalnum, line)))


def with_line_ends(version: str, body: str, after: str) -> str:
    """`version`, a new version of `body`, with the line ends of `body` in place of `\\n`. `after`: the white space
    after `body`, which holds the end of its last line."""
    lines, ends = version.split("\n"), LINE_END.findall(f"{body}{after}")
    chosen = line_ends(lines, LINE_END.split(body), ends)
    return "".join(f"{line}{end}" for line, end in zip(lines, [*chosen[:-1], ""], strict=True))


def line_ends(lines: Sequence[str], before: Sequence[str], ends: Sequence[str]) -> list[str]:
    """The line ends of `lines`, which replace the lines `before` with the ends `ends`. A line keeps its end; a new one
    has that of the line that it replaces, or else of the line above."""
    if len(set(ends)) < 2:
        return [ends[0] if ends else "\n"] * len(lines)
    chosen = list[str]()
    for tag, start, end, first, last in aligned(before, lines):
        if tag == "delete":
            continue
        for index in range(first, last):
            source = start + index - first
            known = source < min(end, len(ends))
            chosen.append(ends[source] if known else chosen[-1] if chosen else ends[min(start, len(ends) - 1)])
    return chosen


def words(lines: Sequence[str]) -> set[str]:
    """The words of lines, of four letters or more, in lower case."""
    return {word for line in lines for word in re.findall(r"\w{4,}", line.casefold())}


def parts(lines: Sequence[str]) -> set[str]:
    """The words of lines, and the pairs of neighbouring characters in scripts that may be written without spaces."""
    pairs = (
        word[at : at + 2] for line in lines for word in re.findall(r"[\u2e80-\uffff]+", line) for at in range(len(word))
    )
    return {*words(lines), *pairs}
