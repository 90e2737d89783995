"""Terms: what texts and queries are matched by. Words as they stand, or their stems."""

from __future__ import annotations

import re
import threading
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
"""English words that any text holds whatever it is about."""

PLAIN = "words"
"""The name of the splitter that stems nothing."""

_WORD = re.compile(r"\w+")
# Of names in code: OPT_SORT_KEYS, JSONDecodeError, maxTokens.
_PART = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+|[^\W\d_a-zA-Z]+")
_PROBE = "Don't 2 naïve WORDS split_alike, e.g. in 東京 or U.S.A.?"  # its words are the word splitter's fingerprint
_STEM_PROBE = "Generously running, the relational retrievers' universities were dying: OPT_SORT_KEYS häuser maisons"
_KEPT_STEMS = 1 << 16  # a few megabytes; a text of a million words has about as many different ones

Split = Callable[[str], list[str]]
"""Makes terms of a text."""


def words(text: str) -> list[str]:
    """The lower-case words that texts and queries are matched by."""
    return _WORD.findall(text.lower())


def languages() -> list[str]:
    """The languages that `Stems` knows."""
    return sorted(snowballstemmer.algorithms())


class Stems:
    """Splits texts into the stems of their words (Snowball, Porter 2001), so that "keys" finds "key".

    Names in code count whole and by their parts: OPT_SORT_KEYS is found by "sort keys". `query` leaves English stop
    words out, unless there is nothing else.
    """

    def __init__(self, language: str = "english") -> None:
        """Raises ValueError for a language that Snowball has no stemmer of."""
        if language not in snowballstemmer.algorithms():
            raise ValueError(f"language must be {PLAIN!r} or one of {', '.join(languages())}, got {language!r}")
        self.name = language
        self._stop_words = STOP_WORDS if language == "english" else frozenset()

    def __call__(self, text: str) -> list[str]:
        return [_stem(self.name, part) for word in _WORD.findall(text) for part in _parts(word)]

    def query(self, text: str) -> list[str]:
        """The terms of a query."""
        found = _WORD.findall(text)
        asked = [word for word in found if word.lower() not in self._stop_words] or found
        return [_stem(self.name, part) for word in asked for part in _parts(word)]


def splitter(name: str) -> Split:
    """The splitter of a name: `words`, or the stems of a language. Raises ValueError for another name."""
    return words if name == PLAIN else Stems(name)


def splitter_name(split: Split) -> str | None:
    """The name by which `splitter` makes it again; None for one of the caller's own."""
    return PLAIN if split is words else split.name if isinstance(split, Stems) else None


def query_splitter(split: Split) -> Split:
    """What makes terms of queries: the splitter's own `query`, else the splitter."""
    return split.query if isinstance(split, Stems) else split


def split_fingerprint(split: Split) -> list[list[str]]:
    """Terms of fixed texts, which tell splitters apart: an index is refused by another one."""
    return [split(_PROBE), split(_STEM_PROBE)] if isinstance(split, Stems) else [split(_PROBE)]


def _parts(word: str) -> Iterator[str]:
    """A word, and what it is made of where it is a name in code."""
    yield word.lower()
    if "_" in word or not (word.islower() or word.isupper() or word[1:].islower() or word.isdigit()):
        parts = _PART.findall(word)
        if len(parts) > 1:
            yield from (part.lower() for part in parts)


_own = threading.local()  # a stemmer holds the word that it works on


@lru_cache(_KEPT_STEMS)
def _stem(language: str, word: str) -> str:
    stemmers: dict[str, Any] = _own.__dict__
    if language not in stemmers:
        stemmers[language] = snowballstemmer.stemmer(language)
    return str(stemmers[language].stemWord(word))
