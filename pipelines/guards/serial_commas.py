"""The comma before the last "and" of a list: the writer's habit, and the lists that do not follow it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from ..documents import Edit, Segment

_WITH, _WITHOUT = (re.compile(rf"\w, [\w' -]{{1,30}}{mark} (?:and|or) \w") for mark in (",", r"(?<![,;])"))
_WORD = r"[\w'’-]{1,40}"
_PLAIN = re.compile(rf"(?<![\w'’-])(?:{_WORD}, ){{2,20}}{_WORD}(,?) (?:and|or) {_WORD}(?![\w'’-])")
"""A list of single words, four or more: in shorter ones the commas may set off something else."""
_LEAST = 3  # lists that make a habit
_SHARE = 0.8


class SerialCommas:
    """Counts the lists of a document with and without the comma."""

    def __init__(self) -> None:
        self._counts = Counter[bool]()

    def read(self, prose: str) -> None:
        for has_comma, pattern in ((True, _WITH), (False, _WITHOUT)):
            self._counts[has_comma] += sum(1 for _ in pattern.finditer(prose))

    @property
    def is_usual(self) -> bool | None:
        """Whether lists have the comma; None if the document has both, or no lists."""
        return None if all(self._counts.values()) == any(self._counts.values()) else self._counts[True] > 0

    def others(self, text: str, segment: Segment) -> Iterator[Edit]:
        """Yield the edits that give lists of words the comma, or take it from them, as most of the document has it."""
        total = self._counts.total()
        habit = next((habit for habit in (True, False) if self._counts[habit] >= max(_LEAST, _SHARE * total)), None)
        for match in _PLAIN.finditer(text, segment.start, segment.end) if habit is not None else ():
            if bool(match[1]) is not habit:
                yield Edit(*match.span(1), "," if habit else "")
