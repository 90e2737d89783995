"""Forms of words: "-ing" is right after a "to" that is a preposition ("opt in to printing"), wrong in an infinitive; a
note may begin with any form of a verb."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import product

from copyspec.common.lists import Lists

from .function_words import are_forms
from .vocabulary import is_english

_LISTS = Lists(__file__)

_INFINITIVE = _LISTS.words("infinitive")
"""What an infinitive follows. Words that take either ("used", "used to be") are left out: what the writer has may be
right."""

_GOVERNED = dict(_LISTS.pairs("governed"))
"""Words that ask for a preposition whatever they are about, by it."""

_ENDING = re.compile(r"(?<=\w\w)(?:ing|ed|e?s|['’]s?)\Z")
_ADJECTIVE = re.compile(r"\w{3,}(?:[ai]ble|al|ic|ish|ive|ous)\Z")
_OPENS = frozenset("and but because if or since so that when where which while who whose".split())  # noqa: SIM905
_VERB = re.compile(
    r"[^,.;:!?]*,\s+(?:(?:is|are|was|were|has|have|had|does|do|did|can|could|may|might|must|shall|should|will|would)"
    r"(?:n['’]t)?|cannot)(?!\w)"
)
_BETWEEN = frozenset("her him it me not them us you".split())  # noqa: SIM905


def is_gerund_after_to(word: str, before: Sequence[str]) -> bool:
    """Whether a word follows a "to" that may be a preposition, so that its "-ing" is right. `before`: the words before
    the word."""
    *rest, to = ["", *(word.lower() for word in before)]
    if not word.endswith("ing") or to != "to":
        return False
    while rest and rest[-1] in _BETWEEN:
        rest.pop()
    return rest[-1] not in _INFINITIVE


def is_aside(word: str, before: Sequence[str], after: str) -> bool:
    """Whether a word with "-ing" begins what stands between a clause's first word and its verb: "which assuming that it
    is there, will open it"."""
    return word.endswith("ing") and before[-1:] != [] and before[-1].lower() in _OPENS and bool(_VERB.match(after))


def are_of_verb(word: str, other: str) -> bool:
    """Whether two words are regular forms of one verb, one of them with "-ing" or "-ed"."""
    return any(each.endswith(("ing", "ed")) for each in (word, other)) and not _bases(word).isdisjoint(_bases(other))


def are_inflected(word: str, other: str) -> bool:
    """Whether two lower-case words are inflected forms of one: "copies" and "copy", unlike "copier"."""
    bases = _bases(word), _bases(other)
    return not bases[0].isdisjoint(bases[1]) or any(are_forms(*pair) for pair in product(*bases))


def governs(word: str, preposition: str) -> bool:
    """Whether a lower-case word asks for this preposition: "depends on"."""
    return any(are_inflected(word, other) for other in _GOVERNED.get(preposition, "").split())


def is_adjective(word: str) -> bool:
    """Whether a word has the ending of adjectives, or an adverb."""
    return bool(_ADJECTIVE.match(word)) or is_english(f"{word.removesuffix('le')}ly")


def _bases(word: str) -> set[str]:
    stem = _ENDING.sub("", word)
    return {word, stem, f"{stem}e", stem[:-1] if stem[-1:] == stem[-2:-1] else stem, re.sub(r"i\Z", "y", stem)}
