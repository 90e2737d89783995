"""Function words and irregular word forms of English: which words a correction may exchange for each other."""

from __future__ import annotations

from collections.abc import Sequence

from copyspec.common.lists import Lists

_LISTS = Lists(__file__)

FUNCTION_WORDS = _LISTS.words("function_words")
"""Articles, pronouns, prepositions, auxiliaries and so on, which a correction may add, drop and exchange. Numbers and
negations are not among them, because they change the meaning."""

NEGATIONS = _LISTS.words("negations")

_SYNONYMS = [frozenset(group) for group in _LISTS.rows("synonyms")]
"""Function words that a writer may choose between: exchanging them corrects nothing."""


def _numbers(groups: Sequence[Sequence[str]]) -> dict[str, frozenset[int]]:
    table: dict[str, set[int]] = {}
    for number, group in enumerate(groups):
        for word in group:
            table.setdefault(word, set()).add(number)
    return {word: frozenset(numbers) for word, numbers in table.items()}


_MEMBERS = _LISTS.rows("groups")
_FORMS, _KIND = _numbers(_MEMBERS), _numbers(_LISTS.rows("kinds"))


def are_forms(word: str, other: str) -> bool:
    """Whether two lower-case words are irregular forms of one word, or often confused with each other."""
    return not _FORMS.get(word, frozenset()).isdisjoint(_FORMS.get(other, frozenset()))


def forms_of(word: str) -> frozenset[str]:
    """Return the other irregular forms of a lower-case word ("keep": "kept"), without function words."""
    numbers = frozenset() if word in FUNCTION_WORDS else _FORMS.get(word, frozenset())
    return frozenset(form for number in numbers for form in _MEMBERS[number] if form not in FUNCTION_WORDS) - {word}


def are_of_a_kind(word: str, other: str) -> bool:
    """Whether two lower-case function words are of the same class."""
    return not _KIND.get(word, frozenset()).isdisjoint(_KIND.get(other, frozenset()))


def are_synonyms(gone: Sequence[str], new: Sequence[str]) -> bool:
    """Whether a change only replaces a function word by another one that means the same."""
    return len(gone) == len(new) == 1 and {gone[0].casefold(), new[0].casefold()} in _SYNONYMS
