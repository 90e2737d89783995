"""Drafters that use predictors (draft models, heads, token pools, datastores): with copying, or alone.

`growth._mix` mixes the predictions with the copies, `update_weights` learns the weights of the mixture from what was
accepted, and the drafters here call both. A miss is the event that no copied token is right.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence, Set
from dataclasses import replace
from time import perf_counter
from typing import TypeGuard

from copyspec.budget import Budget
from copyspec.drafters.base import Composite
from copyspec.drafters.copying.corpus import CopyCorpus
from copyspec.drafters.copying.drafter import NO_TREE, CopyDrafter, grow
from copyspec.drafters.copying.estimates import Estimates
from copyspec.drafters.copying.growth import Grown, PredictorCalls
from copyspec.drafters.copying.versions import VersionComparisons
from copyspec.drafters.predictors.base import NeuralPredictor, Predictor, paths, walked
from copyspec.drafters.predictors.ngrams import NGrams
from copyspec.sources import Source
from copyspec.tree import EMPTY, ROOT, DraftTree, chain_first_order

MAX_MODEL_PASSES = 5
"""Maximum number of forward passes of a model per draft, the usual length of a small model's chain."""

MIN_GAIN = 0.05
"""While costs are unknown, a model is run again only if this many more accepted tokens are expected from it."""

MIN_READ_SCORE = 0.02
"""A model reads only nodes of at least this score. Others are not worth their columns in its forward pass."""


class GrowingDrafter(Composite):
    """Trees that models read before they are complete."""

    _predictors: Sequence[Predictor]
    _growth: Growth | None = None
    _grown = NO_TREE
    unmeasured = 0.0

    def begin(self, budget: Budget) -> None:
        """See `Drafter.begin`."""
        self._growth = Growth(self._grower(budget), self._predictors, budget)

    def _grower(self, budget: Budget) -> Callable[[Sequence[PredictorCalls]], Grown]:
        """What grows a tree with the predictors' calls."""
        raise NotImplementedError

    def _grow(self, budget: Budget) -> Grown:
        """The tree that has grown to its end; an empty one without nodes."""
        self._grown, self.unmeasured = NO_TREE, 0.0
        if budget.max_nodes > 0:
            if self._growth is None or self._growth.budget is not budget:
                self.begin(budget)
            growth, self._growth = self._growth, None
            assert growth is not None
            self._grown, self.unmeasured = growth.finished()
        return self._grown

    def _learn(self, tokens: Sequence[int]) -> None:
        """Append `tokens` to the output; the predictors learn from what was accepted of the last tree."""
        update_weights(self._grown, self._predictors, tokens)
        for predictor in self._predictors:
            predictor.accept(tokens)
        self._growth = None


class BlendDrafter(GrowingDrafter, CopyDrafter):
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
        self._parts = self._predictors = list(predictors)

    def propose(self, budget: Budget) -> DraftTree:
        """Return a tree of copied and predicted tokens. Predictors are called as long as a call is worth its time."""
        grown = self._grow(budget)
        count = budget.cut(grown.scores)
        if not count:
            return EMPTY
        tree = self._corpus.arranged(grown.tokens, grown.parents, grown.scores, grown.positions, count)
        return _with_drafters(tree, grown, self._predictors)

    def accept(self, tokens: Sequence[int]) -> None:
        """Append `tokens` to the output; copies and predictors learn from what was accepted of the last tree."""
        self._learn(tokens)
        super().accept(tokens)

    def _grower(self, budget: Budget) -> Callable[[Sequence[PredictorCalls]], Grown]:
        self._cursors = cursors = self._tracker.cursors()
        return lambda predictors: grow(self._corpus, cursors, self._estimates, budget, self._ngrams, predictors)


class PredictorDrafter(GrowingDrafter):
    """A tree of predicted tokens without copies; several predictors share one tree (SpecInfer, arXiv 2305.09781)."""

    def __init__(self, predictors: Sequence[Predictor]) -> None:
        self._parts = self._predictors = list(predictors)
        self._empty_corpus, self._estimates = CopyCorpus([], None), Estimates()

    def propose(self, budget: Budget) -> DraftTree:
        """Return the most likely nodes; predictors are called as long as a call is worth its time."""
        grown = self._grow(budget)
        if budget.max_nodes <= 0:
            return EMPTY
        tree = DraftTree(grown.tokens, grown.parents, grown.scores, [None] * len(grown.tokens))
        tree = tree.in_order(chain_first_order(grown.parents, budget.cut(grown.scores)))
        return _with_drafters(tree, grown, self._predictors)

    def accept(self, tokens: Sequence[int]) -> None:
        """See `_learn`."""
        self._learn(tokens)
        self._grown = NO_TREE

    def _grower(self, budget: Budget) -> Callable[[Sequence[PredictorCalls]], Grown]:
        return lambda predictors: grow(self._empty_corpus, [], self._estimates, budget, predictors=predictors)


def _with_drafters(tree: DraftTree, grown: Grown, predictors: Sequence[Predictor]) -> DraftTree:
    """Set `tree.drafters` to the `kind` of the predictor of each node.

    `tree` is a reordered prefix of `grown`, so nodes are matched by token path."""
    if not any([number >= 0 for number in grown.predictor_of]):
        return tree
    kinds = [predictor.kind for predictor in predictors]
    nodes = zip(paths(grown.tokens, grown.parents), grown.predictor_of, strict=True)
    drafters = {path: kinds[number] for path, number in nodes if number >= 0}
    return replace(tree, drafters=[drafters.get(path) for path in paths(tree.tokens, tree.parents)])


