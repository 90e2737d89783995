"""Finds the changes of a segment that need each other: one alone would double or lose a word, or break an agreement."""

from __future__ import annotations

from collections.abc import Sequence

from copyspec.common.lists import Lists

from ..documents import Edit
from .gerunds import are_inflected
from .likeness import are_akin, is_spelling
from .vocabulary import spelt
from .wording import Wording, is_grammar

_BETWEEN = 3
"""Most words between two changes of number that are taken for an agreement: "This big feature is"."""

_FAR = 12
"""Most changes over which a word may have moved: comparing all takes quadratic time."""

_UNMOVED = frozenset("a an the to of in on at for with from by and or that it".split())  # noqa: SIM905
"""Words that come and go in several places of a sentence without being moved."""
_NUMBERS = frozenset(map(frozenset, Lists(__file__).rows("numbers")))


def groups(text: str, changes: Sequence[Edit]) -> list[list[int]]:
    """The places of changes that are made or refused together, each in one group, in which they ascend as `changes`
    do."""
    wordings = [Wording.of(text[change.start : change.end], change.replacement) for change in changes]
    group = [[place] for place in range(len(changes))]
    for two, change in enumerate(changes):
        for one in range(max(0, two - _FAR), two):
            between = text[changes[one].end : change.start]
            pair = wordings[one], wordings[two]
            belong = _is_move(*pair) or any(need(*pair, between) for need in (_agree, _divide, _governs, _misread))
            if group[one] is not group[two] and belong:
                joined = group[one]
                joined += group[two]
                for place in group[two]:
                    group[place] = joined
    return [sorted(places) for places in {id(places): places for places in group}.values()]


def mistakes(text: str, group: Sequence[Edit]) -> int:
    """How many mistakes a group of changes repairs: all that only change a number are one agreement."""
    numbers = sum(_is_number(Wording.of(text[change.start : change.end], change.replacement)) for change in group)
    return len(group) - max(0, numbers - 1)


def _is_move(one: Wording, two: Wording) -> bool:
    """Whether a word goes in one place and comes in the other."""
    return any(
        not _UNMOVED.issuperset(moved)
        for moved in (_small(one.gone) & _small(two.new), _small(one.new) & _small(two.gone))
        if moved
    )


def _agree(one: Wording, two: Wording, between: str) -> bool:
    if one.gone == two.gone:  # two equal mistakes
        return False
    return len(spelt(between)) <= _BETWEEN and not set(".;:!?") & set(between) and _is_number(one) and _is_number(two)


def _divide(one: Wording, two: Wording, between: str) -> bool:
    """Whether two changes beside each other only divide or join words: "orthe" becomes "or the"."""
    if between.strip():
        return False
    gone, new = ("".join([*a, *b]).casefold() for a, b in ((one.gone, two.gone), (one.new, two.new)))
    return gone == new != ""


def _governs(one: Wording, two: Wording, between: str) -> bool:
    """Whether a word changes its form right behind function words that come, go or become others: "used has" that is
    to be "used to have"."""
    words = (*one.gone, *one.new)
    return not between.strip() and words != () and all(map(is_grammar, words)) and (_is_number(two) or _is_form(two))


def _misread(one: Wording, two: Wording, between: str) -> bool:
    """Whether function words come beside a word that becomes an unrelated one: "phpseclib ongoing" that is to be
    "PHPService is ongoing"."""
    return not between.strip() and any(
        _is_unrelated(a) and b.new and not b.gone and all(map(is_grammar, b.new)) for a, b in ((one, two), (two, one))
    )


def _is_unrelated(wording: Wording) -> bool:
    """Whether a change puts a word in place of one that it is no form or spelling of."""
    if len(wording.gone) != 1 or len(wording.new) != 1 or is_grammar(wording.gone[0]):
        return False
    pair = wording.gone[0], wording.new[0]
    return not (are_akin(*pair) or is_spelling(*pair))


def _is_form(wording: Wording) -> bool:
    """Whether a change only gives a word another form."""
    pair = [word.casefold() for word in (*wording.gone, *wording.new)]
    return len(wording.gone) == len(wording.new) == 1 and are_inflected(*pair)


def _is_number(wording: Wording) -> bool:
    """Whether a change only makes a word singular or plural, noun or verb."""
    if len(wording.gone) != 1 or len(wording.new) != 1:
        return False
    a, b = sorted((wording.gone[0].casefold(), wording.new[0].casefold()), key=len)
    if frozenset((a, b)) in _NUMBERS:
        return True
    return not is_grammar(a) and b in (f"{a}s", f"{a}es", f"{a[:-1]}ies")


def _small(words: Sequence[str]) -> set[str]:
    return {word.casefold() for word in words}
