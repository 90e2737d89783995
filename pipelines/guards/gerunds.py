"""Forms of verbs: "-ing" is right after a "to" that is a preposition ("opt in to printing"), wrong in an infinitive; a
note may begin with any form."""

from __future__ import annotations

import re
from collections.abc import Sequence

_INFINITIVE = frozenset(
    """
    able afford agree agreed agrees allow allowed allows ask asked asks attempt attempted attempting attempts
    began begin begins better cause caused causes choose chooses chose continue continued continues dare decide
    decided decides designed desire difficult easier easy enable enabled enables encourage encouraged enough
    expect expected expects fail failed fails force forced forces forget forgets forgot free glad go goes going
    got gonna had happen happened happens happy hard has have having hope hoped hopes how impossible intend
    intended intends learn learned learns let like liked likely likes long love loved loves manage managed manages
    meant mean need needed needs necessary offer offered offers order ought permit permitted permits plan planned
    planning plans possible prefer preferred prefers prepare pretend promise promised promises ready recommended
    refuse refused refuses remember required requires seem seemed seems sorry start started starts supposed sure
    tell tells told tempted tend tended tends tried tries try trying unable want wanted wants what when where
    whether which willing wish wished wishes
    """.split()  # noqa: SIM905
)
"""What an infinitive follows. Words that take either ("used", "used to be") are left out: what the writer has may be
right."""

_ENDING = re.compile(r"(?<=\w\w)(?:ing|ed|e?s)\Z")
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


def are_of_verb(word: str, other: str) -> bool:
    """Whether two words are regular forms of one verb, one of them with "-ing" or "-ed"."""
    return any(each.endswith(("ing", "ed")) for each in (word, other)) and not _bases(word).isdisjoint(_bases(other))


def _bases(word: str) -> set[str]:
    stem = _ENDING.sub("", word)
    return {word, stem, f"{stem}e", stem[:-1] if stem[-1:] == stem[-2:-1] else stem}
