"""Source files: comments and Python docstrings are text; code, also in comments, and tool directives are kept.

Comments are found by pygments, docstrings by Python's own parser.
"""

from __future__ import annotations

import ast
import re
import threading
import time
import warnings
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import NamedTuple

from copyspec.common.forks import fork_safe
from copyspec.common.lists import Lists

from ..documents import FormatError
from . import restructured
from .code_blocks import indented, outside_code
from .reading import BOM, lines_of
from .segments import merged_spans
from .whole import Prose

_LISTS = Lists(__file__)

FORBIDDEN = '*/#`"\\{}<>'
_APOSTROPHE = "'"
"""Forbidden in docstrings that it ends, and in shell scripts: bash 3.2, that of macOS, takes one in a comment inside
`$(` and `)` for the beginning of a string."""
SIZE_LIMIT = 1 << 20
"""Maximum characters of a file; longer ones are not written by hand."""

_SECONDS, _SECONDS_A_CHAR = 2.0, 5e-6
"""Maximum time to find the comments of a file, since a lexer's patterns may be slow on text in another language."""

_RUN = re.compile(r"\s+")
_RUN_KEPT = 64
"""Characters kept at each end of a long run of white space."""

_LEADER = re.compile(r"[ \t]*(?P<mark>/\*+!?|\*+(?!/)|//+!?|#+[:!]?|--|\"\"\"|\"|;+)?[ \t]?")
_DIRECTIVE = _LISTS.pattern("directive")
_CODE = re.compile(
    r"[;{}]\s*$|^\s*[\w.\[\]]+\s*[-+*/|&]?=\s*\S|^\s*[\w.]+\([^()]*\)\s*;?$|==|!=|&&|\|\||=>|->|::\w|\w\(\)\.\w"
    r"|^\s*(?:@\w+\s*(?:\(|$)|\$\w)"
    r"|^\s*(?:import|from|def|class|return|elif|else|for|while|var|let|const|func|fn|using|#include)\b"
    r"[^.?!]*$"
)
_BLOCK_TAGS = _LISTS.pattern("block_tags")
"""Tags of Javadoc and of XML comments that begin and end paragraphs."""
_LEAD = re.compile(
    r"[ \t]*(?:[-*+•][ \t]+(?:Parameters?[ \t]+)?`?[\w.$]{1,80}`?[ \t]*|:[a-zA-Z]\w*(?:[ \t]+[^:\n]{1,80})?):(?!\S)"
)
"""The name that an entry of a list begins with, and a field of Sphinx."""
_NAMES = r"\[?[\w.$]+(?:=[^\s\[\]]{0,80})?\]?(?:,[ \t]*[\w.$]+)*"
_TAG = re.compile(
    r"[@\\][a-zA-Z]+(?:\[[^\[\]\n]{0,40}\])?(?:[ \t]+(?:\{[^{}\n]{0,200}\}|\[[^\[\]\n]{0,80}\](?=[ \t])))?"
    rf"(?:[ \t]+{_NAMES}(?=[ \t])(?:[ \t]+\[[^\[\]\n]{{0,80}}\](?=[ \t]))?)?[ \t]*-?"
    r"|\b(?:TODO|FIXME|XXX|HACK|NOTE)(?:\([^()\n]{0,80}\))?:?"
)
_INLINE_CODE = re.compile(r"`[^`\n]{1,400}`")
_NAME = re.compile(
    rf"{_INLINE_CODE.pattern}|\{{@[^{{}}\n]{{0,400}}\}}?"
    r"|<(?P<code>code|c|tt|kbd|samp)(?:\s[^<>\n]{0,200})?>[^\n]{1,400}?</(?P=code)>"
    r"|<[^<>\n]{0,200}>|(?<![\w.])[\w.]{1,200}\(\)|\\."
    # targets of Markdown's links, and nested comments
    r"|\]\([^()\n]{0,400}\)|\]\[[^\[\]\n]{0,200}\]|/\*+|\*+/"
)
_WORDS = re.compile(r"[a-z]{2,} [a-z]{2,} [a-z]{2,}")
"""What text has even in a line that looks like code."""
_LICENCE = re.compile(r"\blicensed under\b|\bpermission\b[^.]{0,80}\bgranted\b|\bwarrant(?:y|ies)\b", re.I)
"""Of licences, which are quoted word for word."""
_WRAPPED = re.compile(r"\{@\w+[ \t][^{}\r\n]{1,400}(?:\r\n?|\n)[^{}\r\n]{0,400}\}")
"""A tag of Javadoc that goes on in the next line."""
_HEADING = re.compile(r"[ \t]*#{1,6}[ \t]+")
_NEXT_LINE = re.compile(r"[^\S\r\n]*(?:\r\n?|\n)[^\S\r\n]*")
_OUTPUT = re.compile(r"\s*(?:unordered )?output:", re.I)
"""Begins the output of a Go example, which `go test` compares with stdout."""
_SHELLS = ("bash", "make", "docker")
"""Languages with commands of a shell."""
_RUBY_COMMENT = re.compile(r"=(?:begin|end)\b")
_PARSING = fork_safe(threading.Lock())  # two threads in `catch_warnings` may leave each other's filters behind


