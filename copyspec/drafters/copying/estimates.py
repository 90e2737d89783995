"""Estimates: weights of cursors by situation, from fitted priors and from the acceptance in this row so far."""

from __future__ import annotations

import json
from array import array
from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import NamedTuple

from copyspec.drafters.copying.corpus import COMMON_TOKENS
from copyspec.drafters.copying.situations import (
    COMMON,
    COUNT,
    CROWD,
    CROWD_ROWS,
    EDIT_START,
    FAMILIES,
    FOLLOWED,
    FOLLOWED_1,
    FOLLOWED_3,
    FOLLOWED_RESUMED,
    LATER_START,
    MISS_AT_ROOT,
    MISS_DEEPER,
    PROMPT_START,
    START,
    STRIDE,
)


class Priors(NamedTuple):
    """Fitted numbers. In the file they are by family or row, and those that do not occur at its end are left out."""

    weights: list[float]  # [COUNT], by situation
    crowds: list[float]  # [CROWD], by cell of the crowd table


def _read(name: str) -> Priors:
    tables = json.loads(Path(__file__).with_name(name).read_text(encoding="utf-8"), parse_int=float)
    weights = [weight for family in FAMILIES for weight in (tables["weights"][family] + [0.0] * STRIDE)[:STRIDE]]
    crowds = [factor for row in CROWD_ROWS for factor in tables["crowds"][row]]
    assert len(weights) == COUNT and len(crowds) == CROWD
    return Priors(weights, crowds)


NAMED, FOUND = _read("priors.json"), _read("priors_found.json")
"""For rows whose sources the caller named, and for those whose sources were found in the prompt."""


PRIOR_COUNT = 6.0  # pseudo-count of right predictions
PRIOR_COUNT_WRONG = 3.0
"""Pseudo-count of wrong predictions: lower, because misses are rare and more informative; not for short matches at the
root."""
DECAY = 0.99  # of a record, per prediction
MAX_FACTOR = 6.0  # largest factor of a record on the odds, up or down
MAX_FACTOR_MISS = 4.0  # the same for the odds that no cursor is right
NGRAM_PRECISION = 0.9
"""Initial ratio of the n-grams' accuracy to their probabilities."""
PRIOR_COUNT_RESUMED = 2.0  # of right and of wrong resumptions in a text that was found to be followed
PRIOR_COUNT_NGRAMS = 3.0  # pseudo-count of NGRAM_PRECISION
FEW_ACCEPTED = 4.0  # with fewer tokens per forward pass on average, copies count as ending early
DECAY_ACCEPTED = 0.8  # of that running average, per forward pass

SHORT = 3
"""Matches below this length have separate records at the root and deeper. At the root a short match follows a
difference; deeper, its cursor joined a draft. Neither tells how long established copies hold."""

SHORT_AT_ROOT, SHORT_DEEPER, LONG = range(3)
RECORDS_PER_FAMILY = 3

RESUMED_SURE = 0.98  # largest probability that resumed cursors count as having promised
_RESUMED = slice(FOLLOWED_RESUMED * STRIDE, (FOLLOWED_RESUMED + 1) * STRIDE)

