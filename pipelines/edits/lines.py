"""Compares two versions of a text line by line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from difflib import SequenceMatcher


def aligned(before: Sequence[str], lines: Sequence[str]) -> Iterator[tuple[str, int, int, int, int]]:
    """Yield the stretches of two texts as `SequenceMatcher.get_opcodes` does, what both begin and end with as equal."""
    most = min(len(before), len(lines))
    first = next((index for index in range(most) if before[index] != lines[index]), most)
    last = next((index for index in range(most - first) if before[-1 - index] != lines[-1 - index]), most - first)
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
    ours, theirs = (Counter(line if exact else line.strip() for line in each) for each in (lines, before))
    return (ours - theirs).total() + (theirs - ours).total()


def shared(lines: Iterable[str], before: Sequence[str]) -> bool:
    """Whether any of the lines, blanks apart, is one of the file."""
    known = {line.strip() for line in before}
    return any(line.strip() in known for line in lines if any(map(str.isalnum, line)))