def comments(text: str, language: str) -> Iterator[Prose]:
    """Yield the paragraphs of comments and docstrings, ascending. `language`: its name in pygments.

    Raises FormatError for a file of over `SIZE_LIMIT`."""
    if len(text) > SIZE_LIMIT:
        raise FormatError(f"a source file of over {SIZE_LIMIT >> 20} MB was not written by hand")
    passages = [prose for block in _comment_blocks(text, language) for prose in _paragraphs(text, block, language)]
    if language == "python":
        passages += _docstrings(text)
    if language in _SHELLS:
        passages = [replace(prose, forbidden=_APOSTROPHE) for prose in passages]
    at = 0
    for prose in sorted(passages, key=lambda prose: prose.start):
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
        if block and not (len(lines) == 1 and _NEXT_LINE.fullmatch(text, block[-1][1], start)):
            yield block
            block = []
        block += lines
    if block:
        yield block


def _comments(text: str, language: str) -> Iterator[tuple[int, int]]:
    # Carriage returns are replaced, as few lexers accept them as line ends; offsets do not change.
    # The final line feed is for lexers that find a comment by the line end after it.
    lexed = text.replace("\r", "\n") + "\n"
    if language == "bash":
        lexed = masked(lexed)
    short = _Shortened(lexed)
    for start, value in _whole_comments(_comment_tokens(short.text, language)):
        place = short.place(start)
        if value.strip() and not (language in _SHELLS and _is_in_word(text, place)):
            yield place, short.place(start + len(value.rstrip("\n")))


def _comment_tokens(text: str, language: str) -> Iterator[tuple[int, str]]:
    from pygments.lexers import get_lexer_by_name
    from pygments.token import Comment, String

    left_out = {Comment.Preproc, Comment.PreprocFile, Comment.Hashbang}
    if language in ("c", "cpp"):
        left_out.add(Comment)  # lines that `#if 0` disables
    deadline = time.thread_time() + _SECONDS + _SECONDS_A_CHAR * len(text)
    at = 0
    for start, kind, value in get_lexer_by_name(language).get_tokens_unprocessed(text):
        is_comment = (kind in Comment and kind not in left_out) or (language == "rust" and kind in String.Doc)
        if is_comment and start >= at:
            at = start + len(value)
            yield start, value
        if time.thread_time() > deadline:
            raise FormatError(f"finding the comments takes too long: is it really {language}?")


