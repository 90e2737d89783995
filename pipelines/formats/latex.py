"""LaTeX: paragraphs, titles, captions and items are text; commands, formulas, comments and listings are kept.

Macros are not expanded. The name and arguments of an unknown command are not prose; the text between commands is. In a
file with `\\begin{document}` nothing before it is prose.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from copyspec.common.lists import Lists

from .whole import Prose

_LISTS = Lists(__file__)

FORBIDDEN = "\\{}$&#%_^~"

_TITLES = _LISTS.words("titles")
_STYLES = _LISTS.words("styles")
"""Commands whose argument is part of the sentence."""
_SILENT = _LISTS.words("silent")
"""Commands that leave nothing in the sentence, or nothing that belongs to it."""
_BREAKS = _LISTS.words("breaks")
_VERBATIM = _LISTS.words("verbatim")
"""Environments without prose in which commands mean nothing: they end at the first `\\end` of their name."""
_DEFINITION = re.compile(
    r"\\(?:lstnewenvironment|(?:re)?newtcblisting|(?:New|Renew|Provide|Declare)TCBListing"
    r"|(?:Define|Recustom)VerbatimEnvironment|(?P<minted>newminted))"
    r"[ \t]{0,8}(?:\[(?P<option>[^\[\]\r\n]{0,400})\])?[ \t]{0,8}\{(?P<name>[^{}\r\n]{1,80})\}"
)
"""Defines an environment of that kind. `minted` adds `code` to the language, unless an option holds the name."""
_WITHOUT_PROSE = _LISTS.words("without_prose")
"""Environments of formulas, tables, drawings and algorithms, which may hold others of their own name."""
BORDER = re.compile(
    r"(?:(?s:.*)\\begin\{document\}(?:\{\})?)?"
    r"(?:\s|%[^\r\n]*(?![^\r\n])|[{}]|\[[^\[\]\r\n]{0,400}\]|\\label\{[^{}]{0,200}\}"
    r"|\\(?:begin|end)[ \t]*\{(?:document|abstract|center|quote|frame)\}"
    rf"|\\(?:{'|'.join(_TITLES | _STYLES)}|maketitle|tableofcontents|(?:no)?indent|par|clearpage|newpage"
    r"|(?:small|med|big)skip|appendix)\*?(?![a-zA-Z@]))*"
)
"""Between two paragraphs, or a title and a paragraph."""
_CODE = {"verb": 0, "Verb": 1, "spverb": 0, "lstinline": 1, "mintinline": 2, "mint": 2}
"""Commands of code, which stands between two equal characters, or else in the last of this many braces."""
_TOKEN = re.compile(
    r"%|\\begin[ \t]*\{(?P<begin>[^{}\r\n]{0,80})\}|\\end[ \t]*\{(?P<end>[^{}\r\n]{0,80})\}"
    r"|\\(?P<name>[a-zA-Z@]{1,80})\*?|\\(?P<sign>\r\n|.)|\$\$?|[{}~&#_^]"
    r"|(?:\r\n|\n|\r(?!\n))[ \t]*(?:\r\n|\n|\r)",  # a CR LF is one line end, not a CR and an LF
    re.DOTALL,
)
_URL = r"\\(?:url|href|path|nolinkurl)(?:\[[^\[\]\r\n]{0,200}\])?(?P<address>\{[^{}\r\n]{0,2000}\})"
"""In an address, `%` begins no comment."""
_ENVIRONMENT = re.compile(
    _URL + r"|\\(?:(?P<kind>begin|end)[ \t]*\{(?P<name>[^{}\r\n]{0,80})\}|.)|%[^\r\n]*", re.DOTALL
)
_DELIMITED = re.compile(r"[ \t]*([^\sa-zA-Z*])[^\r\n]{0,4000}?\1")
_BRACE = re.compile(_URL + r"|\\.|%[^\r\n]*|[{}]", re.DOTALL)
_LINE_REST = re.compile(r"[^\r\n]*(?:\r\n|\n|\r)?[ \t]*")
_SPACE = re.compile(r"[ \t]*(?:\r\n|\n|\r)?[ \t]*")
_OPTION = re.compile(r"\[[^\[\]]{0,1000}\]")
_ACCENT = re.compile(r"[`'^\"~=.]\{?\\?[a-zA-Z]\}?")
_FORMULA_CHARS = 4000  # maximum length of a formula inside a sentence
_ARGUMENTS = 9  # TeX's maximum


def paragraphs(text: str) -> Iterator[Prose]:
    """Yield the prose of the document's body."""
    return _Reader(text).prose()


