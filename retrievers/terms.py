"""Splitting of texts and queries into the terms that BM25 matches: words, or their stems."""

from __future__ import annotations

import re
import threading
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from functools import cache, lru_cache
from itertools import pairwise
from typing import Any

import snowballstemmer

from copyspec.common.lists import Lists

_LISTS = Lists(__file__)


@cache
def _pairs() -> dict[str, str]:
    pairs = [pair.split("/") for pair in _LISTS.listed("pairs")]
    return {word: other for pair in pairs for word, other in (pair, pair[::-1])}


@cache
def _patterns() -> list[tuple[re.Pattern[str], str]]:
    both = [(rule, *ways) for rule in _LISTS.rows("rules") for ways in ((rule[1], rule[2]), (rule[2], rule[1]))]
    return [(re.compile(f"({before}){old}({after})"), rf"\g<1>{new}\g<2>") for (before, _, _, after), old, new in both]


def spellings(word: str) -> list[str]:
    """Return how else a lower-case word may be spelt: "colour" for "color". A rule may return what is no word, which
    no text holds."""
    if not word.isascii() or not word.isalpha() or len(word) > 30:
        return []
    others = [other for other in (_pairs().get(word),) if other]
    for pattern, other in _patterns():
        if pattern.fullmatch(word):
            others.append(pattern.sub(other, word))
    return list(dict.fromkeys(others))


STOP_WORDS = _LISTS.words("stop_words")
"""English words that say nothing about a text's subject."""

PLAIN = "words"
"""The name of the splitter without stemming."""


def _characters(blocks: Iterable[range], *categories: str) -> str:
    """The characters of some blocks that have one of these Unicode categories."""
    return "".join(chr(code) for block in blocks for code in block if unicodedata.category(chr(code)) in categories)


_MARKED = (range(0x300, 0x3100), range(0xA600, 0xAC00), range(0xFB00, 0xFE00), range(0xFE20, 0xFE30))
MARKS = _characters(_MARKED, "Mn", "Mc")
"""Characters that belong to the letter before them, which `\\w` lacks: accents, vowel signs of Hindi or Tamil. Without
the variation selectors of emoji, and those beyond U+FFFF, which would make matching five times slower."""

_CHINESE = "\u3005-\u3007\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U000323af"
_THAI_AND_LAO, _BURMESE, _KHMER = range(0x0E00, 0x0F00), range(0x1000, 0x10A0), range(0x1780, 0x1800)
_KANA = (range(0x3040, 0x3100), range(0x31F0, 0x3200), range(0xFF66, 0xFFA0))
_LETTERS = _characters((_THAI_AND_LAO, _BURMESE, _KHMER, *_KANA), "Lo", "Lm")
UNSPACED = re.compile(f"[{_CHINESE}{_LETTERS}]")
"""A character of a script that is written without spaces, so that nothing shows where its words end."""

# The repeat is of single characters, since `re` keeps 168 bytes for each repetition of a group.
_SPACED = rf"[^\W{_CHINESE}{_LETTERS}][\w{MARKS}]*?(?=[{_CHINESE}{_LETTERS}]|[^\w{MARKS}]|\Z)"
WORD = re.compile(rf"{_SPACED}|[{_CHINESE}{_LETTERS}][{MARKS}]*")
"""A word: letters, digits and "_", with their marks. In scripts without spaces, one character with its marks. For all
methods but `fullmatch`, for which a word would go on over such scripts."""
_SPACED_WORD = re.compile(rf"\w[\w{MARKS}]*")  # the same in texts without such scripts, in half the time
_ASCII_WORD = re.compile(r"\w+")  # the same in ASCII, a third faster
_RUN = re.compile(rf"{_SPACED}|[{_CHINESE}][{MARKS}]*|[{_LETTERS}][{_LETTERS}{MARKS}]*")
_MOST_MARKS = 30  # on a letter, as in Unicode's stream-safe texts: putting more in order takes quadratic time
_MANY_MARKS = re.compile(rf"[^\w\s\x00-\x7f]{{{_MOST_MARKS + 1},}}")

# Parts of identifiers: OPT_SORT_KEYS, JSONDecodeError, maxTokens.
_PART = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+|[^\W\d_a-zA-Z][^\d_a-zA-Z]*")  # a word holds no other signs
# The terms of these texts identify the splitter.
_PROBE = "Don't 2 naïve WORDS split_alike, e.g. in 東京, ไทย, हिन्दी, cafe\u0301 or U.S.A.?"
_STEM_PROBE = "Generously running, the relational retrievers' universities were dying: OPT_SORT_KEYS häuser maisons"
_KEPT_STEMS = 1 << 16  # cached stems, a few MB: as many different words as a text of a million words has
_LONGEST_STEMMED = 100  # characters; longer than any word, and the time of stemming grows with the square of the length

