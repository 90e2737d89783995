"""Drafts an expected text: what the output would be if nothing that was changed makes a difference."""

from __future__ import annotations

from collections.abc import Sequence

from copyspec.budget import Budget
from copyspec.drafters.base import Drafter
from copyspec.tree import ROOT, DraftTree

SURE = 0.9
"""Estimated probability that the next expected token is right, as long as all before it were."""


class FollowingDrafter:
    """Drafts the expected tokens as long as the output follows them, and then as `inner` does; None: nothing."""

    def __init__(self, inner: Drafter | None = None) -> None:
        self._inner = inner
        self._expected: list[int] = []

    def expect(self, tokens: Sequence[int]) -> None:
        """The output is expected to go on with `tokens`."""
        self._expected = list(tokens)

    def propose(self, budget: Budget) -> DraftTree:
        """A chain of the expected tokens, as long as is worth its cost, or `inner`'s tree."""
        tokens = self._expected[: budget.max_nodes]
        scores = [SURE ** (depth + 1) for depth in range(len(tokens))]
        count = budget.cut(scores)
        if count:
            return DraftTree(tokens[:count], range(ROOT, count - 1), scores[:count], [None] * count)
        return self._inner.propose(budget) if self._inner is not None else DraftTree()

    def accept(self, tokens: Sequence[int]) -> None:
        """Follows the output; the expectation ends where it was wrong."""
        same = self._expected[: len(tokens)] == list(tokens)
        self._expected = self._expected[len(tokens) :] if same else []
        if self._inner is not None:
            self._inner.accept(tokens)
