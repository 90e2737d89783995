"""Identifies the language of a text by its script and words, so that a model only corrects its own."""

from __future__ import annotations

import unicodedata
from collections import Counter
from functools import cache

from copyspec.common.lists import Lists

from .vocabulary import is_english, spelt

_LISTS = Lists(__file__)

ANY = "any"
MIN_FUNCTION_WORDS = 2
"""Least number of function words to identify a language, and least lead over the next one; with twice as many words, a
lead of one less is enough."""

MIN_WORDS = 2
"""From this many non-English words on, a text may be in another language; from as many known ones, English."""

_LETTERS = dict(_LISTS.pairs("letters"))
"""Letters that few other languages have; a word with one counts as a function word."""
_WORDS = {name: frozenset(words.split()) for name, words in _LISTS.pairs("words")}
_BY_SCRIPT: dict[str, tuple[str, ...]] = {script: tuple(codes.split()) for script, codes in _LISTS.pairs("scripts")}
_SHARED = _LISTS.words("shared")

LANGUAGES = tuple(sorted({*_WORDS, *(name for names in _BY_SCRIPT.values() for name in names)}))
"""Codes of the languages that can be identified (ISO 639-1)."""


def looks_english(text: str) -> bool | None:
    """Whether a text is English; None if its words do not tell."""
    latin = other = 0
    for char, times in Counter(text).items():
        if char.isalpha():
            if script(char) == "LATIN":
                latin += times
            else:
                other += times
    if other > latin:
        return False
    known = strange = names = 0
    for piece, times in Counter(text.split()).items():
        word, *more = spelt(piece) or [""]
        if more or not word[:1].isalpha() or (small := word.lower()) in _SHARED:
            continue  # addresses, numbers, code, and words that several languages share
        if len(small) == 1:
            continue
        if is_english(word):
            known += times
        elif word[0].isupper():
            names += times
        else:
            strange += times
    if strange >= MIN_WORDS and strange > known:
        return False
    if not known and strange + names >= MIN_WORDS:
        return False
    return True if known >= MIN_WORDS and known > strange else None


def language_of(text: str) -> str | None:
    """Return the code of the language of a text; None if undecided."""
    scripts = Counter(script(char) for char in text if char.isalpha())
    if not scripts:
        return None
    (most, count), *_ = scripts.most_common(1)
    if scripts["HIRAGANA"] + scripts["KATAKANA"] > count // 4:
        return "ja"
    if most == "CJK":
        return "zh"
    written = _BY_SCRIPT.get(most)
    if most != "LATIN" and len(written or ()) == 1:
        return (written or ("",))[0]
    among = written or _WORDS
    words = {word.casefold() for word in spelt(text)}  # repetitions are no further evidence
    counts = Counter({name: sum(_is_evidence(name, word) for word in words) for name in among})
    (best, hits), *others = counts.most_common(2)
    ahead = hits - (others[0][1] if others else 0)
    is_clear = ahead >= MIN_FUNCTION_WORDS - (hits >= 2 * MIN_FUNCTION_WORDS)
    return best if hits >= MIN_FUNCTION_WORDS and is_clear else None


def _is_evidence(language: str, word: str) -> bool:
    return word in _WORDS.get(language, ()) or not set(_LETTERS.get(language, "")).isdisjoint(word)


def is_other(text: str, language: str) -> bool:
    """Whether a short text is in another language, whichever that is: it has common words of one, more than of its own,
    of which each is one that several share."""
    words = {word.casefold() for word in spelt(text) if len(word) > 1}
    own = [word for word in words if _is_evidence(language, word)]
    if not _SHARED.issuperset(own):
        return False
    most = max(sum(_is_evidence(name, word) for word in words) for name in _WORDS)
    return most >= MIN_FUNCTION_WORDS and most > len(own)


def is_in(text: str, language: str) -> bool | None:
    """Whether a text is in a language; None if undecided."""
    if language == "en":
        verdict = looks_english(text)
        if verdict is not None:
            return verdict
    other = language_of(text)
    if other is not None:
        return other == language
    letters = Counter(script(char) for char in text if char.isalpha())
    if not letters:
        return None
    ours = {name for name, codes in _BY_SCRIPT.items() if language in codes} or {"LATIN"}
    return None if sum(letters[name] for name in ours) * 2 >= letters.total() else False


def check_language(language: str) -> str:
    """Return `language`. Raises ValueError for an unknown code."""
    if language != ANY and language not in LANGUAGES:
        raise ValueError(f"language={language!r} is not known: one of {', '.join(LANGUAGES)}, or {ANY!r} for no check")
    return language


@cache
def script(char: str) -> str:
    """Return the script of a letter, from its Unicode name."""
    name = unicodedata.name(char, "").partition(" ")[0]
    return "LATIN" if name in ("FULLWIDTH", "MODIFIER", "FEMININE", "MASCULINE", "MICRO") else name
