"""Verification rules of speculative decoding that keep the target's distribution.

P is the target's distribution at a node after all processors, Q the one that a drafter drew from. Every rule draws the
next token from P in a way that agrees with the drafts as often as it can. A rule therefore returns a single token, and
the walk along the tree is the same for all (`walk.walk`).

A copied child counts as a draw from a one-hot Q. At each node the drawn children are tried first, in the order drawn,
then the copied ones. A rejected token has no mass left. So a copied child that equals a drawn token need not be tried
again, copied children may be chosen after seeing the draws, and one draw beside copied children is accepted at least
as often as in the reverse order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, Protocol

from copyspec.tree import DraftTree
from copyspec.verification.classic.candidates import (
    DraftCandidate,
    Randomness,
    candidates_of,
    k_sequential,
    verify_candidates,
)

if TYPE_CHECKING:
    import torch

    from copyspec.options import SamplingOptions

Guarantee = Literal["tokens", "distribution"]
"""What a rule preserves: the exact tokens of plain decoding at the seed, or their distribution."""


class Nodes(Protocol):
    """The interface through which a rule sees the target at the nodes of one tree (ROOT is -1)."""

    @property
    def greedy(self) -> bool:
        """Whether the temperature is 0: P is then the softmax of the scores, and the output their argmax."""
        ...

    def own_token(self, node: int) -> int:
        """The target's own token after `node`, which plain decoding would emit at this seed."""
        ...

    def probabilities(self, node: int) -> torch.Tensor:
        """P after `node`. [V], float32."""
        ...

    def randomness(self, node: int) -> Randomness:
        """New randomness for the position after `node`; each call restarts its sequence."""
        ...


NextToken = Callable[[int], int]
"""Returns the token after a node. Called once per node, from the root along the accepted path."""


class Rule(Protocol):
    """A verification rule. It is frozen and stateless; the state of one tree is held by what `begin` returns."""

    name: ClassVar[str]
    preserves: ClassVar[Guarantee | None]
    """None for lossy rules, which preserve neither the target's tokens nor its distribution."""

    def check(self, sampling: SamplingOptions) -> None:
        """Raise ValueError if the rule cannot decode with these options."""
        ...

    def begin(self, tree: DraftTree, nodes: Nodes) -> NextToken:
        """Start verifying one tree. Raises ValueError if the rule does not support the way its tokens were drawn."""
        ...


class Children:
    """The candidates at the nodes of a tree: drawn children in the order drawn, then the others as stored."""

    def __init__(self, tree: DraftTree) -> None:
        self._sampled = tree.sampled or {}
        self._tokens: dict[int, list[int]] = {}
        for parent, token in zip(tree.parents, tree.tokens, strict=True):
            self._tokens.setdefault(parent, []).append(token)

    def drawn(self, node: int, p: torch.Tensor) -> list[DraftCandidate]:
        """The drawn candidates after `node`, where the target's distribution is `p`."""
        return candidates_of(self._sampled[node], p) if node in self._sampled else []

    def copied(self, node: int) -> list[DraftCandidate]:
        """The copied candidates after `node`, without tokens that were drawn there as well."""
        drawn = set(self._sampled[node].tokens) if node in self._sampled else set()
        return [DraftCandidate(token, None) for token in self._tokens.get(node, ()) if token not in drawn]


@dataclass(frozen=True, slots=True)
class Coupled:
    """The default: the target's own token, sampled with noise keyed by position. Needs no Q."""

    name: ClassVar[str] = "coupled"
    preserves: ClassVar[Guarantee | None] = "tokens"

    def check(self, sampling: SamplingOptions) -> None:
        pass

    def begin(self, tree: DraftTree, nodes: Nodes) -> NextToken:
        return nodes.own_token


@dataclass(frozen=True, slots=True)
class Greedy:
    """The argmax of P. Refuses to sample."""

    name: ClassVar[str] = "greedy"
    preserves: ClassVar[Guarantee | None] = "tokens"

    def check(self, sampling: SamplingOptions) -> None:
        require_greedy(self.name, sampling)

    def begin(self, tree: DraftTree, nodes: Nodes) -> NextToken:
        return nodes.own_token


def _in_turns(tree: DraftTree, nodes: Nodes, most: int | None = None) -> NextToken:
    """Try the children of each node in order, drawn ones first, and at most `most` of them."""
    children = Children(tree)

    def decide(p: torch.Tensor, node: int, rng: Randomness) -> tuple[int | None, torch.Tensor]:
        return verify_candidates(p, [*children.drawn(node, p), *children.copied(node)][:most], rng)

    return at_each_node(decide, nodes)


@dataclass(frozen=True, slots=True)
class Rejection:
    """The rule of Leviathan et al. and Chen et al. for chains: of several children only the first is tried."""

    name: ClassVar[str] = "rejection"
    preserves: ClassVar[Guarantee | None] = "distribution"

    def check(self, sampling: SamplingOptions) -> None:
        pass

    def begin(self, tree: DraftTree, nodes: Nodes) -> NextToken:
        return _in_turns(tree, nodes, most=1)


@dataclass(frozen=True, slots=True)
class MultiStep:
    """SpecInfer's rule for trees, with draws with or without replacement and copied children."""

    name: ClassVar[str] = "multi-step"
    preserves: ClassVar[Guarantee | None] = "distribution"

    def check(self, sampling: SamplingOptions) -> None:
        pass

    def begin(self, tree: DraftTree, nodes: Nodes) -> NextToken:
        return _in_turns(tree, nodes)


@dataclass(frozen=True, slots=True)
class KSequential:
    """SpecTr's rule for k independent draws; copied children are then tried on what is left of P."""

    name: ClassVar[str] = "k-sequential"
    preserves: ClassVar[Guarantee | None] = "distribution"

    def check(self, sampling: SamplingOptions) -> None:
        pass

    def begin(self, tree: DraftTree, nodes: Nodes) -> NextToken:
        if any(not drawn.replacement and len(drawn.tokens) > 1 for drawn in (tree.sampled or {}).values()):
            raise ValueError(
                f"rule {self.name!r} needs children drawn with replacement; for draws without it use 'multi-step'"
            )
        children = Children(tree)

        def decide(p: torch.Tensor, node: int, rng: Randomness) -> tuple[int | None, torch.Tensor]:
            drawn = children.drawn(node, p)
            token: int | None = None
            if drawn and (q := drawn[0].q) is not None:
                token, p = k_sequential(p, q, [candidate.token for candidate in drawn], rng)
            return (token, p) if token is not None else verify_candidates(p, children.copied(node), rng)

        return at_each_node(decide, nodes)


def at_each_node(
    decide: Callable[[torch.Tensor, int, Randomness], tuple[int | None, torch.Tensor]], nodes: Nodes
) -> NextToken:
    """Decide node by node: an accepted draft token, or a draw from what is left of P; greedy: the target's token."""

    def next_token(node: int) -> int:
        rng = nodes.randomness(node)
        token, rest = decide(nodes.probabilities(node), node, rng)
        return rng.token(rest) if token is None else token

    return nodes.own_token if nodes.greedy else next_token


def require_greedy(name: str, sampling: SamplingOptions) -> None:
    """Raise ValueError if a greedy-only rule is asked to sample."""
    if not sampling.is_greedy:
        raise ValueError(
            f"rule {name!r} emits the most likely token: leave out temperature={sampling.temperature!r}, "
            "or choose a rule that samples"
        )
