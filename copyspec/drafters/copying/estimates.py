"""Estimates: how much a cursor's word counts, from measured priors and from this row's own record."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from copyspec.drafters.copying import priors, priors_found
from copyspec.drafters.copying.context import COMMON_TOKENS
from copyspec.drafters.copying.situations import COMMON, EDIT_START, NONE_AT_ROOT, NONE_DEEPER, STRIDE
from copyspec.drafters.copying.substitutes import REPEATED

PRIOR_COUNT = 6.0  # pseudo-count of the prior, in right predictions
PRIOR_COUNT_WRONG = 3.0  # in wrong ones, which are few and tell most; short matches at the root take PRIOR_COUNT
DECAY = 0.99  # of a record, for each later prediction
MAX_FACTOR = 6.0  # by which a record may raise or lower the odds
MAX_FACTOR_NONE = 4.0  # the same, of the odds that no cursor is right
NGRAM_PRECISION = 0.9
"""Precision of the word n-grams before anything is known of this output."""
PRIOR_COUNT_WORDS = 3.0  # pseudo-count of NGRAM_PRECISION
FEW_ACCEPTED = 4.0  # tokens of a pass on average, below which copies break off soon
DECAY_ACCEPTED = 0.8  # of that average, for each later pass

SHORT = 3
"""Matches below this length keep records of their own, at the root and deeper: a short one at the root comes after a
difference, deeper it was joined to a draft, and neither says how long copies hold once they match."""

SHORT_AT_ROOT, SHORT_DEEPER, LONG = range(3)
RECORDS_PER_FAMILY = 3


def record_number(after: int, *, is_root: bool) -> int:
    """The record of a first choice whose cursor would, had it been right, be in the situation `after`.

    `is_root`: it was a child of the root.
    """
    family, length = divmod(after, STRIDE)
    return family * RECORDS_PER_FAMILY + (LONG if length > SHORT else SHORT_AT_ROOT if is_root else SHORT_DEEPER)


RECORD_AT_ROOT = [record_number(after, is_root=True) for after in range(EDIT_START * STRIDE)]
RECORD_DEEPER = [record_number(after, is_root=False) for after in range(EDIT_START * STRIDE)]
"""Record numbers by the situation after a right token, which is always a matched one: below EDIT_START."""


@dataclass(slots=True)
class Record:
    """How often predictions were right, and how often they should have been. Earlier ones count less and less."""

    right: float = 0.0
    wrong: float = 0.0
    expected: float = 0.0  # the sum of their probabilities
    doubted: float = 0.0  # the sum of what was left to others

    def add(self, probability: float, right: bool) -> None:
        """A prediction that held `probability` was `right` or not."""
        self.right = self.right * DECAY + right
        self.wrong = self.wrong * DECAY + (not right)
        self.expected = self.expected * DECAY + probability
        self.doubted = self.doubted * DECAY + 1.0 - probability

    def odds_factor(self, prior_count_wrong: float, limit: float) -> float:
        """Factor that the odds of a prediction are to be given: those that it had over those expected."""
        hits = (self.right + PRIOR_COUNT) / (self.expected + PRIOR_COUNT)
        misses = (self.wrong + prior_count_wrong) / (self.doubted + prior_count_wrong)
        return min(limit, max(1.0 / limit, hits / misses))


class Estimates:
    """The weights of one row. They are ratios: the event that no cursor is right weighs about 1.

    Each family of situations keeps records of how often its first choice was right and how often it should have
    been, and multiplies its weights by what they say. `found`: the row's sources were found in its prompt, and nobody
    said what may be copied.
    """

    def __init__(self, *, found: bool = False) -> None:
        fitted = priors_found if found else priors
        self._priors = fitted.PRIORS
        self.at_root = list(self._priors)  # by situation, for the tree's root
        self.deeper = list(self._priors)  # the same for its other nodes
        self.crowds: Sequence[float] = fitted.CROWDS
        self.repeated: Sequence[float] = REPEATED  # see `substitutes`
        self.none_at_root = self._priors[NONE_AT_ROOT]
        self.none_deeper = self._priors[NONE_DEEPER]
        self.common = [self._priors[COMMON * STRIDE + rank // 2] for rank in range(COMMON_TOKENS)]  # by rank
        self.records = [Record() for _ in range(EDIT_START * RECORDS_PER_FAMILY)]  # see `record_number`
        self.language = NGRAM_PRECISION  # factor of what n-grams say comes next where no cursor is right
        self.copies_break = False  # whether copies broke off soon of late
        self._accepted = FEW_ACCEPTED  # tokens of a pass, the later ones counting more
        self._words = Record()  # of what they said there
        self._any = Record()  # at the root, of any cursor being right

    def record_pass(self, tokens: int) -> None:
        """A pass brought so many `tokens`."""
        self._accepted += (1.0 - DECAY_ACCEPTED) * (tokens - self._accepted)
        self.copies_break = self._accepted < FEW_ACCEPTED

    def record_any(self, probability: float, right: bool) -> None:
        """All that was predicted at the root held `probability`, and one of them was `right` or none."""
        self._any.add(probability, right)
        self.none_at_root = self._priors[NONE_AT_ROOT] / self._any.odds_factor(PRIOR_COUNT, MAX_FACTOR_NONE)

    def record_words(self, probability: float, right: bool) -> None:
        """Where none of the cursors was right, the n-grams had said so much of the tokens that none of them offered."""
        self._words.add(probability, right)
        words = self._words
        # Above 1 the words would take more than what the cursors leave them.
        self.language = min(
            1.0, NGRAM_PRECISION * (words.right + PRIOR_COUNT_WORDS) / (words.expected + PRIOR_COUNT_WORDS)
        )

    def refresh(self, number: int) -> None:
        """Recomputes the weights that record `number` scales."""
        family, kind = divmod(number, RECORDS_PER_FAMILY)
        factor = self.records[number].odds_factor(
            PRIOR_COUNT_WRONG if kind != SHORT_AT_ROOT else PRIOR_COUNT, MAX_FACTOR
        )
        start, end = family * STRIDE, (family + 1) * STRIDE
        start, end = (start + SHORT, end) if kind == LONG else (start, start + SHORT)
        weights = [weight * factor for weight in self._priors[start:end]]
        if kind != SHORT_DEEPER:
            self.at_root[start:end] = weights
        if kind != SHORT_AT_ROOT:
            self.deeper[start:end] = weights
