"""Which of the articles "a" and "an" a word takes."""

from __future__ import annotations

import re
from collections.abc import Callable

ARTICLES = frozenset({"a", "an"})

_NEXT = re.compile(r"\s*[\"'“‘(*_]*([A-Za-z0-9][\w.'’-]*)")
_MACRO = re.compile(r":\S")  # "link:page[text]", "https://": what is read may be something else
_LETTER = re.compile(r"[A-Za-z](?:[-\d.]|\Z)")  # S3, U-turn, X
_NUMBER = re.compile(r"\d")
_SOUNDS_VOWEL = re.compile(r"8|(?:11|18)(?!\d)|(?:11|18)(?:,?\d{3})(?!\d)")
_SILENT_H = re.compile(r"hour|honest|hono|heir(?!ar)")
_EITHER = re.compile(r"histor|habit|hotel|herb|hereditary|unid|uni[nm]on|h[aeiou]s?\Z")
_LIKE_YOU_OR_WON = re.compile(
    r"eu|ew|uni(?![mn])|ubi|uk|ur[aei][^n]|us(?:[ae]|u[ar])|ut[eio]|uv|ufo|once\b|one(?:s|ness)?\b|one-|oui|unanim"
)
_VOWELS, _VOWEL_LETTERS = frozenset("aeiou"), frozenset("aefhilmnorsx")


def article_of(following: str, is_word: Callable[[str], bool]) -> str | None:
    """The article before what follows; None if either may be right (abbreviations, unknown words, markup), or if no
    word follows."""
    if not (match := _NEXT.match(following)) or _MACRO.match(following, match.end()):
        return None
    word = match[1]
    if _NUMBER.match(word):
        return "an" if _SOUNDS_VOWEL.match(word) else "a"
    small = word.lower()
    if _LETTER.match(word):
        return "an" if small[0] in _VOWEL_LETTERS else "a"
    first = re.split(r"[-'’.]", word)[0]
    if sum(map(str.isupper, word)) > 1 or not is_word(first) or _EITHER.match(small):
        return None
    if _SILENT_H.match(small):
        return "an"
    return "an" if small[0] in _VOWELS and not _LIKE_YOU_OR_WON.match(small) else "a"
