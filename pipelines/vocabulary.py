"""Which words there are: the list of English ones, and how a text is cut into words that are looked up in it."""

from __future__ import annotations

import gzip
import re
from functools import cache
from pathlib import Path

_LIST = Path(__file__).with_name("english_words.txt.gz")

SPELT = re.compile(r"[^\W_]+(?:['’][^\W_]+)*")
"""A word with its apostrophes; hyphens are between words."""

# What may stand behind a word of the list.
ENDING = re.compile(r"(?:n['’]t|['’](?:s|re|ve|ll|d|m|em)|(?<=s)['’])\Z")
_CUT_SHORT = frozenset({"wo", "ca", "sha", "n't", "'s", "'re", "'ve", "'ll", "'d", "'m", ""})
"""What is left of "won't", and the pieces that corpora write apart."""
_WITH_DIGITS = re.compile(r"\d+(?:st|nd|rd|th|s)?\Z")


@cache
def english() -> frozenset[str]:
    """The list: words as they are written inside a sentence, without possessives. Read in 15 ms, once."""
    with gzip.open(_LIST, "rt", encoding="utf-8") as file:
        return frozenset(file.read().split("\n"))


def spelt(text: str) -> list[str]:
    """The words of a text as they stand there."""
    return SPELT.findall(text)


def is_english(word: str) -> bool:
    """Whether the list has a word, in small letters or as it is written, or what "'s" or "n't" are the end of."""
    stem = ENDING.sub("", word)
    return _is_listed(word) or _is_listed(stem) or stem.lower() in _CUT_SHORT or bool(_WITH_DIGITS.match(word))


def _is_listed(word: str) -> bool:
    words, small = english(), word.lower()
    return word in words or small in words or (not word.islower() and word.capitalize() in words)
