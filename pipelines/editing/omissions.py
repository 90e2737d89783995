"""Finds the marks by which chat models leave out parts of a file: `# ... rest of the code unchanged`."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ..edits.lines import aligned, new_lines, shared

_COMMENT = r"(?:\#+|//+|/\*+|\*+|<!--|--+|;+|%+|'|\"{3}|rem\b|dnl\b|\{-|\(\*|\{/\*|\{#|<%--|=begin|\.\.(?!\.))"
_DOTS = r"(?:\.{3,}|…|⋮|\. \. \.)"
_BARE = re.compile(rf"[\s\W]*{_DOTS}[\s\W]*", re.IGNORECASE)
_ABRIDGED = re.compile(
    rf"\s*(?:{_COMMENT}\s*)?[\[({{<]*\s*(?:{_DOTS}.*|.*{_DOTS})\s*[\])}}>]*\s*(?:\*/|-->|-\}}|\*\)|\*/\}}|\#\}}|--%>)?\s*",
    re.IGNORECASE,
)
_CUT = re.compile(rf"[\W_]*(?:c\s+)?{_DOTS}[\s(\[]+\w")
_UNCHANGED = re.compile(
    r"\W*(?:the )?(?:rest|remainder|remaining|other|everything)\b.*\b(?:same|unchanged|as (?:is|before)|omitted)\W*"
    rf"|\s*{_COMMENT}\W*(?:the )?(?:rest|same|remainder)\W*",
    re.IGNORECASE,
)
_TRAILS = re.compile(rf".*{_DOTS}\W*")
_REMARK = re.compile(r"\s(?:#|//|/\*|--|<!--|;|%)\s*(.*)")
_INLINE = re.compile(rf"(?:\#|//|/\*|<!--|--|;|%)\s*{_DOTS}", re.IGNORECASE)
_WORDED = re.compile(
    r"\b(?:(?:the )?(?:rest|remainder|remaining|other|existing|previous|original|unchanged|same) "
    r"(?:of\b|(?:\w+ )?(?:code|file|functions?|methods?|class(?:es)?|lines?|text|content|document|sections?|"
    r"implementations?|parts?|imports?|paragraphs?|items?|entries|rows?|fields?|logic|body|as|remains?|stays?|unchanged|"
    r"omitted))|(?:stays?|remains?|is|are|kept|left|keep) (?:the same|unchanged|as (?:is|before|it was)|as-is)|"
    r"same as (?:before|above|previous|original|in)|as (?:before|above)|unchanged|unmodified|not shown|omitted|"
    r"no changes?(?: here| below| needed)?|truncated|abbreviated|snip(?:ped)?|(?:code|file|text) continues|"
    r"continues? (?:here|below|as|unchanged)|etc|and so on|(?:no further|nothing else) changes?)\b|restlicher|"
    r"unverändert|inchangé|sin cambios|\bresto del?\b|invariat|без изменений|остальн|不变|其余|省略|同じ",
    re.IGNORECASE,
)
_MARKED = re.compile(rf"\s*(?:{_COMMENT}|[\[({{<])", re.IGNORECASE)
_MAX_WORDED = 12
"""More words than this make a sentence of the file, not a mark."""


def omission(lines: Sequence[str], before: Sequence[str]) -> str | None:
    """A line that stands for lines of the file that are missing; None if there is none."""
    known = set(before)
    marks = {at: mark for at, line in enumerate(lines) if line not in known and (mark := _mark(line))}
    if not marks or not shared(new_lines(before, lines), before):
        return None
    if sure := [at for at, mark in marks.items() if mark == "sure"]:
        return lines[sure[0]]
    for tag, start, end, first, last in aligned(before, lines):
        if tag != "replace":
            continue
        gone, new = (sum(bool(line.strip()) for line in part) for part in (before[start:end], lines[first:last]))
        stands = {"dots": gone > 0, "words": gone >= new, "remark": gone > new}
        if (at := next((at for at in range(first, last) if at in marks and stands[marks[at]]), None)) is not None:
            return lines[at]
    return None


def _mark(line: str) -> str | None:
    """What says that something was left out. "sure": a comment or bracket with dots. What may as well be a line of the
    file must have taken the place of others: "dots" alone, "words" in a comment, a "remark" behind code."""
    is_short = len(line.split()) <= _MAX_WORDED
    if _BARE.fullmatch(line):
        return "sure" if line.strip(" .…") else "dots"
    if _INLINE.search(line) or (is_short and (_CUT.match(line) or _UNCHANGED.fullmatch(line))):
        return "sure"
    if is_short and _MARKED.match(line):
        return "sure" if _ABRIDGED.fullmatch(line) else "words" if _WORDED.search(line) else None
    remark = _REMARK.search(line)
    if remark and len(remark[1].split()) <= _MAX_WORDED and _WORDED.search(remark[1]):
        return "remark"
    return "sure" if is_short and _WORDED.search(line) and _TRAILS.fullmatch(line) else None
