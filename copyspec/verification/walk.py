"""The walk along the draft tree: descend while a child holds the target's own token."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from copyspec.tree import COMPILED, ROOT, DraftTree
from copyspec.verification.picking import Picks


def _accepted(tokens: Sequence[int], parents: Sequence[int], picked: Sequence[int]) -> tuple[list[int], list[int]]:
    """The accepted nodes, root to leaf, and the tokens that join the output, one more, given the target's token after
    the root and after each node, [1 + m].

    `tokens` and `parents` are those of the tree, [m]. Equivalent to `walk`, in one scan over the nodes, since children
    come after their parents.
    """
    path = []
    at, wanted = ROOT, picked[0]
    for node, (parent, token) in enumerate(zip(parents, tokens, strict=True)):
        if parent == at and token == wanted:
            path.append(node)
            at, wanted = node, picked[node + 1]
    return path, [picked[node + 1] for node in (ROOT, *path)]


accepted = _accepted if COMPILED is None else COMPILED.accepted


def walk(tree: DraftTree, picks: Picks, emit: Callable[[int, int], bool]) -> list[int]:
    """Walk from the root, and call `emit(token, node)` for every output token, in order.

    `node` is the node after which the token was picked (ROOT first). The walk ends with a token that no child
    holds, or as soon as `emit` returns True: the output then ends with that token, exactly where plain decoding
    would have ended. Returns the accepted nodes, root to leaf, at most one per depth.
    """
    edges = zip(tree.parents, tree.tokens, strict=True)
    children = {edge: node for node, edge in enumerate(edges)}
    path: list[int] = []
    node = ROOT
    while True:
        token = picks.token(node)
        child = children.get((node, token))
        ended = emit(token, node)
        if child is not None:
            path.append(child)
        if ended or child is None:
            return path
        node = child
