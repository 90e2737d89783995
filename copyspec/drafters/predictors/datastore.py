"""The datastore drafter (REST): drafts the continuations that the end of the output has in a corpus, as one tree."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from typing import Protocol

from copyspec.budget import Budget
from copyspec.tree import EMPTY, ROOT, DraftTree, Origin, chain_first_order

HITS = 64  # matches read per step: more change few trees and cost two microseconds each
LENGTH = 16  # tokens of continuation read from each match: deeper nodes are hardly ever accepted
CONTEXT = 32  # last tokens of the text that are looked up
MIN_SCORE = 0.001  # nodes with a lower score are not worth their cost on any device

PRIOR = (0.05, 0.34, 0.45, 0.45, 0.52, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8)
"""Probability that one of the drafted next tokens is right, by length of the match; the last entry is for all longer
matches. Lengths up to five are measured on recorded chats, answers and summaries, with a datastore of 8 million tokens
of books and articles."""

PRIOR_WEIGHT = 8.0  # PRIOR counts as much as this many proposals of this output
DECAY = 0.97  # of the learned rates, per proposal, because an output moves from one subject to another


class Store(Protocol):
    """The look-up that the drafter needs of a datastore."""

    def find(
        self, context: Sequence[int], length: int, count: int
    ) -> tuple[tuple[int, int], Sequence[tuple[int, int, Sequence[int], float]]]:
        """Find the longest suffix of `context` that occurs in the store.

        Returns its length and its number of occurrences, and for up to `count` of them
        (document, offset, at most `length` following tokens, share of the weight)."""
        ...


_Hit = tuple[int, int, Sequence[int], float]
"""(document, offset, tokens, weight)."""

_Entry = tuple[float, int, int, int, int, list[_Hit]]
"""(-score, depth, order, parent, token, the hits whose continuations pass through this node)."""


class DatastoreDrafter:
    """Drafts what followed the longest suffix matches of the output in a datastore.

    REST (He et al. 2024, arXiv 2311.08252) collects the continuations in a trie. Here nodes are taken from the trie
    best first by their share of the weight, so that parents precede children and the whole budget is used. The
    probability that a proposal is right at all is learned for each length of match.

    `context`: the prompt's tokens. `first_source`: the `Origin.source` of document 0 of the store, later documents
    counting up from it; None: nodes have no origin.
    """

    def __init__(self, store: Store, context: Sequence[int] = (), *, first_source: int | None = None) -> None:
        self._store = store
        self._context = list(context[-CONTEXT:])
        self._first_source = first_source
        self._right = [PRIOR_WEIGHT * prior for prior in PRIOR]
        self._tries = [PRIOR_WEIGHT] * len(PRIOR)
        self._matched = 0
        self._drafted: list[int] = []  # first tokens of the last tree

    def propose(self, budget: Budget) -> DraftTree:
        """Return at most `budget.max_nodes` nodes, and no more than are worth their cost."""
        self._drafted = []
        if budget.max_nodes <= 0 or not self._context:
            return EMPTY
        (self._matched, _), found = self._store.find(self._context, LENGTH, HITS)
        if not found:
            return EMPTY
        tree = self._grown(found, budget.max_nodes)
        tree = tree.in_order(chain_first_order(tree.parents, budget.cut(tree.scores)))
        self._drafted = [token for token, parent in zip(tree.tokens, tree.parents, strict=True) if parent == ROOT]
        return tree

    def accept(self, tokens: Sequence[int]) -> None:
        """Append `tokens` to the output, and learn whether one of the drafted first tokens was right."""
        if self._drafted and tokens:
            bucket = min(self._matched, len(PRIOR) - 1)
            prior = PRIOR_WEIGHT * (1 - DECAY)
            self._right[bucket] = DECAY * self._right[bucket] + prior * PRIOR[bucket] + (tokens[0] in self._drafted)
            self._tries[bucket] = DECAY * self._tries[bucket] + prior + 1
        self._context = [*self._context, *tokens][-CONTEXT:]
        self._drafted = []

    def _grown(self, found: Sequence[_Hit], most: int) -> DraftTree:
        """Build the trie of the continuations lazily, best first, and only as far as nodes join the tree."""
        tokens: list[int] = []
        parents: list[int] = []
        scores: list[float] = []
        origins: list[Origin | None] = []
        heap: list[_Entry] = []
        self._push(heap, found, 0, ROOT, 1.0)
        while heap and len(tokens) < most:
            negative, depth, _, parent, token, group = heappop(heap)
            if negative > -MIN_SCORE:
                break
            tokens.append(token)
            parents.append(parent)
            scores.append(-negative)
            document, offset, _, _ = group[0]
            source = self._first_source
            origins.append(None if source is None else Origin(source + document, offset + depth))
            self._push(heap, group, depth + 1, len(tokens) - 1, -negative)
        return DraftTree(tokens, parents, scores, origins)

    def _push(self, heap: list[_Entry], group: Sequence[_Hit], depth: int, at: int, score: float) -> None:
        """Push a node's children. Their match is longer by `depth`: a child is only reached if its path was right."""
        total = 0.0
        children: dict[int, tuple[float, list[_Hit]]] = {}
        for hit in group:
            _, _, tokens, weight = hit
            total += weight
            if depth < len(tokens):
                held, hits = children.get(tokens[depth], (0.0, []))
                hits.append(hit)
                children[tokens[depth]] = held + weight, hits
        bucket = min(self._matched + depth, len(PRIOR) - 1)
        share = score * self._right[bucket] / self._tries[bucket] / total
        for token, (weight, hits) in children.items():
            heappush(heap, (-share * weight, depth, len(heap), at, token, hits))
