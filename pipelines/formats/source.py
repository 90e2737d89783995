"""Source files: comments and Python docstrings are text; code, tool directives and commented-out code are kept.

Comments are found by pygments, docstrings by Python's own parser.
"""

from __future__ import annotations

import ast
import re
import time
import warnings
from bisect import bisect_right
from collections.abc import Iterator
from itertools import accumulate, pairwise

from ..documents import FormatError
from . import restructured
from .reading import lines_of
from .whole import Prose

FORBIDDEN = "*/#`\"'\\{}<>"
SIZE_LIMIT = 1 << 20
"""Maximum characters of a file; longer ones are not written by hand."""

_SECONDS, _SECONDS_A_CHAR = 2.0, 5e-6
"""Maximum time to find the comments of a file, since a lexer's patterns may be slow on text in another language."""

_RUN = re.compile(r"\s+")
_RUN_KEPT = 64
"""Characters kept at each end of a long run of white space."""

_LEADER = re.compile(r"[ \t]*(?:/\*+!?|\*+(?!/)|//[/!]?|#+[:!]?|--|\"\"\"|\"|;+)?[ \t]?")
_DIRECTIVE = re.compile(
    r"\s*(?:!|noqa|type:|mypy:|pylint:|ruff:|flake8|fmt:|isort:|pragma|pyright|nosec|cspell|codespell|eslint|jshint|"
    r"global\s|globals\s|prettier|tslint|@ts-|istanbul|c8\s|v8\s|NOLINT|clang-|IWYU|go:|\+build|nolint|region\b|endregion|"
    r"-\*-|vim?:|shellcheck|SPDX|Copyright|\(c\)|©|<[/?\w]|https?:|sourceMappingURL|[-=*#~_+/]{3,}|\$\w+:)",
    re.I,
)
_CODE = re.compile(
    r"[;{}]\s*$|^\s*[\w.\[\]]+\s*[-+*/|&]?=\s*\S|^\s*[\w.]+\([^()]*\)\s*;?$|==|!=|&&|\|\||=>|->|::\w|\w\(\)\.\w"
    r"|^\s*(?:@\w+\s*(?:\(|$)|\$\w)"
    r"|^\s*(?:import|from|def|class|return|elif|else|for|while|var|let|const|func|fn|using|#include)\b"
    r"[^.?!]*$"
)
_TAG = re.compile(
    r"[@\\][a-zA-Z]+(?:[ \t]+\{[^{}\n]{0,200}\})?(?:[ \t]+\[?[\w.$]+\]?(?=[ \t]))?[ \t]*-?"
    r"|\b(?:TODO|FIXME|XXX|HACK|NOTE)(?:\([^()\n]{0,80}\))?:?"
)
_NAME = re.compile(r"`[^`\n]{1,400}`|\{@[^{}\n]{0,400}\}|<[^<>\n]{0,200}>|(?<![\w.])[\w.]{1,200}\(\)|\\.")


def comments(text: str, language: str) -> Iterator[Prose]:
    """Yield the paragraphs of comments and docstrings, ascending. `language`: its name in pygments.

    Raises FormatError for a file of over `SIZE_LIMIT`."""
    if len(text) > SIZE_LIMIT:
        raise FormatError(f"a source file of over {SIZE_LIMIT >> 20} MB was not written by hand")
    found = [prose for block in _comment_blocks(text, language) for prose in _paragraphs(text, block)]
    if language == "python":
        found += _docstrings(text)
    at = 0
    for prose in sorted(found, key=lambda prose: prose.start):
        if prose.start >= at:
            yield prose
            at = prose.end


def _comment_blocks(text: str, language: str) -> Iterator[list[tuple[int, int]]]:
    """Yield comments as lists of lines; one-line comments on successive lines are joined."""
    block: list[tuple[int, int]] = []
    for start, end in _comments(text, language):
        lines, at = [], start
        for line in lines_of(text[start:end]):
            lines.append((at, at + len(line.rstrip("\r\n"))))
            at += len(line)
        between = text[block[-1][1] : start] if block else ""
        stands_alone = not text[text.rfind("\n", 0, start) + 1 : start].strip()
        if block and not (stands_alone and len(lines) == 1 and not between.strip() and between.count("\n") == 1):
            yield block
            block = []
        block += lines
    if block:
        yield block


def _comments(text: str, language: str) -> Iterator[tuple[int, int]]:
    from pygments.lexers import get_lexer_by_name
    from pygments.token import Comment

    left_out = {Comment.Preproc, Comment.PreprocFile, Comment.Hashbang}
    deadline = time.process_time() + _SECONDS + _SECONDS_A_CHAR * len(text)
    at = 0
    # Carriage returns are replaced, as few lexers accept them as line ends; offsets do not change.
    # The final line feed is for lexers that find a comment by the line end after it.
    short = _Shortened(text.replace("\r", "\n") + "\n")
    for start, kind, value in get_lexer_by_name(language).get_tokens_unprocessed(short.text):
        if kind in Comment and kind not in left_out and start >= at and value.strip():
            at = start + len(value)
            yield short.place(start), short.place(start + len(value.rstrip("\n")))
        if time.process_time() > deadline:
            raise FormatError(f"finding the comments takes too long: is it really {language}?")


