"""The datastore drafter (REST): drafts the continuations that the end of the output has in a corpus, as one tree."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush

from copyspec.budget import Budget
from copyspec.drafters.predictors.store import CONTEXT_TOKENS, CONTINUATION_TOKENS, MAX_HITS, Hit, HitRates, Store
from copyspec.tree import EMPTY, ROOT, DraftTree, Origin, chain_first_order

MIN_SCORE = 0.001  # nodes with a lower score are not worth their cost on any device

_Entry = tuple[float, int, int, int, int, list[Hit]]
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
        self._context = list(context[-CONTEXT_TOKENS:])
        self._first_source = first_source
        self._rates = HitRates()
        self._matched = 0
        self._drafted: list[int] = []  # first tokens of the last tree

    def propose(self, budget: Budget) -> DraftTree:
        """Return at most `budget.max_nodes` nodes, and no more than are worth their cost."""
        self._drafted = []
        if budget.max_nodes <= 0 or not self._context:
            return EMPTY
        (self._matched, _), found = self._store.find(self._context, CONTINUATION_TOKENS, MAX_HITS)
        if not found:
            return EMPTY
        tree = self._grown(found, budget.max_nodes)
        tree = tree.in_order(chain_first_order(tree.parents, budget.cut(tree.scores)))
        self._drafted = [token for token, parent in zip(tree.tokens, tree.parents, strict=True) if parent == ROOT]
        return tree

    def accept(self, tokens: Sequence[int]) -> None:
        """Append `tokens` to the output, and learn whether one of the drafted first tokens was right."""
        if self._drafted and tokens:
            self._rates.record(self._matched, tokens[0] in self._drafted)
        self._context = [*self._context, *tokens][-CONTEXT_TOKENS:]
        self._drafted = []

    def _grown(self, found: Sequence[Hit], most: int) -> DraftTree:
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

    def _push(self, heap: list[_Entry], group: Sequence[Hit], depth: int, at: int, score: float) -> None:
        """Push a node's children. Their match is longer by `depth`: a child is only reached if its path was right."""
        total = 0.0
        children: dict[int, tuple[float, list[Hit]]] = {}
        for hit in group:
            _, _, tokens, weight = hit
            total += weight
            if depth < len(tokens):
                held, hits = children.get(tokens[depth], (0.0, []))
                hits.append(hit)
                children[tokens[depth]] = held + weight, hits
        share = score * self._rates(self._matched + depth) / total
        for token, (weight, hits) in children.items():
            heappush(heap, (-share * weight, depth, len(heap), at, token, hits))
