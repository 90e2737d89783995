"""A mean number of nodes a call, in place of the largest one: trees are large where that pays and small elsewhere."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from copyspec.budget import Budget

FIRST_SCORE = 0.2
"""What a node must promise in the first call."""

SPENT, HORIZON = 0.95, 500
"""Share of the mean that is aimed at, and in how many calls what has been saved is to be spent: together they keep
some two hundred nodes for runs of large trees where the mean is eight."""

START, LEAST_GAIN = 50, 0.001
"""The least score follows the mean of all calls so far, as if START had come before, and later of the last 1000: if it
followed faster, trees would be large where nothing is to be gained only because nothing was before."""


@dataclass(frozen=True, slots=True)
class PromisingBudget(Budget):
    """A budget that keeps a node for the tokens it promises; what calls cost does not count."""

    allowed: int = 0  # nodes, whatever they promise
    limit: MeanLimit = field(kw_only=True)  # is told how many promise enough

    def cut(self, scores: Sequence[float]) -> int:
        """The n that maximises scores[0] + ... + scores[n-1] - n * least score, or what is allowed if that is less."""
        least = self.limit.least_score
        total = best = 0.0
        count = 0
        for n, score in enumerate(scores[: self.max_nodes], start=1):
            total += score - least
            if total >= best:
                best, count = total, n
        self.limit.asked = count
        return min(count, self.allowed)


class MeanLimit:
    """Budgets whose trees hold at most `mean` nodes a call on average, and `most` in any call.

    To gain the most tokens from a mean number of nodes, the last node of every tree should promise the same (the
    multiplier of the constraint). That least score is found by stochastic approximation (Robbins and Monro 1951):
    it rises with every tree that asks for more than the mean and falls with every other. Apart from that the calls so
    far have at no time used more than the mean. One instance for all rows that the mean is taken over.
    """

    def __init__(self, mean: float, most: int) -> None:
        self._mean, self._most = mean, most
        self._calls = 0
        self._saved = 0.0  # nodes that the calls so far were allowed and did not use
        self._log = math.log(FIRST_SCORE)
        self.asked = 0  # nodes of the last tree that promised enough

    @property
    def least_score(self) -> float:
        """What a node must promise now."""
        return math.exp(self._log)

    def budget(self) -> Budget:
        """Of the next call."""
        self.asked = 0
        allowed = math.floor(self._saved + self._mean + 1e-9)  # 1e-9: means that are no whole numbers add up inexactly
        return PromisingBudget(self._most, allowed=max(allowed, 0), limit=self)

    def observe(self, nodes: int) -> None:
        """The call's tree held `nodes` nodes."""
        gain = max(1 / (START + self._calls), LEAST_GAIN)
        aim = SPENT * self._mean + self._saved / HORIZON
        self._log = min(self._log + gain * (self.asked - aim) / self._mean, 0.0)
        self._calls += 1
        self._saved += self._mean - nodes
