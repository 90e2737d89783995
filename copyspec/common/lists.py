"""Word lists, names and patterns that are data: they stand in the text file beside a module that has its name.

Such a file has sections with a blank line behind each: a name in brackets, and lines. A line that begins with "# " is a
comment, before a section or between rows.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path


class Lists:
    """The lists beside the module in the file `module`, by section."""

    def __init__(self, module: str) -> None:
        self._text = f"\n{Path(module).with_suffix('.txt').read_text(encoding='utf-8')}\n"

    def _section(self, name: str) -> str:
        start = self._text.index(f"\n[{name}]\n") + len(name) + 4
        return self._text[start : self._text.index("\n\n", start)]

    def listed(self, name: str) -> Sequence[str]:
        """The words of all lines, in order."""
        return self._section(name).split()

    def words(self, name: str) -> frozenset[str]:
        """The set of these words."""
        return frozenset(self._section(name).split())

    def rows(self, name: str) -> Sequence[Sequence[str]]:
        """The words of each line; "-" stands for none."""
        lines = [line for line in self._section(name).split("\n") if not line.startswith("# ")]
        return [["" if word == "-" else word for word in line.split()] for line in lines]

    def pairs(self, name: str) -> Sequence[tuple[str, str]]:
        """What stands before and after the first ": " of each line."""
        return [(key, value) for key, _, value in (line.partition(": ") for line in self._section(name).split("\n"))]

    def pattern(self, name: str, flags: int = re.IGNORECASE) -> re.Pattern[str]:
        """The regular expression that the lines make together."""
        return re.compile(self._section(name).replace("\n", ""), flags)
