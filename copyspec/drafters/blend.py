"""Drafters that use predictors (draft models, heads, token pools, datastores): with copying, or alone."""

from __future__ import annotations

from collections.abc import Collection, Sequence, Set
from dataclasses import replace

from copyspec.budget import Budget
from copyspec.drafters import base
from copyspec.drafters.base import ScoredDraft
from copyspec.drafters.copying.corpus import CopyCorpus
from copyspec.drafters.copying.drafter import NO_TREE, CopyDrafter, grow
from copyspec.drafters.copying.estimates import Estimates
from copyspec.drafters.copying.growth import Grown, PredictorCalls
from copyspec.drafters.copying.versions import VersionComparisons
from copyspec.drafters.mixture import grow_with_models, update_weights
from copyspec.drafters.predictors.base import Predictor, paths
from copyspec.drafters.predictors.ngrams import NGrams
from copyspec.sources import Source
from copyspec.tree import EMPTY, DraftTree, chain_first_order


class _Observing:
    """Passes the target's logits on to the predictors that observe them."""

    _predictors: list[Predictor]

    @property
    def observes(self) -> bool:
        """As `Drafter.observes`: only a pool or heads need the logits."""
        return any(map(base.observes, self._predictors))

    @property
    def wants_states(self) -> bool:
        """As `Drafter.wants_states`."""
        return any(map(base.wants_states, self._predictors))

    @property
    def wanted_layers(self) -> Sequence[int]:
        """As `Drafter.wanted_layers`."""
        return sorted({layer for each in self._predictors for layer in base.wanted_layers(each)})

    def observe(self, scored: ScoredDraft) -> None:
        """Pass `scored` to every predictor that observes."""
        for predictor in self._predictors:
            if base.observes(predictor):
                predictor.observe(scored)  # type: ignore[attr-defined]


class BlendDrafter(_Observing, CopyDrafter):
    """Staged drafting: copies make a first tree, and the predictors add alternatives after each of its nodes and
    re-estimate the copied tokens. Copying then continues after the tokens that the predictors added.

    Staged speculative decoding (Spector and Re 2023, arXiv 2308.04623) and cascades (Chen et al. 2023, arXiv
    2312.11462) let a small model verify a copied draft before the large one does. Here the small model's probabilities
    are mixed with those of the copies instead of overruling them, with weights learned from their accuracy so far.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        predictors: Sequence[Predictor],
        *,
        eos: Collection[int] | int | None,
        continues_prompt: bool = True,
        ngrams: NGrams | None = None,
        breaks: Set[int] = frozenset(),
        comparisons: VersionComparisons | None = None,
    ) -> None:
        super().__init__(
            sources,
            eos=eos,
            continues_prompt=continues_prompt,
            ngrams=ngrams,
            breaks=breaks,
            comparisons=comparisons,
        )
        self._predictors = list(predictors)

    def propose(self, budget: Budget) -> DraftTree:
        """Return a tree of copied and predicted tokens. Predictors are called as long as a call is worth its time."""
        self._cursors, self._grown = [], NO_TREE
        if budget.max_nodes <= 0:
            return EMPTY
        self._cursors = self._tracker.cursors()

        def grow_with(predictors: Sequence[PredictorCalls]) -> Grown:
            return grow(self._corpus, self._cursors, self._estimates, budget, self._ngrams, predictors)

        self._grown = grown = grow_with_models(grow_with, self._predictors, budget)
        count = budget.cut(grown.scores)
        if not count:
            return EMPTY
        tree = self._corpus.arranged(grown.tokens, grown.parents, grown.scores, grown.positions, count)
        return _with_drafters(tree, grown, self._predictors)

    def accept(self, tokens: Sequence[int]) -> None:
        """Append `tokens` to the output; copies and predictors learn from what was accepted of the last tree."""
        update_weights(self._grown, self._predictors, tokens)
        for predictor in self._predictors:
            predictor.accept(tokens)
        super().accept(tokens)


class PredictorDrafter(_Observing):
    """A tree of predicted tokens without copies; several predictors share one tree (SpecInfer, arXiv 2305.09781)."""

    def __init__(self, predictors: Sequence[Predictor]) -> None:
        self._predictors = list(predictors)
        self._empty_corpus, self._estimates = CopyCorpus([], None), Estimates()
        self._grown = NO_TREE

    def propose(self, budget: Budget) -> DraftTree:
        """Return the most likely nodes; predictors are called level by level as long as a call is worth its time."""
        self._grown = NO_TREE
        if budget.max_nodes <= 0:
            return EMPTY

        def grow_with(predictors: Sequence[PredictorCalls]) -> Grown:
            return grow(self._empty_corpus, [], self._estimates, budget, predictors=predictors)

        self._grown = grown = grow_with_models(grow_with, self._predictors, budget)
        tree = DraftTree(grown.tokens, grown.parents, grown.scores, [None] * len(grown.tokens))
        tree = tree.in_order(chain_first_order(grown.parents, budget.cut(grown.scores)))
        return _with_drafters(tree, grown, self._predictors)

    def accept(self, tokens: Sequence[int]) -> None:
        """Append `tokens` to the output; the predictors learn from what was accepted of the last tree."""
        update_weights(self._grown, self._predictors, tokens)
        for predictor in self._predictors:
            predictor.accept(tokens)
        self._grown = NO_TREE


def _with_drafters(tree: DraftTree, grown: Grown, predictors: Sequence[Predictor]) -> DraftTree:
    """Set `tree.drafters` to the `kind` of the predictor of each node.

    `tree` is a reordered prefix of `grown`, so nodes are matched by token path."""
    if not any([drafter >= 0 for drafter in grown.drafters]):
        return tree
    kinds = [each.kind for each in predictors]
    nodes = zip(paths(grown.tokens, grown.parents), grown.drafters, strict=True)
    drafters = {path: kinds[drafter] for path, drafter in nodes if drafter >= 0}
    return replace(tree, drafters=[drafters.get(path) for path in paths(tree.tokens, tree.parents)])
