"""Estimates: how much a cursor's word counts, from measured priors and from this row's own record."""

from __future__ import annotations

from collections.abc import Sequence

from copyspec.drafters.priors import CROWDS, PRIORS
from copyspec.drafters.situations import COMMON, NONE_AT_ROOT, NONE_DEEPER, STRIDE

TRUST = 6.0  # predictions after which a family's own record counts as much as its prior
DECAY = 0.97  # of the record, for each later prediction of the family
MOST = 4.0  # factor by which a record may raise or lower the odds


class Estimates:
    """The weights of one row. They are ratios: the event that no cursor is right weighs about 1.

    Each family of situations keeps a record of how often its first choice was right and how often it should have
    been. The odds of what happened over the odds of what was expected multiply its weights.
    """

    def __init__(self) -> None:
        self.weights = list(PRIORS)  # by situation
        self.crowds: Sequence[float] = CROWDS
        self.none_at_root = PRIORS[NONE_AT_ROOT]
        self.none_deeper = PRIORS[NONE_DEEPER]
        self.common = [PRIORS[COMMON * STRIDE + rank // 2] for rank in range(2 * STRIDE)]  # by rank
        self._right = [0.0] * COMMON  # by family, predictions that were right, decayed
        self._wrong = [0.0] * COMMON
        self._expected = [0.0] * COMMON  # the sum of their probabilities
        self._doubted = [0.0] * COMMON

    def record(self, family: int, probability: float, right: bool) -> None:
        """A prediction of `family` that held `probability` was `right` or not."""
        self._right[family] = self._right[family] * DECAY + right
        self._wrong[family] = self._wrong[family] * DECAY + (not right)
        self._expected[family] = self._expected[family] * DECAY + probability
        self._doubted[family] = self._doubted[family] * DECAY + 1.0 - probability

    def refresh(self, family: int) -> None:
        """Puts the family's record into its weights."""
        hits = (self._right[family] + TRUST) / (self._expected[family] + TRUST)
        misses = (self._wrong[family] + TRUST) / (self._doubted[family] + TRUST)
        factor = min(MOST, max(1.0 / MOST, hits / misses))
        start = family * STRIDE
        self.weights[start : start + STRIDE] = [weight * factor for weight in PRIORS[start : start + STRIDE]]
