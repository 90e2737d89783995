"""What is markup inside a paragraph of Markdown: characters that a correction may not touch."""

from __future__ import annotations

import re
from itertools import pairwise

ACTIVE = "`*_<>[]|#$\\~{}"
"""Characters that may become markup wherever they stand: corrections bring none of them."""

_MARKUP = re.compile(
    r"(?=[\\`<$\[\]!&:{*~=_hfw])(?:"  # how all of these begin: most characters are passed over at once
    r"\\[!-/:-@\[-`{-~]|\\(?=\r?\n|\r)"  # escapes, hard line breaks
    r"|(?P<ticks>`+)(?!`).{1,4000}?(?<!`)(?P=ticks)(?!`)"
    r"|<!--.{0,4000}?-->|</?[A-Za-z][^<>]{0,2000}>|<[A-Za-z][\w+.-]*:[^\s<>]*>|<[^\s<>@]+@[^\s<>]+>"
    r"|\$\$[^$]+\$\$|\$(?![\s$])[^$\n]+?(?<![\s\\])\$(?!\d)"
    r"|\[\[[^\[\]\n]+\]\]"  # wiki links
    r"|\[[^\[\]]+\]\[\]|\[\^[^\[\]\s]+\]|\[[^\[\]]+\](?![(\[])"  # labels that are looked up, footnotes
    r"|\]\((?:[^()\\\s]|\\.|\((?:[^()\\]|\\.)*\))*"  # a link's target, and its title
    r"(?:\s+(?:\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*'|\([^()]*\)))?\s*\)"
    r"|\]\([^()\n]*\)|\]\[[^\[\]]+\]|!?\[|\]"
    r"|(?:https?|ftp)://[^\s<>]+|www\.[^\s<>]+"
    r"|&(?:[A-Za-z]\w*|#\w+);|:[a-z0-9_+-]+:(?=\W|\Z)"
    r"|\{[%{].{0,400}?[%}]\}|\{[#.:][^{}]*\}"  # templates, attributes
    r"|\*+|~~|==|(?<![^\W_])_+|_+(?![^\W_]))",
    re.DOTALL,
)


def markup(text: str, start: int, end: int) -> list[tuple[int, int]]:
    """Where markup stands in a stretch of `text`, ascending, neighbours joined."""
    found: list[tuple[int, int]] = []
    for match in _MARKUP.finditer(text, start, end):
        if found and found[-1][1] == match.start():
            found[-1] = (found[-1][0], match.end())
        else:
            found.append(match.span())
    return found


def cells(text: str, start: int, end: int) -> list[tuple[int, int]]:
    """The cells of a table's row: between bars that no backslash escapes."""
    borders = [match.start() for match in re.finditer(r"(?<!\\)\|", text[start:end])]
    edges = [start - 1, *(start + border for border in borders), end]
    return [(first + 1, last) for first, last in pairwise(edges)]
