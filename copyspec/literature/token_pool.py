"""The token pool: drafts the tokens that the target found likely after earlier occurrences of the last token."""

from __future__ import annotations

from collections.abc import Sequence
from math import isnan

from copyspec.drafters.base import ScoredDraft
from copyspec.drafters.predictors.base import Path, Reliability, RowContext, TokenProbs, Weights, calibrated
from copyspec.tree import DraftTree

ALTERNATIVES = 8
"""Top tokens kept per table entry, as in token recycling."""

PRIOR_WEIGHTS = (1.0, 0.5, 0.2, 0.1)
"""Initial weights beside copies: as low as for a copy found by a match of one token."""


class Pool:
    """For `drafter=`: tokens that the target itself gave a high probability earlier, beside copies `["auto", Pool()]`.

    Each row has its own pool: drafts must not reveal another user's output, not even by timing.
    """

    def predictor(self, row: RowContext) -> PoolPredictor:
        """The predictor of one row."""
        return PoolPredictor(row.prompt)


class PoolPredictor:
    """Predicts the target's top tokens after the last occurrence of the same token, rejected drafts included.

    Token recycling (Luo et al. 2024, arXiv 2408.08696) keeps this table and drafts a fixed tree from it; the pool of
    lookahead decoding (Fu et al. 2024, arXiv 2402.02057) keeps n-grams of parallel guesses. Here the predictions join
    the tree of copies and models, with a weight learned in this row. Each row has its own table.
    """

    kind = "pool"
    is_model = False

    def __init__(self, prompt: Sequence[int]) -> None:
        self._last = prompt[-1] if len(prompt) else -1
        self._table: dict[int, TokenProbs] = {}  # by the token before
        self._reliability = Reliability()
        self._weights = Weights(PRIOR_WEIGHTS)

    def weight(self, miss_prob: float) -> float:
        return self._weights(miss_prob)

    def predict(self, path: Path) -> TokenProbs | None:
        predicted = self._table.get(path[-1] if path else self._last)
        return None if predicted is None else calibrated(predicted, self._reliability)

    def observe(self, scored: ScoredDraft) -> None:
        """As `Drafter.observe`."""
        self.fill(scored.tree, scored.top(ALTERNATIVES))

    def fill(self, tree: DraftTree, probs: Sequence[TokenProbs]) -> None:
        """Store the target's top tokens after the root and each node of `tree`. `probs`: [1 + m]"""
        for token, predicted in zip((self._last, *tree.tokens), probs, strict=True):
            if isnan(predicted[0][1]):  # as after a wrong draft in half precision, where the output's own are not
                continue
            if known := self._table.get(token):
                self._reliability.record(known, predicted[0][0])
            self._table[token] = predicted

    def accept(self, tokens: Sequence[int]) -> None:
        self._last = tokens[-1]

    def update_weight(self, miss_prob: float, gradient: float) -> None:
        self._weights.update(miss_prob, gradient)
