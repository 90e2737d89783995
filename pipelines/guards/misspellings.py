"""Words that may have been meant, where a letter is wrong."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from string import ascii_lowercase

from ..documents import Edit
from .vocabulary import english
from .wording import Wording, is_grammar

RIVALS = 8  # words that are asked about


def rivals(wording: Wording, start: int, count: Callable[[str], int]) -> Sequence[tuple[str, Edit]]:
    """The words that differ from one that changes by a letter, and the changes to these. `start`: where the changed
    words begin; `count`: occurrences of a word in the document."""
    if len(wording.gone) != 1 or len(wording.new) > 1 or not wording.gone[0].islower():
        return ()
    word = wording.gone[0]
    at = re.search(rf"(?<![^\W_]){re.escape(word)}(?![^\W_])", wording.was)
    start += at.start() if at else 0
    others = {*near_words(word)}.difference((word, *wording.new))
    order = sorted(others, key=lambda other: (-count(other), not is_grammar(other), other[0] != word[0], other))
    return [(other, Edit(start, start + len(word), other)) for other in order[:RIVALS]]


def is_near_word(word: str) -> bool:
    """Whether one differing letter makes a listed word."""
    return next(near_words(word), None) is not None


def near_words(word: str) -> Iterator[str]:
    """Yield the listed words that differ by a letter, or by two that change places; some twice."""
    words = english()
    for at in range(len(word) + 1):
        head, tail = word[:at], word[at:]
        made = [head + tail[1:], head + tail[1:2] + tail[:1] + tail[2:]]
        for letter in ascii_lowercase:
            made += (head + letter + tail, head + letter + tail[1:])
        yield from words.intersection(made)
