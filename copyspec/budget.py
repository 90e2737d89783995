"""The node budget: how large a tree is worth its verification."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Budget:
    """How many nodes a step may carry, and what they cost.

    `costs[n]` is the time of a target call with n draft nodes in units of a call without any
    (`costs[0] == 1`), n = 0..max_nodes. Without costs every tree is as cheap as none.
    """

    max_nodes: int
    costs: Sequence[float] = ()

    def cut(self, scores: Sequence[float]) -> int:
        """Nodes to keep of a tree whose path probabilities are `scores`, in the order in which it was grown.

        Maximises expected tokens per time, (1 + scores[0] + ... + scores[n-1]) / costs[n], over n.
        """
        limit = min(len(scores), self.max_nodes)
        if not self.costs:
            return limit
        expected, best, best_n = 1.0, 1.0 / self.costs[0], 0
        for n in range(1, limit + 1):
            expected += scores[n - 1]
            rate = expected / self.costs[n]
            if rate > best:
                best, best_n = rate, n
        return best_n
