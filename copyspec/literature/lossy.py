"""Lossy verification rules, which accept tokens that the target would not emit: other output in fewer passes.

None of them keeps the target's tokens or its distribution. Rules that judge each draft token by P alone may accept
several siblings: the longest accepted path is chosen, and among equally long ones the one with the highest summed
log P.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from copyspec.common.checks import check_number
from copyspec.literature.candidates import Randomness, draws_of, verify_candidates
from copyspec.literature.rules import Children, DraftRule, at_each_node, require_greedy
from copyspec.literature.sampled import NextToken, Nodes
from copyspec.tree import ROOT, DraftTree, path_to

if TYPE_CHECKING:
    import torch

    from copyspec.options import SamplingOptions


@dataclass(frozen=True, slots=True)
class Lenience(DraftRule):
    """Acceptance probability divided by `lenience` (Leviathan et al. 2023, appendix A.5).

    When sampling, accept with min(1, R/(lenience Q)); no token's probability exceeds P/lenience. Greedy: accept
    where P >= lenience max P.
    """

    name: ClassVar[str] = "lenience"
    keeps_distribution: ClassVar[bool] = False

    lenience: float = 0.5  # 1 is equivalent to the exact rule

    def __post_init__(self) -> None:
        check_number("lenience", self.lenience, low=0.0, high=1.0, open_low=True)

    def begin(self, tree: DraftTree, nodes: Nodes) -> NextToken:
        if nodes.greedy:
            return _longest_path(tree, nodes, self._passes)
        children = Children(tree)

        def decide(p: torch.Tensor, node: int, rng: Randomness) -> tuple[int | None, torch.Tensor]:
            candidates = [*children.drawn(node, p), *children.copied(node)]
            return verify_candidates(p, candidates, rng, lenience=self.lenience)

        return at_each_node(decide, nodes)

    def _passes(self, p: torch.Tensor, tokens: torch.Tensor, node: int) -> torch.Tensor:
        return p[tokens] >= self.lenience * p.max()


@dataclass(frozen=True, slots=True)
class TopKGap(DraftRule):
    """SpecDec's verification (Xia et al. 2023, arXiv:2203.16487), greedy: accept the `beta` best tokens that are at
    most `tau` below the best in log P."""

    name: ClassVar[str] = "top-k-gap"
    keeps_distribution: ClassVar[bool] = False

    beta: int = 5  # maximum rank
    tau: float = 3.0  # nats

    def __post_init__(self) -> None:
        if not isinstance(self.beta, int) or isinstance(self.beta, bool) or self.beta < 1:
            raise ValueError(f"beta must be an integer >= 1, got {self.beta!r}")
        check_number("tau", self.tau, low=0.0)

    def check(self, sampling: SamplingOptions) -> None:
        require_greedy(self.name, sampling)

    def begin(self, tree: DraftTree, nodes: Nodes) -> NextToken:
        return _longest_path(tree, nodes, self._passes)

    def _passes(self, p: torch.Tensor, tokens: torch.Tensor, node: int) -> torch.Tensor:
        # Tied tokens are ranked by id, as in argmax: with beta 1 only the argmax passes.
        best = p.sort(descending=True, stable=True).indices[: self.beta]
        ranked = (tokens.unsqueeze(1) == best).any(1)
        return ranked & (p.max().log() - p[tokens].log() <= self.tau)


@dataclass(frozen=True, slots=True)
class BiLD(DraftRule):
    """Big Little Decoder's policies (Kim et al. 2023, arXiv:2302.07863, section 3). Greedy.

    Fallback: where the drafter's maximum probability is below `fallback`, the target's token is used. Rollback: the
    first draft token with -log P above `rollback` is replaced by the target's.
    """

    name: ClassVar[str] = "bild"
    keeps_distribution: ClassVar[bool] = False

    fallback: float = 0.6  # minimum of max Q; children without a Q count as certain
    rollback: float = 5.0  # nats

    def __post_init__(self) -> None:
        check_number("fallback", self.fallback, low=0.0, high=1.0)
        check_number("rollback", self.rollback, low=0.0)

    def check(self, sampling: SamplingOptions) -> None:
        require_greedy(self.name, sampling)

    def begin(self, tree: DraftTree, nodes: Nodes) -> NextToken:
        sampled = draws_of(tree)
        unsure = {node for node, drawn in sampled.items() if float(drawn.probabilities.max()) < self.fallback}

        def passes(p: torch.Tensor, tokens: torch.Tensor, node: int) -> torch.Tensor:
            close = -p[tokens].log() <= self.rollback
            if node in unsure:
                drawn = set(sampled[node].tokens)
                close &= close.new_tensor([token not in drawn for token in tokens.tolist()])
            return close

        return _longest_path(tree, nodes, passes)


@dataclass(frozen=True, slots=True)
class Typical(DraftRule):
    """Typical acceptance (Medusa, Cai et al. 2024, arXiv:2401.10774, section 2.3.1): P > min(epsilon,
    delta exp(-H(P))), with P at the sampling temperature, or at 1 when greedy."""

    name: ClassVar[str] = "typical"
    keeps_distribution: ClassVar[bool] = False

    epsilon: float = 0.09
    delta: float = 0.3

    def __post_init__(self) -> None:
        check_number("epsilon", self.epsilon, low=0.0, high=1.0, open_low=True)
        check_number("delta", self.delta, low=0.0, high=1.0, open_low=True)

    def begin(self, tree: DraftTree, nodes: Nodes) -> NextToken:
        return _longest_path(tree, nodes, self._passes)

    def _passes(self, p: torch.Tensor, tokens: torch.Tensor, node: int) -> torch.Tensor:
        entropy = -p.xlogy(p).sum()
        return p[tokens] > (self.delta * (-entropy).exp()).clamp(max=self.epsilon)


Passes = Callable[["torch.Tensor", "torch.Tensor", int], "torch.Tensor"]
"""Maps P [V] after a node, its children's tokens [c] and the node to which children are accepted, bool [c]."""


def _longest_path(tree: DraftTree, nodes: Nodes, passes: Passes) -> NextToken:
    """Emit the chosen path's tokens, then the target's own: the argmax when greedy, else a draw from P."""
    path = _choose(tree, nodes, passes)
    following = {tree.parents[node]: tree.tokens[node] for node in path}

    def next_token(node: int) -> int:
        return following[node] if node in following else nodes.own_token(node)

    return next_token


def _choose(tree: DraftTree, nodes: Nodes, passes: Passes) -> Sequence[int]:
    """The accepted path, root to leaf: the longest, then the most probable, then the first in stored order."""
    children: dict[int, list[int]] = {}
    for node, parent in enumerate(tree.parents):
        children.setdefault(parent, []).append(node)
    reached: dict[int, tuple[int, float]] = {ROOT: (0, 0.0)}
    best = ROOT
    for parent in [ROOT, *range(len(tree))]:
        if parent not in reached or parent not in children:
            continue
        p = nodes.probabilities(parent)
        tokens = p.new_tensor([tree.tokens[child] for child in children[parent]]).long()
        # An infinite bound must not admit a token that a processor or a grammar forbids.
        accepted, logs = (passes(p, tokens, parent) & (p[tokens] > 0)).tolist(), p[tokens].log().tolist()
        depth, log_p = reached[parent]
        for child, passed, own_log in zip(children[parent], accepted, logs, strict=True):
            if passed:
                reached[child] = (depth + 1, log_p + own_log)
                best = child if reached[child] > reached[best] else best
    return path_to(tree.parents, best)
