"""Mixing: copies and the words of models in one tree, under one budget."""

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
"""Reads of a model for one draft, at most: as many as a chain of a small model is long."""

WORTH = 0.05
"""Expected tokens of one more read, below which none follows the first while costs are unknown."""

SURE = 0.04
"""What copies leave, below which tables are not asked: their next word could come to no more than that."""

LATER_WORD = 0.5
"""`growth.LATER` of a word that only a table says: it is often as sure of the next one."""

SHOWN = 0.02
"""A model reads nodes of at least this score: what it says after others is not worth their columns in its pass."""


@dataclass(slots=True)
class Mix:
    """What was said of one node: the weights of the copies' tokens, and of none being right, and the models' words."""

    copies: dict[int, float]
    none: float
    speaking: list[tuple[Predictor, Words]]


@dataclass(slots=True)
class Blended:
    """A tree of copies and words, with what is needed to learn from it."""

    grown: Grown = field(default_factory=Grown)
    paths: list[Path] = field(default_factory=list)  # by node
    mixes: dict[Path, Mix] = field(default_factory=dict)  # of the nodes after which a model spoke too
    makers: dict[Path, str] = field(default_factory=dict)  # of the nodes that no cursor stands at
    least: float = 0.0  # a further node is of use only with a score above this

    def ask(self, most: int) -> DraftTree:
        """The nodes that models read: the likely ones."""
        scores = self.grown.scores
        count = next((node for node, score in enumerate(scores) if score < SHOWN), len(scores))
        count = min(count, most)
        return DraftTree(self.grown.tokens[:count], self.grown.parents[:count], scores[:count], [None] * count)


Candidate = tuple[float, int, list[Cursor]]
"""(probability, position of the heaviest cursor at the token or NOWHERE, cursors moved on), by token."""

Copies = Callable[[Grown, int], tuple[dict[int, Candidate], float]]
"""What copies say after a node of the tree (ROOT: at its root), and the weight of it and of none being right."""


def no_copies(grown: Grown, node: int) -> tuple[dict[int, Candidate], float]:
    """For models alone."""
    return {}, 1.0


Said = dict[Path, tuple[dict[int, Candidate], float]]
"""What copies said, by path below the root: a tree that is grown again asks them about its new nodes only."""


def blend(copies: Copies, predictors: Sequence[Predictor], budget: Budget, said: Said) -> Blended:
    """The most likely nodes, best first, until the budget is full or no further node can pay for its cost. `said`:
    of the trees grown before for the same draft, added to.

    Models are voices beside the cursors: P(token) = (weight of its cursors + sum of weight * P_model(token)) /
    (weight of all). What the cursors leave open, their weight of none being right, is shared among the models, so
    that a model alone is taken at its word.
    """
    blended = Blended()
    grown = blended.grown
    heap: list[tuple[float, int, int, int, int, list[Cursor]]] = []
    order, expected, rate = 0, 1.0, 1.0
    cheapest = min([after - before for before, after in pairwise(budget.costs)], default=0.0)
    # A model may be as sure of a child as of its parent; its pass takes longer than looking for all of them.
    at_once = any(predictor.can_read for predictor in predictors)

    def push(node: int, path: Path, score: float) -> None:
        nonlocal order
        found = said.get(path)
        if found is None:
            found = copies(grown, node)
            if path:  # what comes first is also noted in the tree
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
        # The children of all nodes above `least` have then been looked for.
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
    """The candidates of the copies, whose weight is `total`, with the words of the models that know the node."""
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
    """Grows a tree, asks the models about it, and grows it again with what they say, while that pays."""
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
    """Whether what the model would add to the tree is worth its pass.

    What it would add after a node is the probability that the path holds, no child drafted so far is right, and
    the model's likeliest token is; in a full tree it takes the place of the least likely node. A pass pays if its
    expected tokens take less time than tokens cost now.
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
    """Tells the models how much their word should have counted beside the copies', along the output's `tokens`."""
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
