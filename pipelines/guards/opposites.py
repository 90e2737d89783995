"""Decides whether two words are opposites. Many look alike, or are of one class, and none corrects the other."""

from __future__ import annotations

import re
from collections.abc import Callable

from copyspec.common.lists import Lists

from .likeness import are_akin, plain

_PAIRS = frozenset(map(frozenset, Lists(__file__).rows("pairs")))
"""Function words of one class that a correction may exchange otherwise: prepositions, auxiliaries and so on."""

_WITHOUT = re.compile(r"(?<=\w{3})less(?:ly|ness)?\Z")  # "harmless", not "bless"
_DOER, _CONCERNED = re.compile(r"(\w{3,})[eo]rs?\Z"), re.compile(r"(\w{3,})ees?\Z")
_REVERSING = ("un", "dis", "mis", "non", "anti", "counter", "de")
_DENIABLE = re.compile(r"\w{3,}(?:ous|ic|ical|al|metry|ists?|isms?)(?:ly)?\Z")
"""Words before which `a-` means `not`, unlike in "a long" and "along"."""


def are_opposites(word: str, other: str, knows: Callable[[str], bool]) -> bool:
    """Whether two words mean the opposite of each other, of one action, or of one relation. `knows`: whether a word is
    spelt correctly."""
    a, b = plain(word), plain(other)
    if frozenset((a, b)) in _PAIRS:
        return True
    return any(
        _lacks(one, two) or _is_reversed(one, two) or _are_sides(one, two, knows) or _is_denied(one, two, knows)
        for one, two in ((a, b), (b, a))
    )


def _lacks(without: str, word: str) -> bool:
    """Whether one word says that there is nothing of the other: "harmless" and "harmful", "harm"."""
    stem = _WITHOUT.sub("", without)
    return stem != without and not _WITHOUT.search(word) and are_akin(stem, word)


def _is_reversed(word: str, other: str) -> bool:
    """Whether `other` is the word behind a prefix that turns its meaning: "deprecated", "undeprecated"."""
    return len(word) > 3 and any(other == prefix + word for prefix in _REVERSING)


def _are_sides(doer: str, concerned: str, knows: Callable[[str], bool]) -> bool:
    """Whether these are the two sides of one action: "employer" and "employee", but not "coffer" and "coffee"."""
    stem, same = _DOER.match(doer), _CONCERNED.match(concerned)
    return bool(stem and same and stem[1] == same[1] and (knows(stem[1]) or knows(f"{stem[1]}e")))


def _is_denied(word: str, denied: str, knows: Callable[[str], bool]) -> bool:
    """Whether `denied` has a Greek `a-` before the word: "symmetric", "asymmetric". Before a vowel it is `an-`."""
    return (
        denied == f"a{word}"
        and word[:1] not in "aeiou"
        and bool(_DENIABLE.match(word))
        and knows(word)
        and knows(denied)
    )