Split = Callable[[str], list[str]]
"""Splits a text into terms."""


def words(text: str) -> list[str]:
    """Split a text into lower-case words, in Unicode's composed form (NFC).

    In scripts without spaces, each Chinese character is a word, as it has a meaning of its own; other letters make
    words of two, which overlap: single ones stand in nearly every text."""
    return cased_words(text.lower())


def cased_words(text: str) -> list[str]:
    """Do the work of `words`, and leave the letters as they are."""
    if text.isascii():
        return _ASCII_WORD.findall(text)
    text = unicodedata.normalize("NFC", _MANY_MARKS.sub(lambda run: run[0][:_MOST_MARKS], text))
    if not UNSPACED.search(text):
        return _SPACED_WORD.findall(text)
    runs = map(WORD.findall, _RUN.findall(text))
    return [word for run in runs for word in [first + second for first, second in pairwise(run)] or run]


def share_of_word(word: str) -> float:
    """Return how much of a written word a match of WORD is: all of it, or in scripts without spaces about half of one
    if it is a Chinese character, and a quarter if it is a letter."""
    if word.isascii() or not UNSPACED.match(word):
        return 1.0
    return 0.25 if word[0] in _LETTERS else 0.5


def languages() -> list[str]:
    """Return the languages of `Stems`."""
    return sorted(snowballstemmer.algorithms())


class Stems:
    """Splits texts into the stems of their words (Snowball, Porter 2001), so that "keys" finds "key".

    Identifiers yield themselves and their parts, so that "sort keys" finds OPT_SORT_KEYS. `query` leaves English stop
    words out, unless the query has no other words, and adds the other spellings of English words.
    """

    def __init__(self, language: str = "english") -> None:
        """Raises ValueError for a language without a Snowball stemmer."""
        if language not in snowballstemmer.algorithms():
            raise ValueError(f"language must be {PLAIN!r} or one of {', '.join(languages())}, got {language!r}")
        self.name = language
        self._stop_words = STOP_WORDS if language == "english" else frozenset()

    def __call__(self, text: str) -> list[str]:
        return [_stem(self.name, part) for word in cased_words(text) for part in _parts(word)]

    def query(self, text: str) -> list[str]:
        """Split a query into terms."""
        cased = cased_words(text)
        content_words = [word for word in cased if word.lower() not in self._stop_words] or cased
        return [stem for word in content_words for part in _parts(word) for stem in self.spelt(part)]

    def spelt(self, word: str) -> list[str]:
        """Return the stem of a lower-case word, and those of its other spellings."""
        others = spellings(word) if self.name == "english" else []
        return list(dict.fromkeys(_stem(self.name, form) for form in (word, *others)))


def splitter(name: str) -> Split:
    """Return `words`, or the `Stems` of a language. Raises ValueError for any other name."""
    return words if name == PLAIN else Stems(name)


def splitter_name(split: Split) -> str | None:
    """Return the name for which `splitter` returns this splitter; None for the caller's own function."""
    return PLAIN if split is words else split.name if isinstance(split, Stems) else None


def query_splitter(split: Split) -> Split:
    """Return the splitter for queries: the method `query` of `Stems`, else the splitter itself."""
    return split.query if isinstance(split, Stems) else split


def split_fingerprint(split: Split) -> list[list[str]]:
    """Return the terms of fixed texts, by which an index recognises its splitter."""
    return [split(_PROBE), split(_STEM_PROBE)] if isinstance(split, Stems) else [split(_PROBE)]


def _parts(word: str) -> Iterator[str]:
    """A word in lower case, and for an identifier its parts, too."""
    yield word.lower()
    if "_" in word or not (word.islower() or word.isupper() or word[1:].islower() or word.isdigit()):
        parts = _PART.findall(word)
        if len(parts) > 1:
            yield from (part.lower() for part in parts)


_own = threading.local()  # stemmers hold state, so each thread has its own


@lru_cache(_KEPT_STEMS)
def _stem(language: str, word: str) -> str:
    if len(word) > _LONGEST_STEMMED:
        return word
    stemmers: dict[str, Any] = _own.__dict__
    if language not in stemmers:
        stemmers[language] = snowballstemmer.stemmer(language)
    return str(stemmers[language].stemWord(word))
