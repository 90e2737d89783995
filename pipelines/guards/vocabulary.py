"""The English word lists, and the splitting of a text into words to look up."""

from __future__ import annotations

import gzip
import re
from functools import cache
from pathlib import Path

_HERE = Path(__file__).parent

SPELT = re.compile(r"[^\W_]+(?:['’][^\W_]+)*")
"""A word with its apostrophes; hyphens separate words."""

# Contractions and possessives that may follow a listed word.
ENDING = re.compile(r"(?:n['’]t|['’](?:s|re|ve|ll|d|m|em)|(?<=s)['’])\Z")
_CUT_SHORT = frozenset({"wo", "ca", "sha", "n't", "'s", "'re", "'ve", "'ll", "'d", "'m", ""})
"""Stems such as that of "won't", and the separate contractions of tokenised corpora."""
_WITH_DIGITS = re.compile(r"\d+(?:st|nd|rd|th|s)?\Z")


@cache
def english() -> frozenset[str]:
    """Return the words that a correction may add, as written inside a sentence, without possessives. They are read
    once, in 15 ms."""
    return _read("english_words.txt.gz")


@cache
def rare() -> frozenset[str]:
    """Return rare words, which are not misspelt, but which no correction may add."""
    return _read("english_rare.txt.gz")


def _read(name: str) -> frozenset[str]:
    return frozenset(gzip.decompress((_HERE / name).read_bytes()).decode().split("\n"))


def spelt(text: str) -> list[str]:
    """Return the words of a text as they are written."""
    return SPELT.findall(text)


def is_english(word: str) -> bool:
    """Whether a word is in the list, in lower case or as written, with or without its contraction or possessive."""
    stem = ENDING.sub("", word)
    known = _is_listed(word, english()) or _is_listed(stem, english())
    return known or stem.lower() in _CUT_SHORT or bool(_WITH_DIGITS.match(word))


def is_rare(word: str) -> bool:
    """Whether a word is in the list of rare words."""
    return _is_listed(ENDING.sub("", word), rare())


def _is_listed(word: str, words: frozenset[str]) -> bool:
    small = word.lower()
    return word in words or small in words or (not word.islower() and word.capitalize() in words)