class Growth:
    """The growth of one draft: a first tree, then trees with what models predict."""

    def __init__(
        self,
        grow_with: Callable[[Sequence[PredictorCalls]], Grown],
        predictors: Sequence[Predictor],
        budget: Budget,
    ) -> None:
        """Grow the first tree, and enlist the models that are worth their time to read it."""
        self.budget = budget
        self._grow_with = grow_with
        self._calls = [
            PredictorCalls(predictor.predict, predictor.weight, predictor.is_model) for predictor in predictors
        ]
        self._grown = grow_with(self._calls)
        self._models = self._paying(filter(_is_neural, predictors), is_first=True)
        self._tree = _likely_nodes(self._grown)
        for model, price in self._models:
            if (enlist := getattr(model, "enlist", None)) is not None:
                enlist(self._tree, price)

    def finished(self) -> tuple[Grown, float]:
        """Let the models read the tree, and grow it again with their predictions, as long as that pays. Returns the
        last tree, and the seconds that models ran whose time was not known before or was spent for other rows."""
        unmeasured = 0.0
        for _ in range(MAX_MODEL_PASSES):
            ran = []
            for model, _ in self._models:
                is_known, started = model.seconds > 0.0, perf_counter()
                if model.run(self._tree):
                    ran.append(model)
                seconds = perf_counter() - started
                unmeasured += seconds - getattr(model, "share", seconds) if is_known else seconds
            if not ran:
                break
            self._grown = self._grow_with(self._calls)
            self._models = self._paying(ran, is_first=False)
            self._tree = _likely_nodes(self._grown)
        return self._grown, unmeasured

    def _paying(self, models: Iterable[NeuralPredictor], *, is_first: bool) -> list[tuple[NeuralPredictor, float]]:
        """Those whose run pays, and the expected tokens for which it would."""
        prices = [(model, _price(self._grown, model, self.budget, is_first=is_first)) for model in models]
        return [(model, price) for model, price in prices if price is not None]


def _is_neural(predictor: Predictor) -> TypeGuard[NeuralPredictor]:
    return predictor.is_model


def _likely_nodes(grown: Grown) -> DraftTree:
    """The tree that models read: nodes with a score of at least MIN_READ_SCORE."""
    scores = grown.scores
    count = next((node for node, score in enumerate(scores) if score < MIN_READ_SCORE), len(scores))
    return DraftTree(grown.tokens[:count], grown.parents[:count], scores[:count], [None] * count)


def _price(grown: Grown, predictor: NeuralPredictor, budget: Budget, *, is_first: bool) -> float | None:
    """The expected tokens for which a run of the model is worth its time, 0 where costs are unknown; None if it would
    add fewer to the tree.

    The expected gain after a node is the probability that its path is accepted, none of its children is right and the
    model's top token is. In a full tree the new token replaces the least likely node. The pass pays if it takes less
    time per expected token than the tree costs now.
    """
    open_ = [1.0, *grown.scores]
    for node, parent in enumerate(grown.parents):
        open_[parent + 1] -= grown.scores[node]
    nodes = zip([(), *paths(grown.tokens, grown.parents)], open_, strict=True)
    unread = [chance for path, chance in nodes if predictor.predict(path) is None]
    gain = sum(max(predictor.top1_accuracy * chance - grown.least, 0.0) for chance in unread)
    if not (budget.seconds and predictor.seconds):
        return 0.0 if is_first or gain >= MIN_GAIN else None
    count = budget.cut(grown.scores)
    cost = budget.costs[count] if budget.costs else 1.0
    rate = (1.0 + sum(grown.scores[:count])) / cost
    price = rate * predictor.seconds / budget.seconds
    if is_first and gain <= price:
        predictor.skip()
    return price if gain > price else None


def update_weights(grown: Grown, predictors: Sequence[Predictor], tokens: Sequence[int]) -> None:
    """Adapt the predictors' weights beside the copies, from the mixtures along the output's new `tokens`."""
    mixes = {node: (miss_weight, copies, numbers) for node, miss_weight, copies, numbers in grown.mixes}
    along = [ROOT, *walked(grown.tokens, grown.parents, tokens[:-1])]
    for index, (node, token) in enumerate(zip(along, tokens, strict=False)):
        if node not in mixes:
            continue
        miss_weight, copies, numbers = mixes[node]
        if not copies:
            continue
        path = tuple(tokens[:index])
        active = [(predictors[number], predictors[number].predict(path) or ()) for number in numbers]
        whole = sum(copies.values()) + miss_weight
        miss_prob = miss_weight / whole
        weights = [model.weight(miss_prob) for model, _ in active]
        whole += sum(weights)
        weights = [weight * (1.0 + miss_weight / sum(weights)) for weight in weights]
        shares = [weight * dict(probs).get(token, 0.0) for weight, (_, probs) in zip(weights, active, strict=True)]
        right = copies.get(token, 0.0) + sum(shares)
        if right > 0:
            for (predictor, _), weight, share in zip(active, weights, shares, strict=True):
                predictor.update_weight(miss_prob, share / right - weight / whole)
