"""Marks that stand for parts of a text which an answer leaves out: "... rest unchanged" and the like."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from copyspec.common.lists import Lists

from ..edits.lines import aligned, new_lines, words

_LISTS = Lists(__file__)

_COMMENT = r"(?:\#+|//+|/\*+|\*+|<!--|--+|;+|%+|'|\"{3}|rem\b|dnl\b|\{-|\(\*|\{/\*|\{#|<%--|=begin|\.\.(?!\.))"
_DOTS = r"(?:\.{3,}|…|⋮|\. \. \.)"
_BARE = re.compile(rf"[\s\W]*{_DOTS}[\s\W]*", re.IGNORECASE)
_ABRIDGED = re.compile(
    rf"\s*(?:{_COMMENT}\s*)?[\[({{<]*\s*(?:{_DOTS}.*|.*{_DOTS})\s*[\])}}>]*\s*(?:\*/|-->|-\}}|\*\)|\*/\}}|\#\}}|--%>)?\s*",
    re.IGNORECASE,
)
_CUT = re.compile(rf"[\W_]*(?:c\s+)?{_DOTS}[\s(\[]+\w")
_SPREAD = re.compile(  # of JavaScript and others: `...(given ?? []),`, `[...names].map(`, `? { ...(given as Names) }`
    rf"\s*\.\.\.[\w$(\[{{]|(?!\s*{_COMMENT})[^\w#]*?\.\.\.(?:[$(\[{{]|[\w$]+(?:[^\w\s]|\s*$|\s+[^\w\s]))"
)
_UNCHANGED = re.compile(
    r"\W*(?:the )?(?:rest|remainder|remaining|other|everything)\b.*\b(?:same|unchanged|as (?:is|before)|omitted)\W*"
    rf"|\s*{_COMMENT}\W*(?:the )?(?:rest|same|remainder)\W*",
    re.IGNORECASE,
)
_TRAILS = re.compile(rf".*{_DOTS}\W*")
_REMARK = re.compile(r"\s(?:#|//|/\*|--|<!--|;|%)\s*(.*)")
_INLINE = re.compile(rf"(?:\#|//|/\*|<!--|--|;|%)\s*{_DOTS}|[\w)]\s*\{{\s*{_DOTS}\s*\}}\s*$", re.IGNORECASE)
_WORDED = _LISTS.pattern("worded")
_MARKED = re.compile(rf"\s*(?:{_COMMENT}|[\[({{<（【〔〈])", re.IGNORECASE)
_COMMENTED = re.compile(rf"\s*{_COMMENT}", re.IGNORECASE)
_ASIDE = re.compile(
    rf"\s*(?:{_COMMENT}|[\[(<]\s*\w+(?: [\w'’.-]+)+\s*[\])>]\s*$)|"
    r"(?:the )?(?:rest|remain\w+|everything|nothing|original|existing|previous) ",
    re.IGNORECASE,
)
_REMARKS = re.compile(rf"\s*{_COMMENT}\s+[\w\s,.:!'’-]+(?:\*/\}}?|--%?>|-\}}|\*\)|\#\}}|\"{{3}})?\s*", re.IGNORECASE)
"""A comment of words alone: other lines may begin as one does, such as `#main {` and `*place = 1;`."""
_MAX_WORDED = 12
"""More words than this make a sentence of the file, not a mark."""


def omission(lines: Sequence[str], before: Sequence[str]) -> str | None:
    """A line that stands for lines of the file that are missing; None if there is none."""
    known = set(before)
    marks = {at: mark for at, line in enumerate(lines) if line not in known and (mark := mark_of(line))}
    if not marks or not any(line.strip() for line in new_lines(before, lines)):
        return None
    if sure := [at for at, mark in marks.items() if mark == "sure"]:
        return lines[sure[0]]
    for start, end, first, last in _replaced(before, lines):
        gone, new = (sum(bool(line.strip()) for line in part) for part in (before[start:end], lines[first:last]))
        code = any(line.strip() and not _ASIDE.match(line) for line in before[start:end])  # else comments were reworded
        stands = {"dots": gone > 0, "words": gone > new or (gone == new and code), "remark": gone > new}
        if (at := next((at for at in range(first, last) if at in marks and stands[marks[at]]), None)) is not None:
            return lines[at]
    return None


def _replaced(before: Sequence[str], lines: Sequence[str]) -> Iterator[tuple[int, int, int, int]]:
    """Yield where lines of the file are replaced: start and end there, and in the answer. Blank lines part none."""
    region: tuple[int, int, int, int] | None = None
    for tag, start, end, first, last in aligned(before, lines):
        if tag != "equal":
            region = (region[0], end, region[2], last) if region else (start, end, first, last)
        elif region and any(line.strip() for line in before[start:end]):
            yield region
            region = None
    if region:
        yield region


def aside(lines: Sequence[str], before: Sequence[str], *, is_program: bool) -> str | None:
    """A comment or a bracket, whatever it says, at the end of lines that took the place of more lines than they are, or
    in a program of as many, most words of which those do not have; None if there is none. Comments of several lines say
    more than what is left out."""
    for start, end, first, last in _replaced(before, lines):
        gone, new = ([line for line in part if line.strip()] for part in (before[start:end], lines[first:last]))
        known = words(gone)
        asides = [line for line in new if _ASIDE.match(line) and 2 * len(words([line]) & known) <= len(words([line]))]
        is_last = bool(asides) and asides[-1] == new[-1] and len(new[-1].split()) <= _MAX_WORDED
        code = sum(_ASIDE.match(line) is None for line in gone)
        marks = [mark[0].strip() if (mark := _COMMENTED.match(line)) else line for line in new]
        says = next((at for at, mark in enumerate(reversed(marks)) if mark != marks[-1]), len(marks))  # at the end
        if code == len(gone) and says > 1 and code <= 2 * says:
            continue
        if is_last and len(gone) > len(new) and code > len(asides):
            return new[-1]
        if is_last and len(gone) == len(new) == code and is_program and all(map(_REMARKS.fullmatch, new)):
            return new[-1]
    return None


def mark_of(line: str) -> str | None:
    """What says that something was left out. "sure": a comment or bracket with dots. What may as well be a line of the
    file must have taken the place of others: "dots" alone, "words" in a comment, a "remark" behind code."""
    is_mark = len(line) <= 1000  # some of the patterns take quadratic time
    is_short = is_mark and len(line.split()) <= _MAX_WORDED
    if _SPREAD.match(line) and not _WORDED.search(line):
        return None
    if is_mark and _BARE.fullmatch(line):
        return "sure" if line.strip(" .…") else "dots"
    if _INLINE.search(line) or (is_short and (_CUT.match(line) or _UNCHANGED.fullmatch(line))):
        return "sure"
    if is_short and _MARKED.match(line):
        return "sure" if _ABRIDGED.fullmatch(line) else "words" if _WORDED.search(line) else None
    remark = _REMARK.search(line)
    if remark and len(remark[1].split()) <= _MAX_WORDED and _WORDED.search(remark[1]):
        return "remark"
    return "sure" if is_short and _WORDED.search(line) and _TRAILS.fullmatch(line) else None


_STAYS = re.compile(
    rf"\s*{_COMMENT}(?=.*(?:rest\b|remain|existing|previous|original|unchanged|same\b))"
    r"(?:\W*\b(?:keep|the|all|any|your|my|and|other|rest|of|remain(?:s|ing|der)?|existing|previous|original|"
    r"unchanged|same|"
    r"code|file|imports?|methods?|functions?|class(?:es)?|component|content|lines?|logic|implementations?|here|goes|"
    r"stays?|as|is|are|before|above|below|no|changes?|needed|omitted)\b)+\W*",
    re.IGNORECASE,
)

_LITERAL = re.compile(r"\s*([\"'`])[^\"'`]+\1\W*")  # a text of the program


def is_omission(line: str) -> bool:
    """Whether a line can hardly be meant as it stands: dots in a comment or brackets, alone, before words, or with
    words that say what stays; or a comment of such words alone."""
    if len(line.split()) > _MAX_WORDED or _LITERAL.fullmatch(line):
        return False
    if _SPREAD.match(line) and not _WORDED.search(line):
        return False
    is_bare = _BARE.fullmatch(line) is not None and line.strip(" .…,;") != ""
    is_worded = re.search(_DOTS, line) and _MARKED.match(line) and _WORDED.search(line)
    return is_bare or bool(is_worded or _CUT.match(line) or _UNCHANGED.fullmatch(line) or _STAYS.fullmatch(line))
