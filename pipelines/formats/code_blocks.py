"""Code blocks in comments and docstrings: Markdown's fences and indentation, tags of Javadoc, JSDoc, Doxygen and XML
comments.

Every scan goes over a line once, or looks at a neighbouring line of a bounded length.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial

_ANY = re.compile(r"`{3}|~{3}|<(?:pre|code)\b|\{@|[@\\](?:example|code|verbatim)\b", re.I)
_FENCE = re.compile(r"\s*(?:(?:[-*+]|\d{1,9}[.)])[ \t]+)?(`{3,}(?=[^`]*$)|~{3,})(?P<info>.*)")
_SHORT_FENCE = 4
"""Maximum tildes of a usual fence; longer lines of tildes mostly underline a title."""
_ELEMENT = re.compile(r"(?<!`)<(pre)\b[^<>]{0,200}>|^\s*<(code)\b[^<>]{0,200}>\s*$", re.I)
_ELEMENT_END = re.compile(r"</(pre|code)\b", re.I)
_DOXYGEN = re.compile(r"\s*[@\\](code|verbatim)(?:\{|\s*$)")
_BRACES = re.compile(r"\{@(?:code|literal|snippet)\b|[{}]")
_EXAMPLE = re.compile(r"\s*@example\b")
_TAG = re.compile(r"\s*@[a-z]\w*(?![\w.(])")  # decorators in the code of an example look like @Input() or @app.get
_LIST_ITEM = re.compile(
    r"[ \t]*(?:[-*+•]|\d{1,9}[.)]"
    r"|[@\\](?:t?param|arg|throws|exception|property)\b(?:\[[^\[\]]{0,40}\])?"
    r"(?:[ \t]+\{[^{}]{0,200}\})?[ \t]+\S{1,200})[ \t]+(?=\S)"
)
"""An item of a list, or a tag that a description follows."""
_INDENT = 4
"""Columns by which code is indented (CommonMark 0.31, 4.4). A tab of Go's comments fills more."""

_Closes = Callable[[str], bool]


def outside_code(lines: Sequence[str]) -> list[tuple[int, int]]:
    """The span of every line that is outside of code blocks: all of it, none, or what stands before a block.

    `lines`: of one comment or docstring, without line ends and comment leaders."""
    if not any(map(_ANY.search, lines)):
        return [(0, len(line)) for line in lines]
    blocks = _Blocks(lines)
    spans: list[tuple[int, int]] = []
    closes: _Closes | None = None
    in_example = False
    for number, line in enumerate(lines):
        if closes is not None:
            spans.append((0, 0))
            closes = None if closes(line) else closes
            continue
        if _TAG.match(line):
            in_example = _EXAMPLE.match(line) is not None
        fence = blocks.fence(number) if in_example else blocks.opening(number)
        at, closes = fence or (0 if in_example else len(line), None)
        spans.append((0, at))
    return spans


def indented(lines: Sequence[str]) -> list[bool]:
    """Whether each line belongs to an indented block, which begins after a blank line. The least indented line is the
    measure, or the text of the list item before.

    `lines`: of one comment, without line ends and comment leaders, but with the white space after them."""
    columns = [_column(line) for line in lines]
    inside = min((column for column, line in zip(columns, lines, strict=True) if line.strip()), default=0)
    flags: list[bool] = []
    is_code = after_blank = False
    for line, column in zip(lines, columns, strict=True):
        if not line.strip():
            after_blank = bool(flags)
            flags.append(False)
            continue
        is_code = column >= inside + _INDENT and (is_code or after_blank)
        if not is_code:
            item = _LIST_ITEM.match(line)
            inside = len(item[0].expandtabs()) if item else min(inside, column)
        after_blank = False
        flags.append(is_code)
    for first, last in _runs(flags):
        if lines[first].lstrip()[0].isupper() and lines[last].rstrip().endswith((".", "!", "?")):
            flags[first : last + 1] = [False] * (last + 1 - first)  # an indented paragraph
    return flags


