"""Here-documents of shell scripts (POSIX, Shell Command Language 2.7.4), whose lines are data."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import defaultdict

_OPERATOR = re.compile(r"(?<!<)<<(?!<)")
_OPENING = re.compile(
    _OPERATOR.pattern
    + r"""(?P<tabs>-?)[ \t]*(?P<word>(?:\\.|'[^'\n]{0,200}'|"[^"\n]{0,200}"|[^\s;&|()<>'"`\\]){1,200})"""
)
_QUOTES = re.compile(r"[\\'\"]")


def masked(text: str) -> str:
    """The script with spaces instead of here-documents and of the operators before them; offsets do not change.

    Pygments does not know every way to quote the delimiter, and ends a document at the delimiter inside a line. A
    document without an end is none: a shift in arithmetic looks like one. `text`: lines end with a line feed."""
    if not _OPERATOR.search(text):
        return text
    lines = text.split("\n")
    ends: defaultdict[tuple[bool, str], list[int]] = defaultdict(list)  # numbers of equal lines, ascending
    for number, line in enumerate(lines):
        ends[False, line].append(number)
        ends[True, line.lstrip("\t")].append(number)
    number = 0
    while number < len(lines):
        last = number
        for found in _OPENING.finditer(lines[number]):
            same = ends.get((bool(found["tabs"]), _QUOTES.sub("", found["word"])), [])
            if (at := bisect_right(same, last)) < len(same):
                last = same[at]
        lines[number] = _OPERATOR.sub("  ", lines[number])
        for inside in range(number + 1, last + 1):
            lines[inside] = " " * len(lines[inside])
        number = last + 1
    return "\n".join(lines)
