"""The two varieties of English spelling: neither is a mistake of the other, and a style asks for one of them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache

from copyspec.common.lists import Lists

from .vocabulary import english

STYLES = ("british", "american")

_LISTS = Lists(__file__)
_PAIRS = dict(pair.split("/") for pair in _LISTS.listed("pairs"))
_REGULAR = tuple((re.compile(pattern), to) for pattern, to in _LISTS.rows("regular"))
"""From British to American spelling; in American texts the results are the rule."""
_RULES = _REGULAR + tuple((re.compile(pattern), to) for pattern, to in _LISTS.rows("others"))
_STAY = _LISTS.words("stay")


def restyled(word: str, style: str) -> str:
    """A word in the spelling of a style, of regular pairs of which both are listed; most words stay as they are."""
    small = word.lower()
    becomes = _spellings(style).get(small, small)
    if becomes == small or word not in (small, small.capitalize()):
        return word
    return becomes if word == small else becomes.capitalize()


@cache
def _spellings(style: str) -> Mapping[str, str]:
    words = {word for word in english() if word.islower()}
    pairs = [(word, other) for word in words if (other := _by(_REGULAR, word)) != word and other in words]
    if style == "british":
        pairs = [(other, word) for word, other in pairs]
    return {word: other for word, other in pairs if word not in _STAY}


def are_varieties(word: str, other: str) -> bool:
    """Whether two different words are the British and the American spelling of one."""
    a, b = word.casefold(), other.casefold()
    return a != b and _plain(a) == _plain(b)


def _plain(word: str) -> str:
    return _by(_RULES, _PAIRS.get(word, word))


def _by(rules: tuple[tuple[re.Pattern[str], str], ...], word: str) -> str:
    for pattern, to in rules:
        word = pattern.sub(to, word)
    return word