class _Reader:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0  # position at which reading continues after a command
        self.closing = _braces(text)
        self.verbatim = _VERBATIM | _defined(text)
        self.start = 0  # start of the open paragraph
        self.is_title = self.is_item = False
        self.markup: list[tuple[int, int]] = []
        self.fixed: list[tuple[int, int]] = []
        self.left_out: list[tuple[int, int]] = []
        self.titles: set[int] = set()  # positions of closing braces that end a title

    def prose(self) -> Iterator[Prose]:
        environments = _ENVIRONMENT.finditer(self.text)  # not those in comments
        begin = next(
            (mark for mark in environments if mark["kind"] == "begin" and mark["name"] == "document"),
            None,
        )
        at = begin.end() if begin else 0
        self._open(at)
        while match := _TOKEN.search(self.text, at):
            at = match.end()
            if match["begin"] is not None:
                yield from self._flush(match.start())
                at = self._after_environment(match["begin"], at)
                self._open(at)
            elif match["end"] is not None:
                yield from self._flush(match.start())
                if match["end"] == "document":
                    at = len(self.text)
                self._open(at)
            elif match["name"] is not None:
                yield from self._command(match["name"], match.start(), at)
                at = max(at, self.at)
            elif match["sign"] is not None:
                if match["sign"] in "[\\":
                    yield from self._flush(match.start())
                    is_formula = match["sign"] == "["  # else a line break, with a star and an option
                    at = self._past(at, "\\]") if is_formula else self._past_options(at + self.text.startswith("*", at))
                    self._open(at)
                else:
                    at = self._sign(match, at)
            elif match[0][0] in "\r\n":
                yield from self._flush(match.start())
                self._open(at)
            elif match[0] == "$$":
                yield from self._flush(match.start())
                at = self._past(at, "$$")
                self._open(at)
            elif match.start() in self.titles:
                yield from self._flush(match.start())
                self._open(at)
            else:
                at = self._char(match, at)
        yield from self._flush(len(self.text))

    def _open(self, at: int, *, is_title: bool = False, is_item: bool = False) -> None:
        self.start, self.is_title, self.is_item = at, is_title, is_item
        self.markup, self.fixed, self.left_out = [], [], []

    def _flush(self, end: int) -> Iterator[Prose]:
        if self.start < end:
            spans = self.markup, self.fixed, self.left_out
            yield Prose(self.start, end, *spans, is_title=self.is_title, is_item=self.is_item)
        self.start = end

    def _command(self, name: str, start: int, at: int) -> Iterator[Prose]:
        """Handle a named command, and set `at` to the position at which reading continues."""
        self.at = at
        if name in _TITLES:
            yield from self._flush(start)
            at = self._past_options(at)
            if (end := self.closing.get(at)) is not None:
                self.titles.add(end)
                at += 1
            self._open(at, is_title=True)
        elif name in _BREAKS:
            yield from self._flush(start)
            at = self._past_options(at) if name == "item" else self._past_arguments(at)
            self._open(at, is_item=name == "item")
        elif name in _CODE:
            at = self._past_code(at, _CODE[name])
            self.fixed.append((start, at))
        elif name in _STYLES and at in self.closing:
            at += 1
            self.markup += [(start, at)]
        else:
            at = self._past_arguments(at)
            (self.left_out if name in _SILENT else self.fixed).append((start, at))
        self.at = at

    def _sign(self, match: re.Match[str], at: int) -> int:
        """Handle a command of one sign: a formula, an accent, an escape."""
        if match["sign"] == "(":
            at = self._past(at, "\\)", most=_FORMULA_CHARS)
        elif accent := _ACCENT.match(self.text, match.start() + 1):
            at = accent.end()
        self.fixed.append((match.start(), at))
        return at

    def _char(self, match: re.Match[str], at: int) -> int:
        if match[0] == "%":
            rest = _LINE_REST.match(self.text, at)
            at = rest.end() if rest else at
            self.left_out.append((match.start(), at))
        elif match[0] in "{}":
            self.markup.append(match.span())
        else:
            at = self._past(at, "$", most=_FORMULA_CHARS) if match[0] == "$" else at
            self.fixed.append((match.start(), at))
        return at

    def _past(self, at: int, mark: str, *, most: int | None = None) -> int:
        """The position after the next unescaped `mark`; the end of the searched range if there is none."""
        last = len(self.text) if most is None else min(len(self.text), at + most)
        place = at
        while (place := self.text.find(mark, place, last)) >= 0:
            if mark[0] == "\\" or self.text[place - 1] != "\\":
                return place + len(mark)
            place += 1
        return last

    def _past_options(self, at: int) -> int:
        while (space := _SPACE.match(self.text, at)) and (option := _OPTION.match(self.text, space.end())):
            at = option.end()
        return at

    def _past_arguments(self, at: int) -> int:
        """The position after the options and arguments of a command, which must follow without white space."""
        for _ in range(_ARGUMENTS):
            if option := _OPTION.match(self.text, at):
                at = option.end()
            elif (end := self.closing.get(at)) is not None:
                at = end + 1
            else:
                break
        return at

    def _past_code(self, at: int, braces: int) -> int:
        """The position after the arguments of a command of code, of which at most `braces` are in braces."""
        option = _OPTION.match(self.text, at) if braces else None
        at = option.end() if option else at
        left = braces
        while left and (end := self.closing.get(at)) is not None:
            at, left = end + 1, left - 1
        match = _DELIMITED.match(self.text, at) if left or not braces else None
        return match.end() if match else at

    def _after_environment(self, name: str, at: int) -> int:
        """The position after an environment's options, or at its end if it holds no prose."""
        if name in self.verbatim:
            end = self.text.find(f"\\end{{{name}}}", at)
            return len(self.text) if end < 0 else end
        return self._end_of(name, at) if name in _WITHOUT_PROSE else self._past_arguments(at)

    def _end_of(self, name: str, at: int) -> int:
        """The position of the `\\end` of an environment that may hold others of its name."""
        depth = 1
        for match in _ENVIRONMENT.finditer(self.text, at):
            if match["name"] == name:
                depth += 1 if match["kind"] == "begin" else -1
                if depth == 0:
                    return match.start()
        return len(self.text)


def _braces(text: str) -> dict[int, int]:
    """The closing brace of each opening one, by position."""
    braces: dict[int, int] = {}
    opened: list[int] = []
    for mark in _BRACE.finditer(text):
        if mark["address"] is not None:
            braces[mark.start("address")] = mark.end() - 1
        elif mark[0] == "{":
            opened.append(mark.start())
        elif mark[0] == "}" and opened:
            braces[opened.pop()] = mark.start()
    return braces


def _defined(text: str) -> frozenset[str]:
    """The names of environments that the document defines as listings, and their starred forms."""
    definitions = ((match["minted"], match["option"], match["name"]) for match in _DEFINITION.finditer(text))
    defined = [(option or f"{name}code") if minted else name for minted, option, name in definitions]
    return frozenset(f"{name}{star}" for name in defined for star in ("", "*"))
