"""Drafters that use predictors (draft models, heads, token pools, datastores): with copying, or alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import replace

from copyspec.budget import Budget
from copyspec.drafters.base import ScoredDraft, observes, wanted_layers, wants_states
from copyspec.drafters.copying import growth
from copyspec.drafters.copying.drafter import CopyDrafter
from copyspec.drafters.copying.growth import Grown
from copyspec.drafters.predictors.base import Path, Predictor, paths
from copyspec.drafters.predictors.mixture import Blended, Candidate, learn, no_copies, read_on
from copyspec.drafters.predictors.ngrams import NGrams
from copyspec.sources import Source
from copyspec.tree import EMPTY, ROOT, DraftTree


class _Observing:
    """Passes the target's logits on to the predictors that observe them."""

    _predictors: list[Predictor]

    @property
    def observes(self) -> bool:
        """As `Drafter.observes`: only a pool or heads need the logits."""
        return any(map(observes, self._predictors))

    @property
    def wants_states(self) -> bool:
        """As `Drafter.wants_states`."""
        return any(map(wants_states, self._predictors))

    @property
    def wanted_layers(self) -> Sequence[int]:
        """As `Drafter.wanted_layers`."""
        return sorted({layer for each in self._predictors for layer in wanted_layers(each)})

    def observe(self, scored: ScoredDraft) -> None:
        """Pass `scored` to every predictor that observes."""
        for predictor in self._predictors:
            if observes(predictor):
                predictor.observe(scored)  # type: ignore[attr-defined]


class BlendDrafter(_Observing, CopyDrafter):
    """Staged drafting: copies make a first tree, and the predictors add alternatives after each of its nodes and
    re-estimate the copied tokens. Copying then continues behind the tokens that the predictors added.

    Staged speculative decoding (Spector and Re 2023, arXiv 2308.04623) and cascades (Chen et al. 2023, arXiv
    2312.11462) let a small model verify a copied draft before the large one does. Here the small model's probabilities
    are mixed with those of the copies instead of overruling them, with weights learned from their accuracy so far.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        predictors: Sequence[Predictor],
        *,
        eos: int | None,
        continues_prompt: bool = True,
        ngrams: NGrams | None = None,
        breaks: Set[int] = frozenset(),
    ) -> None:
        super().__init__(sources, eos=eos, continues_prompt=continues_prompt, ngrams=ngrams, breaks=breaks)
        self._predictors = list(predictors)
        self._blended = Blended()

    def propose(self, budget: Budget) -> DraftTree:
        """Return a tree of copied and predicted tokens. Predictors are called as long as a call is worth its time."""
        self._blended = Blended()
        self._cursors, self._grown = [], Grown()
        if budget.max_nodes <= 0:
            return EMPTY
        self._cursors = self._tracker.cursors()
        self._blended = read_on(self._copy_candidates, self._predictors, budget)
        self._grown = self._blended.grown
        return _with_makers(self._tree(self._grown, budget.cut(self._grown.scores)), self._blended.makers)

    def accept(self, tokens: Sequence[int]) -> None:
        """Append `tokens` to the output; copies and predictors learn from what was accepted of the last tree."""
        learn(self._blended, tokens)
        for predictor in self._predictors:
            predictor.follow(tokens)
        super().accept(tokens)
        self._blended = Blended()

    def _copy_candidates(self, grown: Grown, node: int) -> tuple[dict[int, Candidate], float]:
        if node == ROOT:
            heap, total = growth.roots(self._corpus, self._cursors, self._estimates, grown, self._ngrams)
            return {
                token: (-negative_score, position, cursors) for negative_score, _, token, _, position, cursors in heap
            }, total
        # A child's score is the probability of its whole path: divided by its parent's score, it is conditional.
        parent_cursors, parent_score = grown.cursors[node], grown.scores[node]
        heap, total = growth.children(self._corpus, parent_cursors, self._estimates, grown, node, self._ngrams)
        return {
            token: (-negative_score / parent_score, position, cursors)
            for negative_score, _, token, _, position, cursors in heap
        }, total


class PredictorDrafter(_Observing):
    """A tree of predicted tokens without copies; several predictors share one tree (SpecInfer, arXiv 2305.09781)."""

    def __init__(self, predictors: Sequence[Predictor]) -> None:
        self._predictors = list(predictors)
        self._blended = Blended()

    def propose(self, budget: Budget) -> DraftTree:
        """Return the most likely nodes; predictors are called level by level as long as a call is worth its time."""
        self._blended = Blended()
        if budget.max_nodes <= 0:
            return EMPTY
        self._blended = read_on(no_copies, self._predictors, budget)
        grown = self._blended.grown
        return _with_makers(chain_first(grown, budget.cut(grown.scores)), self._blended.makers)

    def accept(self, tokens: Sequence[int]) -> None:
        """Append `tokens` to the output; the predictors learn from what was accepted of the last tree."""
        learn(self._blended, tokens)
        for predictor in self._predictors:
            predictor.follow(tokens)
        self._blended = Blended()


def chain_first(grown: Grown, count: int) -> DraftTree:
    """Return the first `count` nodes as a tree that stores its most likely chain first, without origins."""
    chain, node = [], ROOT
    for child in range(count):
        if grown.parents[child] == node:
            chain.append(child)
            node = child
    on_chain = set(chain)
    order = chain + [node for node in range(count) if node not in on_chain]
    place = {ROOT: ROOT, **{node: index for index, node in enumerate(order)}}
    return DraftTree(
        [grown.tokens[node] for node in order],
        [place[grown.parents[node]] for node in order],
        [grown.scores[node] for node in order],
        [None] * count,
    )


def _with_makers(tree: DraftTree, makers: Mapping[Path, str]) -> DraftTree:
    if not makers or not len(tree):
        return tree
    nodes = zip(paths(tree.tokens, tree.parents), tree.origins, strict=True)
    return replace(tree, makers=[makers.get(path) if origin is None else None for path, origin in nodes])
