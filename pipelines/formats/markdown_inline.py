"""Markup inside a paragraph of Markdown, which corrections must not change."""

from __future__ import annotations

import re
from bisect import bisect_left
from itertools import pairwise

ACTIVE = "`*_<>[]|#$\\~{}"
"""Characters that may become markup anywhere, so that corrections must not insert them."""

_BRACED = r"\{[^{}]*\}"
for _ in range(3):
    _BRACED = rf"\{{[^{{}}]*(?:{_BRACED}[^{{}}]*)*\}}"
_PLAIN = r"[^<>{}\"']{0,2000}"
_ATTRIBUTES = rf"{_PLAIN}(?:(?:\"[^\"]{{0,2000}}\"|'[^']{{0,2000}}'|{_BRACED}){_PLAIN}){{0,200}}"
"""Between a tag's name and its end. Strings and braces (JSX) may hold `>`."""

_MARKUP = re.compile(
    r"(?=[\\`<$\[\]!&:{*~=_hfw])(?:"  # first characters of all alternatives, to skip most of the text quickly
    # code, comments, templates, elements of code, formulas: their ends are searched separately
    r"(?P<ticks>`+)|(?P<opening><!--|\{[%{])"
    rf"|<(?P<element>code|kbd|samp|var|tt|pre)(?:\s{_PLAIN})?>|\\(?P<formula>[(\[])"
    r"|\\[!-/:-@\[-`{-~]|\\(?=\r?\n|\r)"  # escapes, hard line breaks
    rf"|</?[A-Za-z]{_ATTRIBUTES}>"
    r"|</?[A-Za-z][^<>]{0,2000}>|<[A-Za-z][\w+.-]*:[^\s<>]*>|<[^\s<>@]+@[^\s<>]+>"
    r"|\$\$[^$]+\$\$|\$(?![\s$])(?:[^$\n]+?|(?=[^$]*[\\^_=])[^$\n]+?\n[^$\n]+?)(?<![\s\\])\$(?!\d)"
    r"|\[\[[^\[\]\n]+\]\](?!\()|\[\[!\w+"  # wiki links, directives of ikiwiki
    r"|\[[^\[\]]+\]\[\]|\[\^[^\[\]\s]+\]|\[[^\[\]]+\](?![(\[])"  # reference labels, footnotes
    r"|\]\((?:[^()\\\s]|\\.|\((?:[^()\\]|\\.)*\))*"  # target and title of a link
    r"(?:\s+(?:\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*'|\([^()]*\)))?\s*\)"
    r"|\]\([^()\n]*\)|\]\[[^\[\]]+\]|!?\[|\]"
    r"|(?:https?|ftp)://[^\s<>]+|www\.[^\s<>]+"
    r"|&(?:[A-Za-z]\w*|#\w+);|:[a-z0-9_+-]+:(?=\W|\Z)"
    r"|\{[#.:][^{}]*\}"  # attributes
    r"|\*+|~~|==|(?<![^\W_])_+|_+(?![^\W_]))",
    re.DOTALL,
)

_ENDS = {"<!--": ("-->", 4000), "{%": ("%}", 400), "{{": ("}}", 400)}
_FORMULA_ENDS = {"(": ("\\)", 1000), "[": ("\\]", 4000)}
"""The end of each opening, and the maximum number of characters in between."""

_TEX = re.compile(r"[\\^_={}]")
_WORD = re.compile(r"[^\W\d_]{3}")
_ELEMENT_CHARS = 4000  # maximum length of an element's content
_CODE_CHARS = 4000  # maximum length of a code span
_TICKS = re.compile("`+")


def markup(text: str, start: int, end: int) -> list[tuple[int, int]]:
    """Spans of markup in a stretch of `text`, ascending, adjacent ones joined. Takes linear time."""
    spans: list[tuple[int, int]] = []
    ends = _Ends(text, start, end)
    at = start
    while match := _MARKUP.search(text, at, end):
        at = match.end()
        if match.lastgroup is not None:
            closed = ends.of(match)
            if closed is None and (match["ticks"] or match["opening"]):
                at = match.end() if match["ticks"] else match.start() + 1
                continue
            at = closed or match.end()  # without its end an element is a tag, and a formula's mark an escape
        if spans and spans[-1][1] == match.start():
            spans[-1] = (spans[-1][0], at)
        else:
            spans.append((match.start(), at))
    return spans


class _Ends:
    """Finds the ends of code, comments, templates and formulas. Every position is searched once: a search from each
    opening would take quadratic time in texts with many unclosed ones."""

    def __init__(self, text: str, start: int, end: int) -> None:
        self.text, self.start, self.end = text, start, end
        self.runs: dict[int, list[int]] | None = None  # starts of runs of backticks, by length
        self.known: dict[str, int] = {}  # start of the next end of each kind; -1: there is none

    def of(self, match: re.Match[str]) -> int | None:
        """The end of what `match` opens; None if it is not closed."""
        if match["ticks"]:
            return self._tick(match.end(), len(match["ticks"]))
        if match["element"]:
            closing, most = f"</{match['element']}>", _ELEMENT_CHARS
        else:
            closing, most = _ENDS[match["opening"]] if match["opening"] else _FORMULA_ENDS[match["formula"]]
        at = self.known.get(closing, self.start)
        if 0 <= at < match.end():
            at = self.known[closing] = self.text.find(closing, match.end(), self.end)
        if not 0 <= at <= match.end() + most:
            return None
        inside = self.text, match.end(), at
        if match["formula"] and _WORD.search(*inside) and not _TEX.search(*inside):
            return None  # escaped brackets around text
        return at + len(closing)

    def _tick(self, at: int, size: int) -> int | None:
        if self.runs is None:
            self.runs = {}
            for run in _TICKS.finditer(self.text, self.start, self.end):
                self.runs.setdefault(run.end() - run.start(), []).append(run.start())
        runs = self.runs.get(size, [])
        place = bisect_left(runs, at)
        return runs[place] + size if place < len(runs) and runs[place] <= at + _CODE_CHARS else None


def cells(text: str, start: int, end: int) -> list[tuple[int, int]]:
    """Spans of the cells of a table row, which unescaped bars separate."""
    borders = [match.start() for match in re.finditer(r"(?<!\\)\|", text[start:end])]
    edges = [start - 1, *(start + border for border in borders), end]
    return [(first + 1, last) for first, last in pairwise(edges)]
