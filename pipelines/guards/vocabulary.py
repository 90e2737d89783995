"""Which words there are: the list of English ones, and how a text is cut into words that are looked up in it."""

from __future__ import annotations

import gzip
import re
from functools import cache
from pathlib import Path

_HERE = Path(__file__).parent

SPELT = re.compile(r"[^\W_]+(?:['’][^\W_]+)*")
"""A word with its apostrophes; hyphens are between words."""

# What may stand behind a word of the list.
ENDING = re.compile(r"(?:n['’]t|['’](?:s|re|ve|ll|d|m|em)|(?<=s)['’])\Z")
_CUT_SHORT = frozenset({"wo", "ca", "sha", "n't", "'s", "'re", "'ve", "'ll", "'d", "'m", ""})
"""What is left of "won't", and the pieces that corpora write apart."""
_WITH_DIGITS = re.compile(r"\d+(?:st|nd|rd|th|s)?\Z")


@cache
def english() -> frozenset[str]:
    """The words that a correction may bring, as they are written inside a sentence, without possessives. Read in
    15 ms, once."""
    return _read("english_words.txt.gz")


@cache
def rare() -> frozenset[str]:
    """More words, which are no misspellings, but which no correction brings."""
    return _read("english_rare.txt.gz")


def _read(name: str) -> frozenset[str]:
    return frozenset(gzip.decompress((_HERE / name).read_bytes()).decode().split("\n"))


def spelt(text: str) -> list[str]:
    """The words of a text as they stand there."""
    return SPELT.findall(text)


def is_english(word: str) -> bool:
    """Whether the list has a word, in small letters or as it is written, or what "'s" or "n't" are the end of."""
    stem = ENDING.sub("", word)
    known = _is_listed(word, english()) or _is_listed(stem, english())
    return known or stem.lower() in _CUT_SHORT or bool(_WITH_DIGITS.match(word))


def is_rare(word: str) -> bool:
    """Whether it is a word all the same."""
    return _is_listed(ENDING.sub("", word), rare())


def _is_listed(word: str, words: frozenset[str]) -> bool:
    small = word.lower()
    return word in words or small in words or (not word.islower() and word.capitalize() in words)