class _Shortened:
    """A text with long runs of white space shortened, and the original offsets of its characters. Pygments reads a run
    once per character in it."""

    def __init__(self, text: str) -> None:
        pieces: list[str] = []
        self._starts, self._moves = [0], [0]  # from offset `start` on, original offsets are larger by `move`
        at = size = 0
        for run in _RUN.finditer(text):
            cut_start, cut_end = run.start() + _RUN_KEPT, run.end() - _RUN_KEPT
            if cut_end <= cut_start:
                continue
            # If the removed part held a line end, one is kept.
            line_end = "\n" if "\n" in text[cut_start:cut_end] else ""
            pieces += text[at:cut_start], line_end
            size += cut_start - at + len(line_end)
            at = cut_end
            self._starts.append(size)
            self._moves.append(at - size)
        self.text = "".join([*pieces, text[at:]])

    def place(self, at: int) -> int:
        """The original offset of a character."""
        return at + self._moves[bisect_right(self._starts, at) - 1]


def _paragraphs(text: str, lines: list[tuple[int, int]]) -> Iterator[Prose]:
    """Yield the paragraphs of a comment, which lines of code and tool directives end."""
    kept: list[tuple[int, int]] = []
    for start, end in lines:
        body = text[start:end]
        if (unclosed := body.rstrip(" \t")).endswith("*/"):
            end = start + len(unclosed[:-1].rstrip("*").rstrip(" \t"))
        leader = _LEADER.match(text, start, end)
        first = leader.end() if leader else start
        said = text[first:end]
        if not said.strip() or _DIRECTIVE.match(said) or _CODE.search(said):
            yield from _paragraph(text, kept)
            kept = []
            continue
        if kept and (said.lstrip()[:1] in ("@", "-", "*", "•") or said.lstrip()[:2] in ("1.", "2.", "3.")):
            yield from _paragraph(text, kept)
            kept = []
        kept.append((first, end))
    yield from _paragraph(text, kept)


def _paragraph(text: str, lines: list[tuple[int, int]]) -> Iterator[Prose]:
    if lines:
        start, end = lines[0][0], lines[-1][1]
        leaders = [(before[1], after[0]) for before, after in pairwise(lines)]
        fixed = sorted(
            found.span() for pattern in (_TAG, _NAME) for line in lines for found in pattern.finditer(text, *line)
        )
        yield Prose(start, end, fixed=fixed, left_out=[_without_break(text, *each) for each in leaders], is_label=True)


def _without_break(text: str, start: int, end: int) -> tuple[int, int]:
    """The text between two lines of a comment without the line break, which the model sees as a space."""
    while start < end and text[start] in " \t\r\n":
        start += 1
    return start, end


def _docstrings(text: str) -> list[Prose]:
    """The prose of docstrings, read as reStructuredText; none if Python cannot parse the file."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about invalid escapes
            tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    starts = [0, *accumulate(len(line) for line in lines_of(text))]
    found: list[Prose] = []
    for node in ast.walk(tree):
        if not isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) or not node.body:
            continue
        first = node.body[0]
        if not (
            isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str)
        ):
            continue
        found += _docstring(text, starts, first.value)
    return found


def _docstring(text: str, starts: list[int], node: ast.Constant) -> Iterator[Prose]:
    assert node.end_lineno is not None and node.end_col_offset is not None
    start, end = (
        _place(text, starts, *each) for each in ((node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset))
    )
    opening = re.match(r"[rRuU]?(\"\"\"|'''|\"|')", text[start:end])
    if opening is None or not text[start:end].endswith(opening[1]):
        return  # adjacent strings, or line separators that only the parser recognises
    first, last = start + opening.end(), end - len(opening[1])
    if first >= last:
        return
    for prose in restructured.blocks(text[first:last]):
        markup, fixed = ([(a + first, b + first) for a, b in spans] for spans in (prose.markup, prose.fixed))
        yield Prose(prose.start + first, prose.end + first, markup, fixed, is_label=True)


def _place(text: str, starts: list[int], line: int, column: int) -> int:
    """Convert a line (from 1) and a column in UTF-8 bytes to a character offset."""
    start = starts[min(line - 1, len(starts) - 1)]
    return start + len(text[start : start + column].encode("utf-8", "surrogatepass")[:column].decode("utf-8", "ignore"))
