"""Decides whether two words are related: forms of one word, a misspelling and its correction, or nearly equal."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable

from .function_words import FUNCTION_WORDS, NEGATIONS, are_forms

_COMPARED = 48
"""Letters of a word that are compared: the edit distance takes quadratic time, and some "words" are long data."""

_STEM = 3
"""Least length of the common stem of two forms of a word."""

# Endings of inflected and derived words, longest first.
_ENDINGS = re.compile(
    r"(?:ization|isation|ifying|fully|ation|ition|ments?|ities|iness|ingly|edly|ally|ness|ions?|ings?|ists?|able|ible|"
    r"ence|ance|ents?|ants?|ious|ical|ives?|less|ful|ity|ies|ied|ier|iest|ily|ous|ion|ing|ers?|ors?|est|ed|es|en|al|ic|"
    r"ly|y|s|e|t|d|th)\Z"
)
_SOUNDS = (
    (re.compile(r"(.)\1"), r"\1"),
    (re.compile("[iy]"), "i"),
    (re.compile("ph"), "f"),
    (re.compile("[ck]+"), "k"),
)


def plain(word: str) -> str:
    """Return a word in lower case, without accents and apostrophes."""
    if word.isascii():
        return word.lower().replace("'", "")
    letters = word.replace("’", "").replace("'", "")
    # One at a time: putting many accents in order takes quadratic time, and they are left out anyway.
    folded = "".join([unicodedata.normalize("NFKD", letter) for letter in letters]).casefold()
    return "".join(char for char in folded if not unicodedata.combining(char))


def are_akin(word: str, other: str) -> bool:
    """Whether two words are forms of one word, by a common stem or as known irregular forms."""
    a, b = plain(word), plain(other)
    if a == b or are_forms(word.lower(), other.lower()):
        return True
    return not _stems(a, _STEM).isdisjoint(_stems(b, _STEM)) or are_irregular(a, b)


def are_irregular(word: str, other: str) -> bool:
    """Whether two words are made of irregular forms of one: "goed" and "went", "childrens" and "child"."""
    return any(are_forms(stem, form) for stem in _bases(plain(word)) for form in _bases(plain(other)))


def is_spelling(wrong: str, right: str) -> bool:
    """Whether `wrong` may be a misspelling of `right`: few letters differ, and usually not the first."""
    a, b = plain(wrong)[:_COMPARED], plain(right)[:_COMPARED]
    if not a or not b:
        return False
    size = max(len(a), len(b))
    most = 1 if size <= 4 else 2 if size <= 7 else 3
    return _away(a, b) <= most or (size > 4 and _sound(a) == _sound(b))


def is_near(word: str, other: str) -> bool:
    """Whether two words differ by at most one letter."""
    a, b = plain(word)[:_COMPARED], plain(other)[:_COMPARED]
    return distance(a, b) <= 1 and min(len(a), len(b)) > 1


def sounds_like(word: str, other: str) -> bool:
    """Whether two words have the same consonants, as far as they are heard."""
    a, b = plain(word), plain(other)
    return bool(a and b) and _sound(a) == _sound(b)


def is_nearer(wrong: str, right: str, others: Iterable[str], *, or_as_near: bool = False) -> bool:
    """Whether `wrong` is rather a misspelling of `right` than of any of `others`, or as likely with `or_as_near`."""
    a, b = plain(wrong)[:_COMPARED], plain(right)[:_COMPARED]
    away = _away(a, b) - or_as_near
    return all(_away(a, plain(other)[:_COMPARED]) > away for other in others)


def distance(a: str, b: str) -> int:
    """Return the restricted Damerau-Levenshtein distance: insertions, deletions, substitutions, adjacent swaps."""
    before: list[int] = []
    row = list(range(len(b) + 1))
    for i, char in enumerate(a, 1):
        above, row_before = row, before
        row = [i]
        for j, other in enumerate(b, 1):
            cost = min(above[j] + 1, row[j - 1] + 1, above[j - 1] + (char != other))
            if i > 1 and j > 1 and char == b[j - 2] and a[i - 2] == other:
                cost = min(cost, row_before[j - 2] + 1)
            row.append(cost)
        before = above
    return row[-1]


def _away(wrong: str, right: str) -> int:
    """The distance of a misspelling, for which another first letter counts twice."""
    is_other = wrong[:1] != right[:1] and len(wrong) > 2 and set(wrong[:2]) != set(right[:2])
    return distance(wrong, right) + is_other


def _bases(word: str) -> set[str]:
    """A word and its possible base forms, without function words, which do not inflect ("used" is not from "us")."""
    return {word} | {stem for stem in _stems(word, 2) if stem not in FUNCTION_WORDS | NEGATIONS}


def _stems(word: str, least: int) -> set[str]:
    """A word and its possible stems of at least `least` letters, after removing endings repeatedly."""
    word = word[:_COMPARED]
    stems, queue = {word}, [word]
    while queue:
        whole = queue.pop()
        for size in range(1, min(7, len(whole) - least) + 1):
            if not _ENDINGS.fullmatch(whole, len(whole) - size):
                continue
            stem = whole[:-size]
            forms = {stem, stem[:-1] if stem[-1] == stem[-2] else stem, stem[:-1] + "y" if stem[-1] == "i" else stem}
            queue += [form for form in forms if len(form) >= least and form not in stems]
            stems |= {form for form in forms if len(form) >= least}
    return stems


def _sound(word: str) -> str:
    for pattern, to in _SOUNDS:
        word = pattern.sub(to, word)
    return word[0] + re.sub("[aeiouhw]", "", word[1:])
