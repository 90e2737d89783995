"""The draft tree: the draft tokens that a drafter proposes and one forward pass of the target verifies."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from operator import index, lt
from typing import NamedTuple

from copyspec.common.checks import brief

try:
    import copyspec._trees as _trees
except ImportError:  # the source is native/trees.c
    _trees = None  # type: ignore[assignment]

VERSION = 9
"""Version of `_trees` that fits this module; one compiled from an older source is not used."""

COMPILED = _trees if _trees is not None and _trees.VERSION == VERSION else None
"""The compiled functions on trees that run in every pass, or None; Python fallbacks give the same results."""

ROOT = -1
"""Parent index of nodes that directly follow the last accepted token."""


class Origin(NamedTuple):
    """The provenance of one copied token: where it stands in a source."""

    source: int
    """Index into the row's sources; `sources.OUTPUT` for the row's own output."""
    offset: int
    """Index of the token in that source's tokens."""


@dataclass(frozen=True, slots=True)
class DraftTree:
    """The draft tokens of one row. The root, the last accepted token, is not one of them.

    Parents come before their children, and siblings hold distinct tokens. The most likely
    root-to-leaf chain is stored first, as nodes 0, 1, 2, ..., so that in the common case
    the accepted path is already in place in the KV cache.
    """

    tokens: Sequence[int] = ()  # [m]
    parents: Sequence[int] = ()  # [m], index of a node stored earlier, or ROOT
    scores: Sequence[float] = ()  # [m], estimated probability that the whole path to the node is accepted
    origins: Sequence[Origin | None] = field(default=())  # [m], None: not copied (an end-of-sequence token, say)
    notes: Mapping[int, object] | None = None  # by node, for the call's rule; such a tree is not merged with others
    drafters: Sequence[str | None] | None = None  # [m], the drafter (`Predictor.kind`) of a token without an origin

    @classmethod
    def of_chain(cls, tokens: Sequence[int], probability: float = 0.9) -> DraftTree:
        """A single chain; each token is accepted with `probability`, given that those before it are."""
        scores = [probability ** (place + 1) for place in range(len(tokens))]
        return cls(list(tokens), list(range(ROOT, len(tokens) - 1)), scores, [None] * len(tokens))

    def __len__(self) -> int:
        return len(self.tokens)

    def depths(self) -> list[int]:
        """Depth of each node, 1 for children of the root. [m]"""
        depths: list[int] = []
        for parent in self.parents:
            depths.append(1 if parent == ROOT else depths[parent] + 1)
        return depths

    def up_to_depth(self, depth: int) -> DraftTree:
        """The subtree of nodes at `depth` or less, in stored order."""
        left, nodes = [*self.parents, depth], list[int]()  # by node, the root's last: levels below it that are kept
        for node, parent in enumerate(self.parents):
            left[node] = levels = left[parent] - 1
            if levels >= 0:
                nodes.append(node)
        return self if len(nodes) == len(self.tokens) else self.in_order(nodes)

    def in_order(self, order: Sequence[int]) -> DraftTree:
        """The subtree of the nodes in `order`, stored in that order; the parent of each must come before it there."""
        chosen = _in_order if COMPILED is None else COMPILED.in_order
        tokens, parents, scores, origins = chosen(self.tokens, self.parents, self.scores, self.origins, order)
        notes, drafters = self.notes, self.drafters
        if notes:
            notes = {place: notes[node] for place, node in enumerate((ROOT, *order), ROOT) if node in notes}
        return DraftTree(tokens, parents, scores, origins, notes, drafters and [drafters[node] for node in order])

    def first_chain(self) -> DraftTree:
        """The first root-to-leaf chain as stored, for targets that can only verify chains."""
        length = 0
        while length < len(self) and self.parents[length] == length - 1:
            length += 1
        return self.in_order(range(length))


EMPTY = DraftTree()


