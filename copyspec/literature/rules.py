"""Verification rules of speculative decoding that keep the target's distribution.

P is the target's distribution at a node after all processors, Q the one that a drafter drew from. Every rule draws the
next token from P in a way that agrees with the drafts as often as it can. A rule therefore returns a single token, and
the walk along the tree is the same for all (`verification.picking.walk`).

A copied child counts as a draw from a one-hot Q. At each node the drawn children are tried first, in the order drawn,
then the copied ones. A rejected token has no mass left. So a copied child that equals a drawn token need not be tried
again, copied children may be chosen after seeing the draws, and one draw beside copied children is accepted at least
as often as in the reverse order.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NoReturn

from copyspec.literature.candidates import (
    DraftCandidate,
    Randomness,
    candidates_of,
    draws_of,
    k_sequential,
    verify_candidates,
)
from copyspec.literature.sampled import NextToken, Nodes, RulePicks
from copyspec.tree import DraftTree

if TYPE_CHECKING:
    import torch

    from copyspec.options import SamplingOptions
    from copyspec.targets.base import Target
    from copyspec.verification.picking import Picker


class DraftRule(ABC):
    """A `verification.rule.Rule` that accepts draft tokens; `begin` holds the state of one tree."""

    __slots__ = ()

    name: ClassVar[str]
    keeps_distribution: ClassVar[bool] = True
    """Whether the output has the target's distribution, and under greedy decoding the target's tokens."""

    model: ClassVar[None] = None
    """It needs no second model."""

    def check(self, sampling: SamplingOptions) -> None:  # noqa: B027  most rules decode with any options
        """Raise ValueError if the rule cannot decode with these options."""

    def uses_drafts(self, sampling: SamplingOptions) -> bool:
        """Whether the output depends on what is drafted."""
        return not (self.keeps_distribution and sampling.is_greedy)

    def picks(self, picker: Picker, logits: torch.Tensor, tree: DraftTree) -> RulePicks:
        """The picks of one row and step, that is the token that follows each node; `logits` [1 + m, V] of the root and
        each node of `tree`."""
        return RulePicks(self.begin, picker, logits, tree)

    def rescorer(self, model: Target) -> NoReturn:
        """There is none without a second model."""
        raise NotImplementedError

    @abstractmethod
    def begin(self, tree: DraftTree, nodes: Nodes) -> NextToken:
        """Start verifying one tree. Raises ValueError if the rule does not support the way its tokens were drawn."""


class Children:
    """The candidates at the nodes of a tree: drawn children in the order drawn, then the others as stored."""

    def __init__(self, tree: DraftTree) -> None:
        self._sampled = draws_of(tree)
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


def _in_turns(tree: DraftTree, nodes: Nodes, most: int | None = None) -> NextToken:
    """Try the children of each node in order, drawn ones first, and at most `most` of them."""
    children = Children(tree)

    def decide(p: torch.Tensor, node: int, rng: Randomness) -> tuple[int | None, torch.Tensor]:
        return verify_candidates(p, [*children.drawn(node, p), *children.copied(node)][:most], rng)

    return at_each_node(decide, nodes)


@dataclass(frozen=True, slots=True)
class Rejection(DraftRule):
    """The rule of Leviathan et al. and Chen et al. for chains: of several children only the first is tried."""

    name: ClassVar[str] = "rejection"

    def begin(self, tree: DraftTree, nodes: Nodes) -> NextToken:
        return _in_turns(tree, nodes, most=1)


@dataclass(frozen=True, slots=True)
class MultiStep(DraftRule):
    """SpecInfer's rule for trees, with draws with or without replacement and copied children."""

    name: ClassVar[str] = "multi-step"

    def begin(self, tree: DraftTree, nodes: Nodes) -> NextToken:
        return _in_turns(tree, nodes)


@dataclass(frozen=True, slots=True)
class KSequential(DraftRule):
    """SpecTr's rule for k independent draws; copied children are then tried on what is left of P."""

    name: ClassVar[str] = "k-sequential"

    def begin(self, tree: DraftTree, nodes: Nodes) -> NextToken:
        if any(not drawn.replacement and len(drawn.tokens) > 1 for drawn in draws_of(tree).values()):
            raise ValueError(
                f"rule {self.name!r} needs children drawn with replacement; for draws without it use MultiStep()"
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
