"""Mixing copies and the predictions of models in one draft tree, under one budget.

"Words" are predicted tokens with probabilities (`predictors.base`); "none" is the event that no copied token is right.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import pairwise

from copyspec.budget import Budget
from copyspec.drafters.copying.growth import CHILDREN, LATER, LEAST_SCORE, NOWHERE, Cursor, Grown, later
from copyspec.drafters.predictors.base import Path, Predictor, Words
from copyspec.tree import ROOT, DraftTree

PASSES = 5
"""Maximum number of forward passes of a model per draft, the usual length of a small model's chain."""

WORTH = 0.05
"""While costs are unknown, a model is read again only if this many more accepted tokens are expected from it."""

SURE = 0.04
"""If copies leave less than this probability to other tokens, tables (predictors without a model) are not looked up:
none of their tokens could be more probable than that."""

LATER_WORD = 0.5
"""`growth.LATER` for a token that only a table predicted: the table is often as sure of the next one."""

SHOWN = 0.02
"""A model reads only nodes of at least this score. Others are not worth their columns in its forward pass."""


@dataclass(slots=True)
class Mix:
    """The mixture after one node: weights of the copied tokens and of none being right, and the models' words."""

    copies: dict[int, float]
    none: float
    speaking: list[tuple[Predictor, Words]]


@dataclass(slots=True)
class Blended:
    """A tree of copied and predicted tokens, with the mixtures that `learn` needs."""

    grown: Grown = field(default_factory=Grown)
    paths: list[Path] = field(default_factory=list)  # by node
    mixes: dict[Path, Mix] = field(default_factory=dict)  # only of nodes after which a model predicted
    makers: dict[Path, str] = field(default_factory=dict)  # predictors' kinds, of the nodes that are not copied
    least: float = 0.0  # a further node pays only with a score above this

    def ask(self, most: int) -> DraftTree:
        """Return the tree that models read: at most `most` nodes, all with a score of at least SHOWN."""
        scores = self.grown.scores
        count = next((node for node, score in enumerate(scores) if score < SHOWN), len(scores))
        count = min(count, most)
        return DraftTree(self.grown.tokens[:count], self.grown.parents[:count], scores[:count], [None] * count)


Candidate = tuple[float, int, list[Cursor]]
"""(probability, position of the token's heaviest cursor or NOWHERE, the cursors behind the token)."""

Copies = Callable[[Grown, int], tuple[dict[int, Candidate], float]]
"""Gives the copied tokens after a node (ROOT: at the root), and their total weight including that of "none"."""


def no_copies(grown: Grown, node: int) -> tuple[dict[int, Candidate], float]:
    """The `Copies` of a tree without copying."""
    return {}, 1.0


Said = dict[Path, tuple[dict[int, Candidate], float]]
"""Results of `Copies` by non-empty path: a tree that is grown again computes them for new nodes only."""


def blend(copies: Copies, predictors: Sequence[Predictor], budget: Budget, said: Said) -> Blended:
    """Grow a tree of the most likely nodes, best first, until the budget is full or no further node is worth its cost.

    `said`: results of `copies` for earlier trees of the same draft; new ones are added.

    The mixture: P(token) = (weight of its cursors + sum of weight * P_model(token)) / (sum of all weights). The
    cursors' weight of "none" is shared among the models, so that without copies a model's probabilities stay as they
    are.
    """
    blended = Blended()
    grown = blended.grown
    heap: list[tuple[float, int, int, int, int, list[Cursor]]] = []
    order, expected, rate = 0, 1.0, 1.0
    cheapest = min([after - before for before, after in pairwise(budget.costs)], default=0.0)
    # A model may give a child its parent's probability; next to its forward pass, expanding all nodes costs little.
    at_once = any(predictor.can_read for predictor in predictors)

    def push(node: int, path: Path, score: float) -> None:
        nonlocal order
        found = said.get(path)
        if found is None:
            found = copies(grown, node)
            if path:  # not for the root, where `copies` also writes into the new tree
                said[path] = found
        candidates, total = found
        candidates = _with_words(candidates, total, predictors, path, blended)
        order += 1
        for token, (probability, position, group) in candidates.items():
            if score * probability >= LEAST_SCORE:
                heappush(heap, (-score * probability, order, token, node, position, group))

    push(ROOT, (), 1.0)
    while heap and len(grown.tokens) < budget.max_nodes:
        negative, _, token, parent, position, group = heappop(heap)
        least = rate * cheapest if budget.costs else 0.0
        # LATER is the smallest factor of an expansion, so all nodes with a score above `least` have been expanded here.
        if -negative <= (1.0 if at_once else LATER) * least:
            break
        if token == CHILDREN:
            push(parent, blended.paths[parent], grown.scores[parent])
            continue
        if budget.costs:
            if -negative <= least:
                blended.least = least
                continue
            expected -= negative
            rate = max(rate, expected / budget.costs[len(grown.tokens) + 1])
        grown.tokens.append(token)
        grown.parents.append(parent)
        grown.scores.append(-negative)
        grown.positions.append(position)
        grown.cursors.append(group)
        path = (token,) if parent == ROOT else (*blended.paths[parent], token)
        blended.paths.append(path)
        if len(grown.tokens) < budget.max_nodes:
            order += 1
            wait = 1.0 if at_once else LATER_WORD if path in blended.makers else later(group)
            heappush(heap, (negative * wait, order, CHILDREN, len(grown.tokens) - 1, NOWHERE, []))
        else:
            blended.least = -negative
    return blended


