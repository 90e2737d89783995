"""Set phrases: those of Latin, French and Italian, whose words are no misspellings of English ones, and prepositions of
several words, which models know too well."""

from __future__ import annotations

import re

from copyspec.common.lists import Lists

_LISTS = Lists(__file__)

_BARE = str.maketrans("àâäçéèêëîïôöùûü", "aaaceeeeiioouuu")  # many write the French ones without accents


def _alternatives() -> str:
    names = [" ".join(words) for words in _LISTS.rows("phrases")]
    written = sorted({form for name in names for form in (name, name.translate(_BARE))}, key=len, reverse=True)
    return "|".join(re.escape(name).replace(r"\ ", r"[\s-]+").replace("'", "['’]") for name in written)


_SET = re.compile(rf"(?<!\w)(?:{_alternatives()})(?!\w)", re.IGNORECASE)
_NOUN = _LISTS.pattern("noun")
_LONGEST = 40  # characters of a phrase, with a line's end and its indentation


def lost_phrase(text: str, start: int, end: int, becomes: str) -> str | None:
    """Return the set phrase of another language that a text loses if a span of it becomes another one, else None."""
    first, last = max(0, start - _LONGEST), min(len(text), end + _LONGEST)
    after = {*map(_plain, _SET.findall(f"{text[first:start]}{becomes}{text[end:last]}"))}
    return next((phrase for phrase in _SET.findall(text, first, last) if _plain(phrase) not in after), None)


def made_preposition(text: str, start: int, becomes: str) -> str | None:
    """Return the preposition of several words that a text gets ("in terms of") if a preposition which stands twice
    becomes "of" behind a noun that may stand for itself: "in terms in notations"."""
    before = _NOUN.search(text, max(0, start - _LONGEST), start)
    twice = before and re.match(rf"{before[1]}(?!\w)", text[start:], re.IGNORECASE)
    return f"{before[0].strip()} of" if before and twice and becomes == "of" else None


def _plain(phrase: str) -> str:
    return " ".join(re.split(r"[\s-]+", phrase.casefold()))
