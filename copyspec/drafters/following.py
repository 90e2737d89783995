"""Drafts a given text that the output is expected to repeat, such as the old text after an edit of its prefix."""

from __future__ import annotations

from collections.abc import Sequence

from copyspec.budget import Budget
from copyspec.drafters.base import Drafter
from copyspec.tree import ROOT, DraftTree

SURE = 0.9
"""Estimated probability that the next expected token is accepted, given that all before it were."""


class FollowingDrafter:
    """Drafts the expected tokens as long as the output follows them, then the tree of `inner` (None: no draft)."""

    def __init__(self, inner: Drafter | None = None) -> None:
        self._inner = inner
        self._expected: list[int] = []

    def expect(self, tokens: Sequence[int]) -> None:
        """Set the tokens that the output is expected to continue with."""
        self._expected = list(tokens)

    def propose(self, budget: Budget) -> DraftTree:
        """Return a chain of the expected tokens, cut where more would not be worth their cost, or `inner`'s tree."""
        tokens = self._expected[: budget.max_nodes]
        scores = [SURE ** (depth + 1) for depth in range(len(tokens))]
        count = budget.cut(scores)
        if count:
            return DraftTree(tokens[:count], range(ROOT, count - 1), scores[:count], [None] * count)
        return self._inner.propose(budget) if self._inner is not None else DraftTree()

    def accept(self, tokens: Sequence[int]) -> None:
        """Append `tokens` to the output; the expected tokens are dropped at the first difference."""
        same = self._expected[: len(tokens)] == list(tokens)
        self._expected = self._expected[len(tokens) :] if same else []
        if self._inner is not None:
            self._inner.accept(tokens)
