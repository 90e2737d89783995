"""A mean number of nodes a call, in place of the largest one: trees are large where that pays and small elsewhere."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from copyspec.budget import Budget

FIRST_SCORE = 0.2
"""What a node must promise in the first call."""

PATIENCE, SHARE = 8.0, 0.02
"""A node must promise 1/e of what it had to for every so many calls' nodes that have been saved: enough for a few full
trees, and with time for long runs of them, a share of the calls so far."""


@dataclass(frozen=True, slots=True)
class PromisingBudget(Budget):
    """A budget that keeps a node for the tokens it promises; what calls cost does not count."""

    least_score: float = 0.0

    def cut(self, scores: Sequence[float]) -> int:
        """The n that maximises scores[0] + ... + scores[n-1] - n * least_score."""
        total = best = 0.0
        count = 0
        for n, score in enumerate(scores[: self.max_nodes], start=1):
            total += score - self.least_score
            if total >= best:
                best, count = total, n
        return count


class MeanLimit:
    """Budgets whose trees hold at most `mean` nodes a call on average, and `most` in any call.

    To gain the most tokens from a mean number of nodes, the last node of every tree should promise the same (the
    multiplier of the constraint). That least score follows what has been saved: a call that uses fewer nodes than
    the mean leaves the rest to later ones, and the more is left, the less a node needs to promise. At no time have
    the calls so far used more than the mean. One instance for all rows that the mean is taken over.
    """

    def __init__(self, mean: float, most: int) -> None:
        self._mean, self._most = mean, most
        self._calls = 0
        self._saved = 0.0  # nodes that the calls so far were allowed and did not use
        self._lent = -math.log(FIRST_SCORE) * PATIENCE * mean  # counts as saved, less by a node with every call

    def budget(self) -> Budget:
        """Of the next call."""
        allowed = math.floor(self._saved + self._mean + 1e-9)  # 1e-9: means that are no whole numbers add up inexactly
        unit = self._mean * max(PATIENCE, SHARE * self._calls)
        least = math.exp(-(self._saved + max(0.0, self._lent - self._calls)) / unit)
        return PromisingBudget(min(self._most, allowed), least_score=least)

    def observe(self, nodes: int) -> None:
        """The call's tree held `nodes` nodes."""
        self._calls += 1
        self._saved += self._mean - nodes