_EDITED = (FOLLOWED, FOLLOWED_1, FOLLOWED_3, START, PROMPT_START, LATER_START, FOLLOWED_RESUMED)
PRIORS_QUESTION = [
    (FOUND if situation // STRIDE in _EDITED else NAMED).weights[situation] for situation in range(COUNT)
]
"""Priors for a prompt that is likely a question: as if nothing was found, but for where its text is followed after
all."""


def record_number(after: int, *, is_root: bool) -> int:
    """Return the number of the record of a top prediction.

    `after`: its cursor's situation if the prediction is right. `is_root`: it was made at the root.
    """
    family, length = divmod(after, STRIDE)
    return family * RECORDS_PER_FAMILY + (LONG if length > SHORT else SHORT_AT_ROOT if is_root else SHORT_DEEPER)


@dataclass(slots=True)
class Record:
    """Decayed counts of right and wrong predictions, and what was expected of them."""

    right: float = 0.0
    wrong: float = 0.0
    expected: float = 0.0  # sum of the probabilities
    doubted: float = 0.0  # sum of 1 - probability

    def add(self, probability: float, right: bool) -> None:
        """Record a prediction with this `probability`, which was `right` or not."""
        self.right = self.right * DECAY + right
        self.wrong = self.wrong * DECAY + (not right)
        self.expected = self.expected * DECAY + probability
        self.doubted = self.doubted * DECAY + 1.0 - probability

    def odds_factor(self, prior_count_wrong: float, limit: float, prior_count: float = PRIOR_COUNT) -> float:
        """Return the observed odds divided by the expected ones, smoothed, within 1/limit and limit."""
        hits = (self.right + prior_count) / (self.expected + prior_count)
        misses = (self.wrong + prior_count_wrong) / (self.doubted + prior_count_wrong)
        return min(limit, max(1.0 / limit, hits / misses))


RECORD = len(fields(Record))


class Estimates:
    """The weights of one row, relative to the event that no cursor is right, which weighs about 1.

    For each family of situations, records compare the accuracy of its top predictions with the expected one and scale
    the weights. `found`: the row's sources were found in its prompt instead of being named by the caller.
    `is_question`: what was found is likely a question, see `corpus.QUESTION_ODDS`.
    """

    def __init__(self, *, found: bool = False, is_question: bool = False) -> None:
        fitted = FOUND if found and not is_question else NAMED
        self.priors = PRIORS_QUESTION if found and is_question else fitted.weights
        self.at_root = list(self.priors)  # weights by situation, at the tree's root
        self.deeper = list(self.priors)  # the same at its other nodes
        self.crowds: Sequence[float] = fitted.crowds
        self.miss_at_root = self.priors[MISS_AT_ROOT]
        self.miss_deeper = self.priors[MISS_DEEPER]
        self.common = [self.priors[COMMON * STRIDE + rank // 2] for rank in range(COMMON_TOKENS)]  # by rank
        self.records = array("d", bytes(8 * RECORD * EDIT_START * RECORDS_PER_FAMILY))
        """The fields of a `Record` for each `record_number`. [records * RECORD]"""
        self.ngram_scale = NGRAM_PRECISION  # factor on the n-grams' share of the weight of a miss
        self.copies_break = False  # whether copies have ended early of late
        self._accepted = FEW_ACCEPTED  # running average of the tokens per forward pass
        self._ngrams = Record()  # of the n-grams, where no cursor was right
        self._any = Record()  # of any offered token being right at the root
        self._resumed = Record()  # of a resumed cursor in followed text being right at the root

    def record_pass(self, tokens: int) -> None:
        """Record that a forward pass brought this many `tokens`."""
        self._accepted += (1.0 - DECAY_ACCEPTED) * (tokens - self._accepted)
        self.copies_break = self._accepted < FEW_ACCEPTED

    def record_any(self, probability: float, right: bool) -> None:
        """Record whether one of the root's predictions, of this total `probability`, was `right`."""
        self._any.add(probability, right)
        self.miss_at_root = self.priors[MISS_AT_ROOT] / self._any.odds_factor(PRIOR_COUNT, MAX_FACTOR_MISS)

    def record_resumed(self, weight: float, hit_prob: float, right: bool) -> None:
        """Record whether a resumed cursor in followed text was `right` at the root: answers that take words from a text
        leave it where an edit goes on.

        `weight`: of all such cursors. `hit_prob`: total probability of the root's predictions. Call it before
        `record_any`.
        """
        probability = min(RESUMED_SURE, weight * (1.0 - hit_prob) / self.miss_at_root)
        self._resumed.add(probability, right)
        factor = min(1.0, self._resumed.odds_factor(PRIOR_COUNT_RESUMED, MAX_FACTOR, PRIOR_COUNT_RESUMED))
        self.at_root[_RESUMED] = [weight * factor for weight in self.priors[_RESUMED]]

    def record_ngrams(self, probability: float, right: bool) -> None:
        """Record whether the n-grams were `right` where no cursor was. `probability`: what they gave to tokens that no
        cursor offered."""
        self._ngrams.add(probability, right)
        ngrams = self._ngrams
        # Above 1, the n-grams would get more than the weight that the cursors leave.
        self.ngram_scale = min(
            1.0, NGRAM_PRECISION * (ngrams.right + PRIOR_COUNT_NGRAMS) / (ngrams.expected + PRIOR_COUNT_NGRAMS)
        )

    def record(self, number: int, probability: float, right: bool) -> None:
        """Record in record `number` whether a prediction of this `probability` was `right`; `refresh` it then."""
        record = self._record(number)
        record.add(probability, right)
        self.records[number * RECORD : (number + 1) * RECORD] = array("d", astuple(record))

    def refresh(self, number: int) -> None:
        """Recompute the weights that record `number` scales."""
        family, kind = divmod(number, RECORDS_PER_FAMILY)
        prior_count_wrong = PRIOR_COUNT_WRONG if kind != SHORT_AT_ROOT else PRIOR_COUNT
        factor = self._record(number).odds_factor(prior_count_wrong, MAX_FACTOR)
        start, end = family * STRIDE, (family + 1) * STRIDE
        start, end = (start + SHORT, end) if kind == LONG else (start, start + SHORT)
        weights = [weight * factor for weight in self.priors[start:end]]
        if kind != SHORT_DEEPER:
            self.at_root[start:end] = weights
        if kind != SHORT_AT_ROOT:
            self.deeper[start:end] = weights

    def _record(self, number: int) -> Record:
        return Record(*self.records[number * RECORD : (number + 1) * RECORD])
