"""The classical rules of speculative decoding that keep the target's distribution.

P is the target's distribution at a node after all processors, Q the one that a drafter drew from. Every rule here is
the same kind of thing: a way to draw the next token from P that agrees with the drafts as often as it can. So every
rule answers with one token, and the walk along the tree stays what it is (`walk.walk`).

A copied child is a draw from a one-hot Q. At a node the drawn children have their turns first, in the order drawn,
then the copied ones. After a rejected turn no mass is left on its token: a copied child that holds a drawn token needs
no turn of its own, copied children may be chosen knowing the draws, and one draw beside copied children is accepted
at least as often as in the other order.
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
"""What a rule preserves: the very tokens of plain decoding at that seed, or their distribution."""


class Nodes(Protocol):
    """The target at the nodes of one tree (ROOT is -1), as a rule sees it."""

    @property
    def greedy(self) -> bool:
        """Temperature 0: P is the softmax of the scores, and the output is their argmax."""
        ...

    def own_token(self, node: int) -> int:
        """The target's own token after `node`: what plain decoding would emit at this seed."""
        ...

    def probabilities(self, node: int) -> torch.Tensor:
        """P after `node`. [V], float32."""
        ...

    def chance(self, node: int) -> Randomness:
        """The randomness of the position after `node`, from its beginning."""
        ...


NextToken = Callable[[int], int]
"""The token after a node; asked from the root along the accepted walk, once per node."""


class Rule(Protocol):
    """A rule of verification. Frozen, without state: what belongs to one tree is in what `begin` returns."""

    name: ClassVar[str]
    preserves: ClassVar[Guarantee | None]
    """None: lossy. The output follows neither the target's tokens nor its distribution."""

    def check(self, sampling: SamplingOptions) -> None:
        """Raises ValueError where the rule cannot decode with these options."""
        ...

    def begin(self, tree: DraftTree, nodes: Nodes) -> NextToken:
        """Verification of one tree. Raises ValueError where the drafter's draws do not fit the rule."""
        ...


class Children:
    """The turns at the nodes of a tree: drawn children in the order drawn, then the others as stored."""

    def __init__(self, tree: DraftTree) -> None:
        self._sampled = tree.sampled or {}
        self._tokens: dict[int, list[int]] = {}
        for parent, token in zip(tree.parents, tree.tokens, strict=True):
            self._tokens.setdefault(parent, []).append(token)

    def drawn(self, node: int, p: torch.Tensor) -> list[DraftCandidate]:
        return candidates_of(self._sampled[node], p) if node in self._sampled else []

    def copied(self, node: int) -> list[DraftCandidate]:
        drawn = set(self._sampled[node].tokens) if node in self._sampled else set()
        return [DraftCandidate(token, None) for token in self._tokens.get(node, ()) if token not in drawn]


@dataclass(frozen=True, slots=True)
class Coupled:
    """The default: the target's own token, sampled with noise that belongs to the position. Needs no Q."""

    name: ClassVar[str] = "coupled"
    preserves: ClassVar[Guarantee | None] = "tokens"

    def check(self, sampling: SamplingOptions) -> None:
        pass

    def begin(self, tree: DraftTree, nodes: Nodes) -> NextToken:
        return nodes.own_token


@dataclass(frozen=True, slots=True)
class Greedy:
    """The argmax of P, and a refusal to sample."""

    name: ClassVar[str] = "greedy"
    preserves: ClassVar[Guarantee | None] = "tokens"

    def check(self, sampling: SamplingOptions) -> None:
        require_greedy(self.name, sampling)

    def begin(self, tree: DraftTree, nodes: Nodes) -> NextToken:
        return nodes.own_token


def _in_turns(tree: DraftTree, nodes: Nodes, most: int | None = None) -> NextToken:
    """The children of a node have their turns, drawn ones first, `most` of them."""
    children = Children(tree)

    def decide(p: torch.Tensor, node: int, chance: Randomness) -> tuple[int | None, torch.Tensor]:
        return verify_candidates(p, [*children.drawn(node, p), *children.copied(node)][:most], chance)

    return at_each_node(decide, nodes)


@dataclass(frozen=True, slots=True)
class Rejection:
    """Leviathan's and Chen's rule, made for chains: of several children the first turn alone counts."""

    name: ClassVar[str] = "rejection"
    preserves: ClassVar[Guarantee | None] = "distribution"

    def check(self, sampling: SamplingOptions) -> None:
        pass

    def begin(self, tree: DraftTree, nodes: Nodes) -> NextToken:
        return _in_turns(tree, nodes, most=1)


@dataclass(frozen=True, slots=True)
class MultiStep:
    """SpecInfer's rule on trees, for draws with and without replacement and for copied children beside them."""

    name: ClassVar[str] = "multi-step"
    preserves: ClassVar[Guarantee | None] = "distribution"

    def check(self, sampling: SamplingOptions) -> None:
        pass

    def begin(self, tree: DraftTree, nodes: Nodes) -> NextToken:
        return _in_turns(tree, nodes)


@dataclass(frozen=True, slots=True)
class KSequential:
    """SpecTr's rule for k independent draws; copied children have their turns on what it leaves."""

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

        def decide(p: torch.Tensor, node: int, chance: Randomness) -> tuple[int | None, torch.Tensor]:
            drawn = children.drawn(node, p)
            token: int | None = None
            if drawn and (q := drawn[0].q) is not None:
                token, p = k_sequential(p, q, [turn.token for turn in drawn], chance)
            return (token, p) if token is not None else verify_candidates(p, children.copied(node), chance)

        return at_each_node(decide, nodes)


def at_each_node(
    decide: Callable[[torch.Tensor, int, Randomness], tuple[int | None, torch.Tensor]], nodes: Nodes
) -> NextToken:
    """The rule that decides node by node: an accepted draft, or a draw from what is left. Greedy P is one-hot."""

    def next_token(node: int) -> int:
        chance = nodes.chance(node)
        token, rest = decide(nodes.probabilities(node), node, chance)
        return chance.token(rest) if token is None else token

    return nodes.own_token if nodes.greedy else next_token


def require_greedy(name: str, sampling: SamplingOptions) -> None:
    """Raises ValueError where a rule that emits the argmax is asked to sample."""
    if not sampling.is_greedy:
        raise ValueError(
            f"rule {name!r} emits the most likely token: leave out temperature={sampling.temperature!r}, "
            "or choose a rule that samples"
        )
