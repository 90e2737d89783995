"""When models read a draft tree that copies and predictions share, and what is learned from their mixture.

A miss is the event that no copied token is right. The mixture itself is part of the growth (`growth._mix`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from copyspec.budget import Budget
from copyspec.drafters.copying.growth import Grown, PredictorCalls
from copyspec.drafters.predictors.base import Predictor, paths
from copyspec.tree import ROOT, DraftTree

MAX_MODEL_PASSES = 5
"""Maximum number of forward passes of a model per draft, the usual length of a small model's chain."""

MIN_GAIN = 0.05
"""While costs are unknown, a model is run again only if this many more accepted tokens are expected from it."""

MIN_READ_SCORE = 0.02
"""A model reads only nodes of at least this score. Others are not worth their columns in its forward pass."""


def grow_with_models(
    grow: Callable[[Sequence[PredictorCalls]], Grown], predictors: Sequence[Predictor], budget: Budget
) -> Grown:
    """Grow a tree, let the models read it, and grow it again with their predictions, as long as that pays."""
    calls = [PredictorCalls(each.predict, each.weight, each.is_model) for each in predictors]
    grown, asked = grow(calls), [each for each in predictors if each.is_model]
    for number in range(MAX_MODEL_PASSES):
        paying = [each for each in asked if _pays(grown, each, budget, is_first=number == 0)]
        shown = _shown(grown)
        asked = [each for each in paying if each.run(shown)]
        if not asked:
            break
        grown = grow(calls)
    return grown


def _shown(grown: Grown) -> DraftTree:
    """The tree that models read: nodes with a score of at least MIN_READ_SCORE."""
    scores = grown.scores
    count = next((node for node, score in enumerate(scores) if score < MIN_READ_SCORE), len(scores))
    return DraftTree(grown.tokens[:count], grown.parents[:count], scores[:count], [None] * count)


def _pays(grown: Grown, predictor: Predictor, budget: Budget, *, is_first: bool) -> bool:
    """Whether the tokens that the model would add to the tree are worth its forward pass.

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
        return is_first or gain >= MIN_GAIN
    count = budget.cut(grown.scores)
    cost = budget.costs[count] if budget.costs else 1.0
    rate = (1.0 + sum(grown.scores[:count])) / cost
    pays = gain > rate * predictor.seconds / budget.seconds
    if is_first and not pays:
        predictor.skip()
    return pays


def update_weights(grown: Grown, predictors: Sequence[Predictor], tokens: Sequence[int]) -> None:
    """Adapt the predictors' weights beside the copies, from the mixtures along the output's new `tokens`."""
    mixes = {node: (miss_weight, copies, numbers) for node, miss_weight, copies, numbers in grown.mixes}
    for index, node in enumerate(_walked(grown, tokens)):
        if node not in mixes:
            continue
        miss_weight, copies, numbers = mixes[node]
        if not copies:
            continue
        path, token = tuple(tokens[:index]), tokens[index]
        speaking = [(predictors[number], predictors[number].predict(path) or ()) for number in numbers]
        whole = sum(copies.values()) + miss_weight
        miss_prob = miss_weight / whole
        weights = [each.weight(miss_prob) for each, _ in speaking]
        whole += sum(weights)
        weights = [weight * (1.0 + miss_weight / sum(weights)) for weight in weights]
        shares = [weight * dict(probs).get(token, 0.0) for weight, (_, probs) in zip(weights, speaking, strict=True)]
        right = copies.get(token, 0.0) + sum(shares)
        if right > 0:
            for (predictor, _), weight, share in zip(speaking, weights, shares, strict=True):
                predictor.update_weight(miss_prob, share / right - weight / whole)


def _walked(grown: Grown, tokens: Sequence[int]) -> list[int]:
    """ROOT and the nodes along `tokens`, each of which has one of the tokens after it."""
    found = [ROOT]
    for child, parent in enumerate(grown.parents):  # children come after their parents
        if len(found) == len(tokens):
            break
        if parent == found[-1] and grown.tokens[child] == tokens[len(found) - 1]:
            found.append(child)
    return found if tokens else []
