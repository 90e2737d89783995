"""A draft model's chain without copies, as SpS and the assistant models of transformers draft it: the baseline of
`benchmarks.drafts.models`."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter

from copyspec.budget import Budget
from copyspec.drafters.predictors.base import Path, RowContext
from copyspec.drafters.predictors.language_model import DraftModel, ModelPredictor
from copyspec.drafters.predictors.text_bridge import CHAIN_TOKENS, CONFIDENCE
from copyspec.tree import EMPTY, ROOT, DraftTree


class LanguageModelDrafter:
    """Drafts a chain of the model's own choices."""

    def __init__(
        self,
        model: DraftModel,
        context: RowContext,
        *,
        tokens: int = CHAIN_TOKENS,
        confidence: float = CONFIDENCE,
    ) -> None:
        self._predictor = _ChainPredictor(model, context)
        self._tokens, self._confidence = tokens, confidence

    def propose(self, budget: Budget) -> DraftTree:
        """Return a chain of at most `tokens` nodes, which ends early after a token of low confidence."""
        path: Path = ()
        scores: list[float] = []
        score = 1.0
        while len(path) < min(self._tokens, budget.max_nodes) and self._predictor.read_after(path):
            probs = self._predictor.predict(path)
            if not probs:
                break
            token, probability = probs[0]
            path, score = (*path, token), score * probability
            scores.append(score)
            if probability < self._confidence:
                break
        size = budget.cut(scores)
        if not size:
            return EMPTY
        return DraftTree(path[:size], range(ROOT, size - 1), scores[:size], [None] * size, drafters=["model"] * size)

    def accept(self, tokens: Sequence[int]) -> None:
        """Append `tokens` to the output."""
        self._predictor.accept(tokens)


class _ChainPredictor(ModelPredictor):
    def read_after(self, path: Path) -> bool:
        """Compute the predictions after `path` alone. Cheap where all but its last token are in the cache."""
        started = perf_counter()
        scored = self._reader.read(path, EMPTY)
        if scored is None:
            return False
        self._model.took(perf_counter() - started, self._reader.columns)
        self._predicted[path] = scored[0]
        return True