def _whole_comments(tokens: Iterator[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    """Join the tokens of a comment; some lexers yield its marks and its lines separately."""
    first = end = depth = 0
    pieces: list[str] = []
    for start, value in tokens:
        if pieces and not (start == end and (depth > 0 or not pieces[-1].endswith(("\n", "*/")))):
            yield first, "".join(pieces)
            pieces = []
        if not pieces:
            first, depth = start, 0
        pieces.append(value)
        end = start + len(value)
        if pieces[0].startswith("/*"):
            depth += value.count("/*") - value.count("*/")
    if pieces:
        yield first, "".join(pieces)


def _is_in_word(text: str, at: int) -> bool:
    """Whether a `#` does not begin a word of a shell script, and hence no comment."""
    before = text[max(at - 2, 0) : at]
    return bool(before) and (not (before[-1].isspace() or before[-1] in ";&|()") or before in ("\\ ", "\\\t"))


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


class _Line(NamedTuple):
    start: int
    end: int
    is_fixed: bool  # code, or a directive


def _paragraphs(text: str, lines: list[tuple[int, int]], language: str) -> Iterator[Prose]:
    """Yield the paragraphs of a comment. A line of code or a tool directive stays, but ends none: it may be the middle
    of a sentence."""
    open_lines: list[_Line] = []
    for first, end in _text_lines(text, lines, language):
        lead = _HEADING.match(text, first, end) or _BLOCK_TAGS.match(text, first, end)
        first = lead.end() if lead else first
        line = text[first:end]
        if language == "go" and _OUTPUT.match(line):
            break
        is_item = line.lstrip()[:1] in ("@", "-", "*", "•") or line.lstrip()[:2] in ("1.", "2.", "3.")
        if lead or is_item or not line.strip():
            yield from _paragraph(text, open_lines)
            open_lines = []
        if line.strip():
            is_fixed = bool(_DIRECTIVE.match(line) or _CODE.search(_INLINE_CODE.sub("x", line)))
            open_lines.append(_Line(first, end, is_fixed))
        if lead and lead.re is _HEADING:
            yield from _paragraph(text, open_lines)
            open_lines = []
    yield from _paragraph(text, open_lines)


def _text_lines(text: str, lines: list[tuple[int, int]], language: str) -> list[tuple[int, int]]:
    """The lines of a comment without their leaders, its end and code blocks."""
    inner, spaced = [], []
    for start, end in lines:
        body = text[start:end]
        if language == "ruby" and _RUBY_COMMENT.match(body):
            inner.append((end, end))
            spaced.append(end)
            continue
        if (unclosed := body.rstrip(" \t")).endswith("*/"):
            end = start + len(unclosed[:-1].rstrip("*").rstrip(" \t"))
        leader = _LEADER.match(text, start, end)
        inner.append((leader.end() if leader else start, end))
        spaced.append(leader.end("mark") if leader and leader["mark"] else start)
    if text.startswith("/*", lines[0][0]) and not _is_starred(text, lines[1:]):
        # What looks like leaders belongs to the text. Indentation can only be compared in lines that begin in column 0.
        spaced = [inner[0][1], *(end if text.startswith("/", start) else start for start, end in lines[1:])]
    spans = outside_code([text[start:end] for start, end in inner])
    is_code = indented(
        [text[at:end] if first < last else "" for at, (_, end), (first, last) in zip(spaced, inner, spans, strict=True)]
    )
    text_lines = []
    for (start, end), (first, last), is_indented in zip(inner, spans, is_code, strict=True):
        last = first if is_indented else last
        text_lines.append((start + first, start + last))
        if start + last < end:
            text_lines.append((end, end))  # a code block ends the paragraph before it
    return text_lines


def _is_starred(text: str, lines: list[tuple[int, int]]) -> bool:
    """Whether all lines of a comment, except blank ones, begin with a star or are comments of their own."""
    return all(text[start:end].lstrip()[:1] in ("", "*", "/") for start, end in lines)


def _paragraph(text: str, lines: list[_Line]) -> Iterator[Prose]:
    lines = _joined(text, lines)
    if lines and not _LICENCE.search(text, lines[0].start, lines[-1].end):
        start, end = lines[0].start, lines[-1].end
        prose = [(line.start, line.end) for line in lines if not line.is_fixed]
        matches = [match for span in prose for pattern in (_TAG, _NAME) for match in pattern.finditer(text, *span)]
        matches += [lead for span in prose if (lead := _LEAD.match(text, *span))]
        matches += _WRAPPED.finditer(text, start, end)
        fixed = merged_spans(
            ((line.start, line.end) for line in lines if line.is_fixed), (match.span() for match in matches)
        )
        unseen = [_without_break(text, before.end, after.start) for before, after in pairwise(lines)]
        yield Prose(start, end, fixed=fixed, left_out=unseen)


def _joined(text: str, lines: list[_Line]) -> list[_Line]:
    """The lines of a paragraph from its first prose to its last, and fixed ones that the same sentence stands on."""
    prose = [number for number, line in enumerate(lines) if not line.is_fixed]
    if not prose:
        return []
    first, last = prose[0], prose[-1] + 1
    if text[lines[first].start : lines[first].end].lstrip()[:1].islower():
        first -= any(_WORDS.search(text, line.start, line.end) for line in lines[:first][-1:])
    if text[lines[last - 1].start : lines[last - 1].end].rstrip()[-1:].isalnum():
        last += any(_WORDS.search(text, line.start, line.end) for line in lines[last:][:1])
    return lines[first:last]


def _without_break(text: str, start: int, end: int) -> tuple[int, int]:
    """The text between two lines of a comment without the line break, which the model sees as a space."""
    while start < end and text[start] in " \t\r\n":
        start += 1
    return start, end


def _docstrings(text: str) -> list[Prose]:
    """The prose of docstrings; none if Python cannot parse the file."""
    code = text.removeprefix(BOM)  # which Python's parser refuses in a str
    try:
        with _PARSING, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about invalid escapes
            tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    starts = [len(text) - len(code), *accumulate(len(line) for line in lines_of(text))]
    paragraphs: list[Prose] = []
    for node in ast.walk(tree):
        if not isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) or not node.body:
            continue
        first = node.body[0]
        if not (
            isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str)
        ):
            continue
        paragraphs += _docstring(text, starts, first.value)
    return paragraphs


