"""A predictor that nobody asked for: an error ends its drafts for good, is logged once, and is never the caller's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from copyspec.drafters.base import ScoredDraft
from copyspec.drafters.predictors.base import Path, TokenProbs
from copyspec.tree import DraftTree


class UnaskedPredictor:
    """Passes everything on to a predictor that reads hidden states, until that fails."""

    kind, is_model = "heads", True

    def __init__(self, make: Callable[[], Any], lose: Callable[[Exception], None]) -> None:
        """`lose` is called with the error."""
        self._lose, self._made = lose, None
        self._made = self._tried(make, None)

    @property
    def observes(self) -> bool:
        return self._made is not None

    @property
    def wants_states(self) -> bool:
        return self._made is not None

    @property
    def wanted_layers(self) -> Sequence[int]:
        return () if self._made is None else self._made.wanted_layers

    @property
    def top1_accuracy(self) -> float:
        return 0.0 if self._made is None else self._made.top1_accuracy

    @property
    def seconds(self) -> float:
        return 0.0 if self._made is None else self._made.seconds

    @property
    def share(self) -> float:
        return 0.0 if self._made is None else self._made.share

    def weight(self, miss_prob: float) -> float:
        return 1.0 if self._made is None else self._made.weight(miss_prob)

    def predict(self, path: Path) -> TokenProbs | None:
        return () if self._made is None else self._made.predict(path)

    def enlist(self, tree: DraftTree, price: float = 0.0) -> None:
        if (made := self._made) is not None:
            self._tried(lambda: made.enlist(tree, price), None)

    def run(self, tree: DraftTree) -> bool:
        made = self._made
        return made is not None and bool(self._tried(lambda: made.run(tree), False))

    def skip(self) -> None:
        if self._made is not None:
            self._made.skip()

    def observe(self, scored: ScoredDraft) -> None:
        if (made := self._made) is not None:
            self._tried(lambda: made.observe(scored), None)

    def accept(self, tokens: Sequence[int]) -> None:
        if (made := self._made) is not None:
            self._tried(lambda: made.accept(tokens), None)

    def update_weight(self, miss_prob: float, gradient: float) -> None:
        if self._made is not None:
            self._made.update_weight(miss_prob, gradient)

    def _tried(self, call: Callable[[], Any], otherwise: object) -> Any:
        try:
            return call()
        except Exception as error:
            self._made = None
            self._lose(error)
            return otherwise