def _with_words(
    candidates: dict[int, Candidate], total: float, predictors: Sequence[Predictor], path: Path, blended: Blended
) -> dict[int, Candidate]:
    """Mix the copies' candidates, whose total weight is `total`, with the words of the models that know the node."""
    left = max(1.0 - sum(probability for probability, _, _ in candidates.values()), 1e-6)
    asked = predictors if left >= SURE else [each for each in predictors if each.can_read]
    speaking = [(each, words) for each in asked if (words := each.words(path))]
    if not speaking:
        return candidates
    none = left * total
    blended.mixes[path] = Mix({token: each[0] * total for token, each in candidates.items()}, none, speaking)
    weights = sum(predictor.weight(left) for predictor, _ in speaking)
    whole = total + weights
    mixed = {token: (each[0] * total / whole, each[1], each[2]) for token, each in candidates.items()}
    for predictor, words in speaking:
        weight = predictor.weight(left) * (1.0 + none / weights) / whole
        for token, probability in words:
            held, position, group = mixed.get(token, (0.0, NOWHERE, []))
            mixed[token] = (held + weight * probability, position, group)
            if position == NOWHERE:
                blended.makers.setdefault((*path, token), predictor.kind)
    return mixed


def read_on(copies: Copies, predictors: Sequence[Predictor], budget: Budget) -> Blended:
    """Grow a tree, let the models read it, and grow it again with their predictions, as long as that pays."""
    said: Said = {}
    blended, asked = blend(copies, predictors, budget, said), [each for each in predictors if each.can_read]
    for number in range(PASSES):
        paying = [each for each in asked if _pays(blended, each, budget, is_first=number == 0)]
        asked = [each for each in paying if each.read(blended.ask(budget.max_nodes))]
        if not asked:
            break
        blended = blend(copies, predictors, budget, said)
    return blended


def _pays(blended: Blended, predictor: Predictor, budget: Budget, *, is_first: bool) -> bool:
    """Whether the tokens that the model would add to the tree are worth its forward pass.

    The expected gain after a node is the probability that its path is accepted, none of its children is right and the
    model's top token is. In a full tree the new token replaces the least likely node. The pass pays if it takes less
    time per expected token than the tree costs now.
    """
    grown = blended.grown
    open_ = [1.0, *grown.scores]
    for node, parent in enumerate(grown.parents):
        open_[parent + 1] -= grown.scores[node]
    nodes = zip([(), *blended.paths], open_, strict=True)
    unread = [chance for path, chance in nodes if predictor.words(path) is None]
    gain = sum(max(predictor.hits * chance - blended.least, 0.0) for chance in unread)
    if not (budget.seconds and predictor.seconds):
        return is_first or gain >= WORTH
    count = budget.cut(grown.scores)
    cost = budget.costs[count] if budget.costs else 1.0
    rate = (1.0 + sum(grown.scores[:count])) / cost
    pays = gain > rate * predictor.seconds / budget.seconds
    if is_first and not pays:
        predictor.rest()
    return pays


def learn(blended: Blended, tokens: Sequence[int]) -> None:
    """Adapt the models' weights beside the copies, from the mixtures along the output's new `tokens`."""
    for index, token in enumerate(tokens):
        mix = blended.mixes.get(tuple(tokens[:index]))
        if mix is None or not mix.copies:
            continue
        speaking = mix.speaking
        whole = sum(mix.copies.values()) + mix.none
        left = mix.none / whole
        weights = [each.weight(left) for each, _ in speaking]
        whole += sum(weights)
        weights = [weight * (1.0 + mix.none / sum(weights)) for weight in weights]
        shares = [weight * dict(words).get(token, 0.0) for weight, (_, words) in zip(weights, speaking, strict=True)]
        right = mix.copies.get(token, 0.0) + sum(shares)
        if right > 0:
            for (predictor, _), weight, share in zip(speaking, weights, shares, strict=True):
                predictor.learn(left, share / right - weight / whole)