def _runs(flags: Sequence[bool]) -> Iterator[tuple[int, int]]:
    """The first and the last place of every run of true `flags`."""
    first = None
    for place, flag in enumerate([*flags, False]):
        if flag and first is None:
            first = place
        elif not flag and first is not None:
            yield first, place - 1
            first = None


def _column(line: str) -> int:
    return len(line[: len(line) - len(line.lstrip(" \t"))].expandtabs())


class _Blocks:
    """Finds where blocks begin. Returns the column, and what finds the end unless it is in the same line."""

    def __init__(self, lines: Sequence[str]) -> None:
        self.lines = lines
        self.last = {
            match[1].lower(): number for number, line in enumerate(lines) for match in _ELEMENT_END.finditer(line)
        }  # where an element ends for the last time
        self.tildes = [0] * (len(lines) + 1)  # longest line of tildes from this line on
        for number in range(len(lines) - 1, -1, -1):
            self.tildes[number] = max(self.tildes[number + 1], _tildes(lines[number]))

    def opening(self, number: int) -> tuple[int, _Closes | None] | None:
        line = self.lines[number]
        if match := _DOXYGEN.match(line):
            return 0, partial(_closes_doxygen, match[1])
        return self.fence(number) or self._element(number) or self._braces(number)

    def fence(self, number: int) -> tuple[int, _Closes] | None:
        match = _FENCE.match(self.lines[number])
        if match is None or (match[1][0] == "~" and not match["info"].strip() and not self._is_bare_fence(number)):
            return None
        return 0, partial(_closes_fence, match[1])

    def _is_bare_fence(self, number: int) -> bool:
        """Whether a line of tildes opens a block. In reStructuredText such lines stand below a title, or around it."""
        size = _tildes(self.lines[number])
        before, title = (self._line(at) for at in (number - 1, number + 1))
        if before and (size > _SHORT_FENCE or len(before) <= size):
            return False
        if 0 < len(title) <= size == _tildes(self._line(number + 2)):
            return False
        return self.tildes[number + 1] >= size > 0

    def _line(self, number: int) -> str:
        return self.lines[number].strip() if 0 <= number < len(self.lines) else ""

    def _element(self, number: int) -> tuple[int, _Closes | None] | None:
        line = self.lines[number]
        match = _ELEMENT.search(line)
        if match is None:
            return None
        name = (match[1] or match[2]).lower()
        if self.last.get(name, -1) < number:
            return None  # a sentence about the element
        closes = partial(_closes_element, name)
        return match.start(), None if closes(line[match.end() :]) else closes

    def _braces(self, number: int) -> tuple[int, _Closes] | None:
        """Find a Javadoc tag over several lines. One that goes on in a second line of a sentence is no block."""
        line = self.lines[number]
        braces, start, end = _Braces(), 0, 0
        for match in _BRACES.finditer(line):
            if braces.depth == 0 and len(match[0]) > 1:
                start, end = match.span()
            if braces.depth or len(match[0]) > 1:
                braces.count(match[0])
        if braces.depth == 0:
            return None
        following = _BRACES.search(self._line(number + 1))
        if braces.depth == 1 and line[end:].strip() and following is not None and following[0] == "}":
            return None
        return start, braces


class _Braces:
    """Counts open braces; called with a line, returns whether all are closed in it."""

    depth = 0

    def count(self, brace: str) -> None:
        self.depth += -1 if brace == "}" else 1

    def __call__(self, line: str) -> bool:
        for match in _BRACES.finditer(line):
            self.count(match[0])
            if self.depth == 0:
                return True
        return False


def _tildes(line: str) -> int:
    """Length of a line that holds nothing but tildes, else 0."""
    line = line.strip()
    return len(line) if line and not line.strip("~") else 0


def _closes_fence(fence: str, line: str) -> bool:
    line = line.strip()
    return len(line) >= len(fence) and not line.strip(fence[0])


def _closes_doxygen(name: str, line: str) -> bool:
    return re.search(rf"[@\\]end{name}\b", line) is not None


def _closes_element(name: str, line: str) -> bool:
    return any(match[1].lower() == name for match in _ELEMENT_END.finditer(line))
