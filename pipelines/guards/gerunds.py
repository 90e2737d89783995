"""Words after which "to" is a preposition, so that a form with "-ing" follows: "dedicated to making"."""

from __future__ import annotations

from collections.abc import Sequence

_BEFORE_TO = frozenset(
    """
    accustomed addicted addition akin alternative alternatives amount amounts applicable applied applies approach
    approaches attributed aversion barrier barriers central close closer closest commitment committed comparable
    compared comparison conducive confined confines contrary contribute contributed contributes contributing
    contribution corresponding corresponds critical crucial dedicated dedication devoted disposed due entitled equal
    equates equivalent essential exposed fundamental geared guide guides immune important inferior instrumental integral
    introduction key leading leads led limit limited limits linked looking next object objected objection opposed
    opposition orthogonal owing path preferable prelude preparatory prerequisite prior prone proximity reduced reduces
    refer referred referring refers regard regards related relates relating relation relative relevant reluctance
    resigned resistance resistant resort resorted resorting resorts respect restricted restricts return returned
    returning returns route secret shift similar solution solutions specific step steps subject subjected subsequent
    superior susceptible suited switch switched switching tantamount testament thanks tied tuned unrelated used
    vulnerable way wedded
    """.split()  # noqa: SIM905
)
"""Also "looking forward to". After some an infinitive may follow, too; what the writer has is right then as well."""


def is_gerund_after_to(word: str, before: Sequence[str]) -> bool:
    """Whether a word follows a "to" that takes its form with "-ing". `before`: the words before it."""
    if not word.endswith("ing") or [each.lower() for each in before[-1:]] != ["to"]:
        return False
    return any(each.lower() in _BEFORE_TO for each in before[-3:-1])  # "looking forward to", "due largely to"
