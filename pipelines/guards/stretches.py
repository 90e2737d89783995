"""Guarded spans of a text, which an edit may not change: numbers, links, code, tags, names, a format's markup."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from operator import itemgetter

from ..documents import Edit, Refusal, Segment, replacing
from ..edits.diff import apply
from .bounded import Searchable
from .openings import Openings
from .sentencehood import END

# Lookbehinds forbid a match inside a longer run of the same characters: otherwise the search for `@` or a bracket would
# restart at every letter of a long word, in quadratic time. For the same reason text in brackets has a maximum length.
_LINKS = (
    r"(?:(?:https?|ftp|file)://|www\.|mailto:)[^\s<>\"]*[^\s<>\".,;:!?)'\]]"
    r"|(?<![\w.+-])[\w.+-]+@[\w-]+(?:\.[\w-]+)+"
    r"|(?<![\w./@-])(?:[\w-]{1,63}\.){1,8}(?:com|org|net|io|dev|edu|gov)/[^\s<>\"]*[\w/]"
)
_FILES = (
    r"py|js|ts|json|ya?ml|toml|md|txt|csv|html?|css|sh|cpp|java|rs|exe|zip|pdf|docx?|xlsx?|png|jpe?g|com|org|net|io"
)
_TAGS = (
    r"\$[A-Z][A-Za-z]{1,20}:[^$\n]{0,200}\$|"  # keywords of version control
    r"<\|[^<>|\n]{0,80}\|>|</?\w[^<>\n]*>|<!--|-->|<[!?%][^<>\n]{0,80}>|<<[^<>\n]{1,40}>>"  # of models, HTML, templates
    r"|\[/?[A-Z_]{2,20}\d{0,4}\]|\[\[[^\[\]\n]{1,80}\]\]|&(?:#\d{1,6}|#x[0-9A-Fa-f]{1,6}|[A-Za-z]\w{1,30});"
    r"|\$?\{\{?[^{}\n]{0,80}\}?\}|\{[%#][^{}\n]{0,80}[%#]\}|%\(?\w*\)?[sdif]\b|%[-+#0 ]?\d*(?:\.\d+)?[sdifxXeg]\b"
    r"|%\d+\$[sd]|\$\w+|%[A-Z_]{2,40}%|:[a-z][a-z0-9_+-]{1,40}:|(?<!\w)[@#][\w/-]+|@\w+"
)
_UNIT = (  # none is an English word, which a correction may change: "5 apple", "5 bar", "5 minute"
    r"(?:[YZEPTGMKkhdcm\u00b5\u03bcnpf]?(?:[gmslLWVAJNTBbFH]|Hz|Pa|mol|eV|Wh|Ah|Bq|Sv|bps|[\u03a9\u2126])"
    r"|kcal|°[ \u00a0\u202f]?[CFK]?|[KCht]|[mk]ph|pp[mb]|[AaPp][Mm]|K[GM]|p[xt]|[mbt]n)[\u00b2\u00b3]?"
)
_SPACE = r"[ \u00a0\u202f]"
_YEAR = rf"(?<=\b(?:18|19|20)\d\d{_SPACE})"
_LITERAL = r"=[ \t]?(?:\"[^\"\n]{1,2000}\"|'[^'\n]{1,2000}')"
_APART = (  # no unit follows in "2019 A man", "5 T. Cook", "2019 J Smith", "2 T-shirts", "2012 TV shows"
    rf"(?:{_SPACE}|-)(?!A [a-z]|[A-Z](?:\.\s?[A-Z]|-[a-z])|[Tt][ -]shirt|TV\b|{_YEAR}[A-Z]\s[A-Z][a-z])"
)
PATTERNS: Mapping[str, re.Pattern[str]] = {
    "links": re.compile(_LINKS, re.IGNORECASE),
    "numbers": re.compile(
        r"(?:(?<![\w.)\]-])[-\u2013\u2212])?\d+(?:[.,:/]\d+)*"
        rf"(?:{_SPACE}?%|(?:{_APART})?(?!s\b|TH\b){_UNIT}(?:/{_UNIT})?(?!\w))?"  # but "1990s", "4TH"
        r"|\b[IVXLCDM]{2,}\b|(?<=\()[ivxlcdm]+(?=\))"
    ),
    "code": re.compile(
        rf"`[^`\n]+`|{_TAGS}"
        r"|\b\w+_\w+\b|\b[a-z]{2,}[A-Z]\w*|(?<![\w.])[\w.]+\(\)|\b\w+::\w+"  # names in programs
        rf"|(?<!\w)--[a-z][\w-]+|(?<!\S)-[A-Za-z](?=\s|\Z)|(?<![\w-])[\w-]+\.(?:{_FILES})\b"
        r"|(?<!\w)~?/[\w./-]+|(?<![\w./-])(?=[\w./~-]*(?:[\d_~]|\.\w|\./))[\w.-]+(?:/[\w.~-]*[\w~-]){2,}/?"
        r"|\b[A-Za-z]:\\\S+|\\[A-Za-z]+\*?|\\[^\w\s]|\$[^$\n]{1,80}\$"  # paths, TeX
        # signs of formulas and programs, with what sticks to them, and texts that are assigned
        rf"|(?<!\w)\w{{0,60}}(?:{_LITERAL}|[\^=|\\]+\w*)|{_LITERAL}"
        r"|\b\w{40,}"  # keys and other data: no word is as long
    ),
}
"""Patterns by the option that allows changing them (`allow_links` and so on)."""

_NAMED = {
    "links": "links and addresses",
    "numbers": "numbers",
    "code": "code",
    "protect": "text that your own pattern protects",
}
"""What the reasons of refusals mean, for people."""

_CAPITALS = re.compile(r"\b[A-Z]{2}[A-Z0-9]*s?\b")
_MIXED = re.compile(r"\b[^\W\d_]*[a-z][A-Z]\w*")
_LONG = re.compile(r"\b[^\W\d_]\w+")  # names have more than one letter
_WORD = re.compile(r"\w+")
_BEFORE_UNIT = re.compile(r"\s+|(?<=\d)-(?=\D)")
_ANY_CASE = re.compile(r"(?<=\d)(?:[ap]m|k[gm])(?!\w)", re.IGNORECASE)

_STICKING = 40
"""Characters on each side of an edit that belong to its words at most, which avoids quadratic time in long text without
white space."""


class Stretches:
    """The guarded spans of one segment."""

    def __init__(self, text: str, segment: Segment, patterns: Mapping[str, Searchable], *, with_names: bool) -> None:
        """`patterns`: of text that must stay, by reason of refusal, which may have a number: "protect[0]".
        `with_names`: names must stay, too."""
        self.text, self.segment, self.patterns = text, segment, patterns
        piece = text[segment.start : segment.end]
        self.places = {
            reason: [(match.start() + segment.start, match.end() + segment.start) for match in pattern.finditer(piece)]
            for reason, pattern in self.patterns.items()
        }
        self.names = sorted(_names(text, segment)) if with_names else []
        self._longest_name = max((end - start for start, end in self.names), default=0)

    def refusal(self, edit: Edit) -> Refusal | None:
        """Return the refusal of an edit, or None."""
        was = self.text[edit.start : edit.end]
        for start, end in _from(self.segment.protected, edit.start):
            if start > edit.end:
                break
            if (edit.start < end and edit.end > start) or start < edit.start == edit.end < end:
                what = f"{self.text[start:end]!r} is code or markup, which may not change"
                return Refusal("protected", f"{replacing(was, edit.replacement)}, but {what}")
        new = next((char for char in edit.replacement if char in self.segment.forbidden and char not in was), None)
        if new:
            what = "which would be markup here"
            return Refusal("markup", f"{edit.replacement!r} would add {new!r}, {what}")
        for reason, pattern in self.patterns.items():
            is_inside = reason != "numbers" and self._is_inside(edit, self.places[reason])  # "5 km" may become "5-km"
            if is_inside or self._changes(edit, reason, pattern):
                key = reason.partition("[")[0]
                return Refusal(key, f"{replacing(was, edit.replacement)}, but {_NAMED[key]} may not change")
        return self._renaming(edit)

    def _renaming(self, edit: Edit) -> Refusal | None:
        """The refusal of an edit that changes more than the case of a name, or what stands beside it ("Brown's")."""
        words = {word.casefold() for word in _WORD.findall(edit.replacement)}
        for start, end in self.names[bisect_left(self.names, (edit.start - self._longest_name,)) :]:
            if start >= edit.end:
                break
            name = self.text[start:end]
            if edit.start < end and name.casefold() not in words:
                return Refusal("names", f"{replacing(name, edit.replacement)}, but names may not change")
        return None

    def refusal_of_all(self, edits: Sequence[Edit]) -> Refusal | None:
        """Return the refusal of edits that are allowed one by one but not together, or None."""
        start, end = self.segment.start, self.segment.end
        before = self.text[start:end]
        after = apply(before, [Edit(edit.start - start, edit.end - start, edit.replacement) for edit in edits])
        for reason, pattern in self.patterns.items():
            if _found(reason, pattern, before) != _found(reason, pattern, after):
                key = reason.partition("[")[0]
                what = f"together, the corrections of this passage would change {_NAMED[key]}"
                return Refusal(key, f"{what}, though none does alone")
        return None

    def _is_inside(self, edit: Edit, places: Sequence[tuple[int, int]]) -> bool:
        """Whether an edit lies inside a match, which it therefore changes."""
        return any(start < edit.start and edit.end < end for start, end in islice(_from(places, edit.start), 1))

    def _changes(self, edit: Edit, reason: str, pattern: Searchable) -> bool:
        before, after = self._windows(edit, self.places[reason])
        return _found(reason, pattern, before) != _found(reason, pattern, after)

    def _windows(self, edit: Edit, places: Sequence[tuple[int, int]]) -> tuple[str, str]:
        """The words and guarded spans that an edit touches, before and after the edit."""
        start, end = around(self.text, self.segment, edit.start, edit.end)
        for place_start, place_end in _from(places, start):
            if place_start >= end:
                break
            if place_end > start:
                start, end = min(start, place_start), max(end, place_end)
        before = self.text[start:end]
        return before, apply(before, [Edit(edit.start - start, edit.end - start, edit.replacement)])


def _from(spans: Sequence[tuple[int, int]], at: int) -> Iterator[tuple[int, int]]:
    """The ascending `spans` that end behind `at`, found by bisection, as scanning all for each edit is quadratic."""
    return (spans[number] for number in range(bisect_right(spans, at, key=itemgetter(1)), len(spans)))


def around(text: str, segment: Segment, start: int, end: int) -> tuple[int, int]:
    """Extend a span to white space on both sides, by at most `_STICKING` characters."""
    first, last = max(segment.start, start - _STICKING), min(segment.end, end + _STICKING)
    while start > first and not text[start - 1].isspace():
        start -= 1
    while end < last and not text[end].isspace():
        end += 1
    return start, end


def _found(reason: str, pattern: Searchable, text: str) -> list[str]:
    pieces = [match[0] for match in pattern.finditer(text)]
    return (
        [
            # with a space or a hyphen before its unit, and with "KM" or "PM" in any case
            _ANY_CASE.sub(lambda unit: unit[0].lower(), _BEFORE_UNIT.sub("", piece))
            for piece in pieces
        ]
        if reason == "numbers"
        else pieces
    )


def _names(text: str, segment: Segment) -> list[tuple[int, int]]:
    """Spans of names, recognised by their capitals; in headings and all-capital text those tell nothing."""
    piece, offset = text[segment.start : segment.end], segment.start
    letters = [word for word in piece.split() if word[:1].isalpha()]
    matches = [*_MIXED.finditer(piece)]
    if sum(word.isupper() and len(word) > 1 for word in letters) * 2 <= len(letters):
        matches += _CAPITALS.finditer(piece)
    openings = Openings(text, segment)
    capitalised = [word for word in _LONG.finditer(piece) if word[0][0].isupper()]
    inner = [word for word in capitalised if not openings.has(word.start() + offset)]
    counted = inner if END.search(piece) else capitalised  # a heading has no end
    if len(counted) * 2 <= len(letters):
        matches += inner
    return [(word.start() + offset, word.end() + offset) for word in matches]
