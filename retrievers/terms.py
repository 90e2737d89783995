"""Splitting of texts and queries into the terms that BM25 matches: words, or their stems."""

from __future__ import annotations

import re
import threading
import unicodedata
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

import snowballstemmer

STOP_WORDS = frozenset(
    """
    a about all am an and any are as at be been before but by can could did do does for from had has have he her his
    how i if in into is it its me my no not of on or our she should so some such than that the their them then there
    these they this those to was we were what when where which who whom whose why will with would you your
    """.split()  # noqa: SIM905
)
"""English words that say nothing about a text's subject."""

PLAIN = "words"
"""The name of the splitter without stemming."""

_BLOCKS = (range(0x300, 0x3100), range(0xA600, 0xAC00), range(0xFB00, 0xFE00), range(0xFE20, 0xFE30))
MARKS = "".join(chr(code) for block in _BLOCKS for code in block if unicodedata.category(chr(code)) in ("Mn", "Mc"))
"""Characters that belong to the letter before them, which `\\w` lacks: accents, vowel signs of Hindi or Tamil. Without
the variation selectors of emoji, and those beyond U+FFFF, which would make matching five times slower."""

WORD = re.compile(rf"\w[\w{MARKS}]*")
"""A word: letters, digits and "_", with their marks."""
_ASCII_WORD = re.compile(r"\w+")  # the same in ASCII, a third faster

# Parts of identifiers: OPT_SORT_KEYS, JSONDecodeError, maxTokens.
_PART = re.compile(rf"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+|[^\W\d_a-zA-Z](?:[^\W\d_a-zA-Z]|[{MARKS}])*")
_PROBE = (
    "Don't 2 naïve WORDS split_alike, e.g. in 東京, हिन्दी, cafe\u0301 or U.S.A.?"  # its terms identify the splitter
)
_STEM_PROBE = "Generously running, the relational retrievers' universities were dying: OPT_SORT_KEYS häuser maisons"
_KEPT_STEMS = 1 << 16  # cached stems, a few MB: as many different words as a text of a million words has

Split = Callable[[str], list[str]]
"""Splits a text into terms."""


def words(text: str) -> list[str]:
    """Split a text into lower-case words, in Unicode's composed form (NFC)."""
    return _words(text.lower())


def _words(text: str) -> list[str]:
    if text.isascii():
        return _ASCII_WORD.findall(text)
    return WORD.findall(unicodedata.normalize("NFC", text))


def languages() -> list[str]:
    """Return the languages of `Stems`."""
    return sorted(snowballstemmer.algorithms())


class Stems:
    """Splits texts into the stems of their words (Snowball, Porter 2001), so that "keys" finds "key".

    Identifiers yield themselves and their parts, so that "sort keys" finds OPT_SORT_KEYS. `query` leaves English stop
    words out, unless the query has no other words.
    """

    def __init__(self, language: str = "english") -> None:
        """Raises ValueError for a language without a Snowball stemmer."""
        if language not in snowballstemmer.algorithms():
            raise ValueError(f"language must be {PLAIN!r} or one of {', '.join(languages())}, got {language!r}")
        self.name = language
        self._stop_words = STOP_WORDS if language == "english" else frozenset()

    def __call__(self, text: str) -> list[str]:
        return [_stem(self.name, part) for word in _words(text) for part in _parts(word)]

    def query(self, text: str) -> list[str]:
        """Split a query into terms."""
        found = _words(text)
        asked = [word for word in found if word.lower() not in self._stop_words] or found
        return [_stem(self.name, part) for word in asked for part in _parts(word)]


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
    stemmers: dict[str, Any] = _own.__dict__
    if language not in stemmers:
        stemmers[language] = snowballstemmer.stemmer(language)
    return str(stemmers[language].stemWord(word))
