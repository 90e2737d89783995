"""The drafter's seam: one verb to propose, one to be told what was kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from copyspec.budget import Budget
from copyspec.tree import DraftTree


class Drafter(Protocol):
    """Drafts for one row. Made with the row's prompt and sources, it follows the output token by token.

    What it drafts never changes the output: the target's own token, noise included, decides at every node. A drafter
    that copies knows nothing of that noise; a model may draw with it (`LanguageModelDrafter` says why that is exact).
    """

    def propose(self, budget: Budget) -> DraftTree:
        """A tree of continuations of the output so far, at most `budget.max_nodes` nodes. It may be empty."""
        ...

    def accept(self, tokens: Sequence[int]) -> None:
        """Tells which tokens joined the output since the last call: the accepted path and the target's own token."""
        ...