def _docstring(text: str, starts: list[int], node: ast.Constant) -> Iterator[Prose]:
    assert node.end_lineno is not None and node.end_col_offset is not None
    start, end = (
        _place(text, starts, *position)
        for position in ((node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset))
    )
    opening = re.match(r"[rRuU]?(\"\"\"|'''|\"|')", text[start:end])
    if opening is None or not text[start:end].endswith(opening[1]):
        return  # adjacent strings, or line separators that only the parser recognises
    first, last = start + opening.end(), end - len(opening[1])
    if first >= last:
        return
    for prose in restructured.docstring(_code_masked(text[first:last])):
        markup, fixed = ([(a + first, b + first) for a, b in spans] for spans in (prose.markup, prose.fixed))
        forbidden = _APOSTROPHE if _APOSTROPHE in opening[1] else ""
        yield Prose(prose.start + first, prose.end + first, markup, fixed, forbidden=forbidden)


def _code_masked(text: str) -> str:
    """A docstring with spaces instead of code blocks that reStructuredText does not know."""
    lines = list(lines_of(text))
    bodies = [line.rstrip("\r\n") for line in lines]
    return "".join(
        line if span == (0, len(body)) else " " * len(body) + line[len(body) :]
        for line, body, span in zip(lines, bodies, outside_code(bodies), strict=True)
    )


def _place(text: str, starts: list[int], line: int, column: int) -> int:
    """Convert a line (from 1) and a column in UTF-8 bytes to a character offset."""
    start = starts[min(line - 1, len(starts) - 1)]
    return start + len(text[start : start + column].encode("utf-8", "surrogatepass")[:column].decode("utf-8", "ignore"))


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
        for match in _OPENING.finditer(lines[number]):
            same = ends.get((bool(match["tabs"]), _QUOTES.sub("", match["word"])), [])
            if (at := bisect_right(same, last)) < len(same):
                last = same[at]
        lines[number] = _OPERATOR.sub("  ", lines[number])
        for inside in range(number + 1, last + 1):
            lines[inside] = " " * len(lines[inside])
        number = last + 1
    return "\n".join(lines)
