"""Mistakes that a text quotes, as lists of errata and notes on typos do. Corrected, they would say nothing."""

from __future__ import annotations

import re

from copyspec.common.lists import Lists

from .vocabulary import spelt

_LISTS = Lists(__file__)

_BECOMES = _LISTS.pattern("becomes")
_REPLACES = re.compile(
    r"(?:\b(?:instead of|rather than|in place of|replac(?:es|ed|ing)|not)\b|←|<[-=]+)([^.!?\n]*)\Z", re.IGNORECASE
)
_MISTAKE = (
    r"\b(?:typos?|typographical|misspell\w*|misspelt|mis-?typed?|spell(?:ing)?[- ]?(?:check\w*|errors?|mistakes?)|"
    r"auto-?correct\w*|errat(?:a|um))\b"
)
_SPOKEN_OF = re.compile(rf"{_MISTAKE}[^.!?\n]{{0,40}}\Z", re.IGNORECASE)
_SAID_SO = re.compile(rf"[^.!?\n]{{0,30}}?(?:{_MISTAKE}|[(\[]sic[)\]])", re.IGNORECASE)
_REACH = 120  # characters before and after a change


def is_quoted(text: str, start: int, end: int, becomes: str) -> bool:
    """Whether the words text[start:end], which are to become others, stand there as an example of a mistake: the text
    speaks of one, or has the corrected words on the other side of a sign."""
    before, after = text[max(0, start - _REACH) : start], text[end : end + _REACH]
    if _SPOKEN_OF.search(before) or _SAID_SO.match(after):
        return True
    beside = spelt(before)[-1:], spelt(after)[:1]
    if sign := _BECOMES.search(after):
        return _has(after[sign.end() :], becomes, beside, is_next=not spelt(after[: sign.start()]))
    if sign := _REPLACES.search(before):
        return _has(before[: sign.start()], becomes, beside, is_next=not spelt(sign[1]))
    return False


def _has(text: str, becomes: str, beside: tuple[list[str], list[str]], *, is_next: bool) -> bool:
    """Whether a text has the new words, with one of their neighbours unless they are next to the sign."""
    words, (last, first) = f" {_folded(spelt(text))} ", beside
    wanted = [spelt(becomes)] if is_next else [last + spelt(becomes), spelt(becomes) + first]
    return any(f" {_folded(phrase)} " in words for phrase in wanted if phrase)


def _folded(words: list[str]) -> str:
    return " ".join(words).casefold()