def _in_order(
    tokens: Sequence[int],
    parents: Sequence[int],
    scores: Sequence[float],
    origins: Sequence[Origin | None],
    order: Sequence[int],
) -> tuple[list[int], list[int], list[float], list[Origin | None]]:
    """The same of the subtree of the nodes in `order`."""
    place = {ROOT: ROOT, **{node: index for index, node in enumerate(order)}}
    return (
        [tokens[node] for node in order],
        [place[parents[node]] for node in order],
        [scores[node] for node in order],
        [origins[node] for node in order],
    )


def path_to(parents: Sequence[int], node: int) -> list[int]:
    """The nodes on the path from the root to `node`, itself included."""
    path: list[int] = []
    while node != ROOT:
        path.append(node)
        node = parents[node]
    return path[::-1]


def chain_first_order(parents: Sequence[int], count: int) -> list[int]:
    """The first `count` nodes of a tree, its first root-to-leaf chain before all others.

    Nodes come with the likeliest first, so each first child is the likeliest, and that chain the likeliest one."""
    chain, node = [], ROOT
    for child in range(count):
        if parents[child] == node:
            chain.append(child)
            node = child
    on_chain = set(chain)
    return chain + [node for node in range(count) if node not in on_chain]


def check_tree(tree: DraftTree, vocab_size: int | None = None) -> None:
    """Raise ValueError where `tree` has a `fault`."""
    if (wrong := fault(tree, vocab_size)) is not None:
        raise ValueError(wrong)


def fault(tree: DraftTree, vocab_size: int | None = None) -> str | None:
    """What violates the invariants of `DraftTree`, or which id is outside the vocabulary; None for a sound tree.

    An unchecked invalid tree could change the output. Checking 32 nodes takes a microsecond, less than 5 without the
    compiled module.
    """
    tokens, parents, drafters = tree.tokens, tree.parents, tree.drafters
    end = sys.maxsize if vocab_size is None else vocab_size
    if COMPILED is not None and COMPILED.is_sound(tokens, parents, tree.scores, tree.origins, drafters, end):
        return None
    count = len(tokens)
    sizes = {count, len(parents), len(tree.scores), len(tree.origins), count if drafters is None else len(drafters)}
    if len(sizes) == 1 and set(map(type, chain(tokens, parents))) <= {int}:
        below, edges = all(map(lt, parents, range(count))), set(zip(parents, tokens, strict=True))
        known = min(tokens, default=0) >= 0 and max(tokens, default=0) < end
        if known and below and len(edges) == count and min(parents, default=ROOT) >= ROOT:
            return None  # the slow checks below only run to find what is wrong
    if len(sizes) != 1:
        return f"tokens, parents, scores, origins and drafters of a draft tree differ in length: {sorted(sizes)}"
    if (wrong := _no_token(tree.tokens, vocab_size)) is not None:
        return wrong
    seen: set[tuple[int, int]] = set()
    for node, (parent, token) in enumerate(zip(tree.parents, tree.tokens, strict=True)):
        if not ROOT <= _whole(parent, node) < node:
            return f"node {node} has parent {brief(parent)}; a parent is {ROOT} or a node stored earlier"
        if (parent, token) in seen:
            return f"node {node} repeats token {token} among the children of node {parent}"
        seen.add((parent, token))
    return None


def _whole(value: object, otherwise: int) -> int:
    """`value` as an int; `otherwise` if it is no whole number."""
    try:
        return index(value)  # type: ignore[arg-type]
    except TypeError:
        return otherwise


def _no_token(tokens: Sequence[object], vocab_size: int | None) -> str | None:
    """Which of `tokens` is not an id of the vocabulary; None if all are. NumPy's and torch's integers are."""
    for token in tokens:
        if not 0 <= _whole(token, -1) < (sys.maxsize if vocab_size is None else vocab_size):
            last = "" if vocab_size is None else f" to {vocab_size - 1}"
            return f"{brief(token)} is not a token id of the model: ids go from 0{last}"
    return None
