"""The number of nouns and verbs: where nothing beside a word tells it, the writer's is as good as any other."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import takewhile

from copyspec.common.lists import Lists

from .vocabulary import english, spelt
from .wording import Wording, is_grammar

_LISTS = Lists(__file__)

_NEAR = 5  # words before a noun that may tell its number
_SUBJECT = 7  # words before a verb among which its subject is
_CLAUSE = re.compile(r"[.;:!?()]\s")
_VERBS = frozenset(map(frozenset, (("is", "are"), ("was", "were"), ("has", "have"), ("does", "do"))))
_EITHER = _LISTS.words("either")
"""Subjects that take a verb of either number, by their meaning or by the writer's variety of English."""
_TELLING = _LISTS.words("telling")
_NO_PLURAL = _LISTS.words("no_plural")
"""Nouns that have no plural, plurals among them: what looks like one is a mistake, whatever stands beside it."""
_MODALS = _LISTS.words("modals")
"""What stands before one of these tells nothing of a word after it."""


def objections(text: str, start: int, end: int, bounds: tuple[int, int], wording: Wording) -> Iterator[str]:
    """Why another number is no correction. `start`, `end`: of the words that change; `bounds`: of their segment."""
    if len(wording.gone) != 1 or len(wording.new) != 1:
        return
    was, becomes = wording.gone[0].lower(), wording.new[0].lower()
    before = [word.lower() for word in spelt(_CLAUSE.split(text[bounds[0] : start])[-1])]
    if frozenset((was, becomes)) in _VERBS:
        for word in before[-_SUBJECT:]:
            if word in _EITHER:
                yield f"{word!r} takes a verb of either number"
        return
    singular = min(was, becomes, key=len)
    if is_grammar(was) or {was, becomes} != {singular, plural(singular)} or singular in _NO_PLURAL:
        return
    if not before and not is_noun(singular):
        yield "a note may begin with either form of a verb"
    after = [word.lower() for word in spelt(text[end : bounds[1]])[:1]]
    beside = (*takewhile(lambda word: word not in _MODALS, reversed(before[-_NEAR:])), *after)
    tells = any(word in _TELLING or word.isdigit() for word in beside)
    if is_noun(singular) and not tells:
        yield "nothing beside it tells its number"


def is_plural(word: str, noun: str) -> bool:
    """Whether a word that may be in no list is the regular plural of a noun that has one."""
    return word == plural(noun) and noun not in _NO_PLURAL


def plural(noun: str) -> str:
    """The regular plural of a noun."""
    if noun.endswith("y") and noun[-2:-1] not in "aeiou":
        return f"{noun[:-1]}ies"
    return f"{noun}es" if noun.endswith(("s", "x", "z", "ch", "sh")) else f"{noun}s"


def is_noun(word: str) -> bool:
    """Whether a word has no forms of a verb."""
    stems = {word, word.removesuffix("e"), word + word[-1:]}
    return english().isdisjoint({*(f"{stem}ing" for stem in stems), *(f"{stem}ed" for stem in stems)})
