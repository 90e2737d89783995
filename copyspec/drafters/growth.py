"""Growing one tree from many cursors, best first."""

from __future__ import annotations

from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush, heappushpop

from copyspec.drafters.situations import FOLLOWING, NONE_AT_ROOT, NONE_DEEPER
from copyspec.tree import ROOT

Cursor = tuple[int, int]
"""(position in the corpus, situation): a hypothesis that the token at the position comes next."""

LEAST_SCORE = 0.003  # of a node: below, nothing is worth its cost on any device


@dataclass(slots=True)
class Grown:
    """A tree as it grew: scores fall. The lists are by node."""

    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)  # of the token, where the heaviest cursor stood
    cursors: list[list[Cursor]] = field(default_factory=list)  # those that were right, moved on


_Vote = tuple[float, int, list[Cursor]]
"""What is known of one next token: weight, position of the heaviest cursor at it, the cursors moved on."""


def grow(text: list[int], cursors: list[Cursor], weights: list[float], max_nodes: int) -> Grown:
    """The most likely nodes, best first, until there are `max_nodes` or nothing likely is left.

    Cursors at equal tokens share a node and add their weights: P(token) = weight of its cursors /
    (weight of all cursors + weight of none being right). A node's score is the product along its path.
    """
    grown = Grown()
    votes = _vote(text, cursors, weights, grown, ROOT)
    total = weights[NONE_AT_ROOT] + sum(vote[0] for vote in votes.values())
    heap: list[tuple[float, int, int, int, int, list[Cursor]]] = [
        (-vote[0] / total, order, token, ROOT, vote[1], vote[2])
        for order, (token, vote) in enumerate(votes.items())
        if vote[0] >= LEAST_SCORE * total
    ]
    heapify(heap)
    none, end, order = weights[NONE_DEEPER], len(text), len(votes)
    item = heappop(heap) if heap and max_nodes > 0 else None
    while item is not None:
        negative, _, token, parent, position, group = item
        node = len(grown.tokens)
        grown.tokens.append(token)
        grown.parents.append(parent)
        grown.scores.append(-negative)
        grown.positions.append(position)
        grown.cursors.append(group)
        if node + 1 == max_nodes:
            break
        if len(group) == 1 and group[0][0] < end:  # the common case, a single copy going on
            position, state = group[0]
            token, weight = text[position], weights[state]
            negative *= weight / (weight + none)
            if token >= 0 and negative <= -LEAST_SCORE:
                order += 1
                item = heappushpop(heap, (negative, order, token, node, position, [(position + 1, FOLLOWING[state])]))
                continue
        else:
            votes = _vote(text, group, weights, grown, node)
            share = negative / (none + sum(vote[0] for vote in votes.values()))
            for token, (weight, position, group) in votes.items():
                if weight * share <= -LEAST_SCORE:
                    order += 1
                    heappush(heap, (weight * share, order, token, node, position, group))
        item = heappop(heap) if heap else None
    return grown


def _vote(text: list[int], cursors: list[Cursor], weights: list[float], grown: Grown, node: int) -> dict[int, _Vote]:
    """What the cursors after `node` say comes next, by token. Cursors at a border say nothing."""
    votes: dict[int, _Vote] = {}
    heaviest: dict[int, float] = {}
    end = len(text)
    for at, state in cursors:
        position = at
        if at < end:
            token = text[at]
        else:
            drafted = _ancestor(grown, node, at - end)
            token, position = grown.tokens[drafted], grown.positions[drafted]
        if token < 0:
            continue
        weight = weights[state]
        vote = votes.get(token)
        if vote is None:
            votes[token] = (weight, position, [(at + 1, FOLLOWING[state])])
            heaviest[token] = weight
        else:
            vote[2].append((at + 1, FOLLOWING[state]))
            if weight > heaviest[token]:
                heaviest[token] = weight
                votes[token] = (vote[0] + weight, position, vote[2])
            else:
                votes[token] = (vote[0] + weight, vote[1], vote[2])
    return votes


def _ancestor(grown: Grown, node: int, index: int) -> int:
    """The node at `index` on the path to `node`: a cursor past the text's end goes on with what has been drafted."""
    path = []
    while node != ROOT:
        path.append(node)
        node = grown.parents[node]
    return path[-1 - index]
