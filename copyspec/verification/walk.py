"""The walk along the draft tree: descend while a child holds the target's own token."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from copyspec.tree import COMPILED, ROOT, DraftTree
from copyspec.verification.picking import Picks


def accepted(tree: DraftTree, tokens: Sequence[int]) -> list[int]:
    """The accepted nodes, root to leaf, given the target's token after the root and after each node, [1 + m].

    Equivalent to `walk`, in one scan over the nodes, since children come after their parents.
    """
    if COMPILED is not None:
        path: list[int] = COMPILED.accepted(tree.tokens, tree.parents, tokens)
        return path
    path = []
    at, wanted = ROOT, tokens[0]
    for node, (parent, token) in enumerate(zip(tree.parents, tree.tokens, strict=True)):
        if parent == at and token == wanted:
            path.append(node)
            at, wanted = node, tokens[node + 1]
    return path


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
