"""What is markup inside a paragraph of Markdown: characters that a correction may not touch."""

from __future__ import annotations

import re
from bisect import bisect_left
from itertools import pairwise

ACTIVE = "`*_<>[]|#$\\~{}"
"""Characters that may become markup wherever they stand: corrections bring none of them."""

_MARKUP = re.compile(
    r"(?=[\\`<$\[\]!&:{*~=_hfw])(?:"  # how all of these begin: most characters are passed over at once
    r"\\[!-/:-@\[-`{-~]|\\(?=\r?\n|\r)"  # escapes, hard line breaks
    r"|(?P<ticks>`+)|(?P<opening><!--|\{[%{])"  # whose ends are looked up
    r"|</?[A-Za-z][^<>]{0,2000}>|<[A-Za-z][\w+.-]*:[^\s<>]*>|<[^\s<>@]+@[^\s<>]+>"
    r"|\$\$[^$]+\$\$|\$(?![\s$])[^$\n]+?(?<![\s\\])\$(?!\d)"
    r"|\[\[[^\[\]\n]+\]\]"  # wiki links
    r"|\[[^\[\]]+\]\[\]|\[\^[^\[\]\s]+\]|\[[^\[\]]+\](?![(\[])"  # labels that are looked up, footnotes
    r"|\]\((?:[^()\\\s]|\\.|\((?:[^()\\]|\\.)*\))*"  # a link's target, and its title
    r"(?:\s+(?:\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*'|\([^()]*\)))?\s*\)"
    r"|\]\([^()\n]*\)|\]\[[^\[\]]+\]|!?\[|\]"
    r"|(?:https?|ftp)://[^\s<>]+|www\.[^\s<>]+"
    r"|&(?:[A-Za-z]\w*|#\w+);|:[a-z0-9_+-]+:(?=\W|\Z)"
    r"|\{[#.:][^{}]*\}"  # attributes
    r"|\*+|~~|==|(?<![^\W_])_+|_+(?![^\W_]))",
    re.DOTALL,
)

_ENDS = {"<!--": ("-->", 4000), "{%": ("%}", 400), "{{": ("}}", 400)}
"""What ends an opening, and how many characters behind it at most."""

_CODE_CHARS = 4000  # of a code span at most
_TICKS = re.compile("`+")


def markup(text: str, start: int, end: int) -> list[tuple[int, int]]:
    """Where markup stands in a stretch of `text`, ascending, neighbours joined. It takes time linear in the stretch."""
    found: list[tuple[int, int]] = []
    ends = _Ends(text, start, end)
    at = start
    while match := _MARKUP.search(text, at, end):
        at = match.end()
        if match.lastgroup is not None:
            closed = ends.of(match)
            if closed is None:
                at = match.end() if match["ticks"] else match.start() + 1
                continue
            at = closed
        if found and found[-1][1] == match.start():
            found[-1] = (found[-1][0], at)
        else:
            found.append((match.start(), at))
    return found


class _Ends:
    """Where code spans, comments and templates end. Every place is looked for once: a search from each opening anew
    would take the square of a text that opens many and closes none."""

    def __init__(self, text: str, start: int, end: int) -> None:
        self.text, self.start, self.end = text, start, end
        self.runs: dict[int, list[int]] | None = None  # where runs of so many ticks begin
        self.known: dict[str, int] = {}  # where the next end of a kind begins; -1: there is none

    def of(self, match: re.Match[str]) -> int | None:
        """The end of what `match` opens; None where it is not closed."""
        if match["ticks"]:
            return self._tick(match.end(), len(match["ticks"]))
        closing, most = _ENDS[match["opening"]]
        at = self.known.get(closing, self.start)
        if 0 <= at < match.end():
            at = self.known[closing] = self.text.find(closing, match.end(), self.end)
        return at + len(closing) if 0 <= at <= match.end() + most else None

    def _tick(self, at: int, size: int) -> int | None:
        if self.runs is None:
            self.runs = {}
            for run in _TICKS.finditer(self.text, self.start, self.end):
                self.runs.setdefault(run.end() - run.start(), []).append(run.start())
        runs = self.runs.get(size, [])
        place = bisect_left(runs, at)
        return runs[place] + size if place < len(runs) and runs[place] <= at + _CODE_CHARS else None


def cells(text: str, start: int, end: int) -> list[tuple[int, int]]:
    """The cells of a table's row: between bars that no backslash escapes."""
    borders = [match.start() for match in re.finditer(r"(?<!\\)\|", text[start:end])]
    edges = [start - 1, *(start + border for border in borders), end]
    return [(first + 1, last) for first, last in pairwise(edges)]
