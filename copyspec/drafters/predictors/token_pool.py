"""The pool: what the target found likely at other places, as tokens to draft from."""

from __future__ import annotations

from collections.abc import Sequence

from copyspec.drafters.base import ScoredDraft
from copyspec.drafters.predictors.base import Path, Reliability, Weights, Words, calibrated
from copyspec.tree import DraftTree

ALTERNATIVES = 8
"""Likeliest tokens kept of each place, as in token recycling."""

PRIOR_WEIGHTS = (1.0, 0.5, 0.2, 0.1)
"""What was likely after one other occurrence of the last token is a guess at first, as a match of one token is."""


class PoolPredictor:
    """Says what the target last found likely after the same token: rejected branches and runners-up are not lost.

    Token recycling (Luo et al. 2024, arXiv 2408.08696) keeps this table and drafts a fixed tree from it; the pool of
    lookahead decoding (Fu et al. 2024, arXiv 2402.02057) keeps n-grams of parallel guesses. Here the words join the
    tree of copies and models, with the weight that they have earned in this row. One row fills and reads its own.
    """

    kind = "pool"
    can_read = False
    seconds = 0.0  # of a read: there is none

    def __init__(self, prompt: Sequence[int]) -> None:
        self._last = prompt[-1] if len(prompt) else -1
        self._table: dict[int, Words] = {}  # by the token that they followed
        self._reliability = Reliability()
        self._weights = Weights(PRIOR_WEIGHTS)

    @property
    def hits(self) -> float:
        return self._reliability.hits

    def weight(self, left: float) -> float:
        return self._weights(left)

    def words(self, path: Path) -> Words | None:
        said = self._table.get(path[-1] if path else self._last)
        return None if said is None else calibrated(said, self._reliability)

    def read(self, tree: DraftTree) -> bool:
        """There is nothing to read: what is known is known."""
        return False

    def observe(self, scored: ScoredDraft) -> None:
        """As `Drafter.observe`."""
        self.fill(scored.tree, scored.top(ALTERNATIVES))

    def fill(self, tree: DraftTree, words: Sequence[Words]) -> None:
        """Keeps the target's likeliest tokens after the root and each node of `tree`. [1 + m]"""
        for token, said in zip((self._last, *tree.tokens), words, strict=True):
            if known := self._table.get(token):
                self._reliability.record(known, said[0][0])
            self._table[token] = said

    def follow(self, tokens: Sequence[int]) -> None:
        self._last = tokens[-1]

    def rest(self) -> None:
        pass

    def learn(self, left: float, gradient: float) -> None:
        self._weights.learn(left, gradient)
