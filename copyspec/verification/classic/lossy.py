"""The classical rules that accept more than the target would have written: other output for fewer calls.

None of them keeps the target's tokens or its distribution. They are here to be compared with, and run only where they
are asked for by name and with `lossy=True`. Those that judge each draft token by P alone may accept several siblings:
the longest accepted path is taken, then the one with the highest summed log P.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from copyspec.tree import ROOT, DraftTree
from copyspec.verification.classic.candidates import Randomness, verify_candidates
from copyspec.verification.classic.rules import Children, Guarantee, NextToken, Nodes, at_each_node, require_greedy

if TYPE_CHECKING:
    import torch

    from copyspec.options import SamplingOptions


@dataclass(frozen=True, slots=True)
class Lenience:
    """Acceptance divided by `lenience` (Leviathan et al. 2023, appendix A.5).

    Sampling: accept with min(1, R/(lenience Q)); no token is emitted with more than P/lenience. Greedy: accept
    where P >= lenience max P.
    """

    name: ClassVar[str] = "lenience"
    preserves: ClassVar[Guarantee | None] = None

    lenience: float = 0.5  # 1 would accept as the exact rule does

    def __post_init__(self) -> None:
        _between("lenience", self.lenience, 0.0, 1.0)

    def check(self, sampling: SamplingOptions) -> None:
        pass

    def begin(self, tree: DraftTree, nodes: Nodes) -> NextToken:
        if nodes.greedy:
            return _longest_path(tree, nodes, self._passes)
        children = Children(tree)

        def decide(p: torch.Tensor, node: int, chance: Randomness) -> tuple[int | None, torch.Tensor]:
            turns = [*children.drawn(node, p), *children.copied(node)]
            return verify_candidates(p, turns, chance, lenience=self.lenience)

        return at_each_node(decide, nodes)

    def _passes(self, p: torch.Tensor, tokens: torch.Tensor, node: int) -> torch.Tensor:
        return p[tokens] >= self.lenience * p.max()


@dataclass(frozen=True, slots=True)
class TopKGap:
    """SpecDec's verification (Xia et al. 2023, arXiv:2203.16487): among the best `beta`, and at most `tau` below
    the best in log P. Greedy."""

    name: ClassVar[str] = "top-k-gap"
    preserves: ClassVar[Guarantee | None] = None

    beta: int = 5  # rank
    tau: float = 3.0  # nats

    def __post_init__(self) -> None:
        if not isinstance(self.beta, int) or isinstance(self.beta, bool) or self.beta < 1:
            raise ValueError(f"beta must be a whole number from 1, got {self.beta!r}")
        _between("tau", self.tau, 0.0, math.inf, closed_low=True)

    def check(self, sampling: SamplingOptions) -> None:
        require_greedy(self.name, sampling)

    def begin(self, tree: DraftTree, nodes: Nodes) -> NextToken:
        return _longest_path(tree, nodes, self._passes)

    def _passes(self, p: torch.Tensor, tokens: torch.Tensor, node: int) -> torch.Tensor:
        # Equal tokens rank by id, as argmax takes them: with beta 1 only the argmax passes.
        best = p.sort(descending=True, stable=True).indices[: self.beta]
        ranked = (tokens.unsqueeze(1) == best).any(1)
        return ranked & (p.max().log() - p[tokens].log() <= self.tau)


@dataclass(frozen=True, slots=True)
class BiLD:
    """Big Little Decoder's policies (Kim et al. 2023, arXiv:2302.07863, section 3). Greedy.

    Fallback: where the drafter's Q stays below `fallback` the target writes. Rollback: the first draft token with
    -log P above `rollback` is replaced by the target's.
    """

    name: ClassVar[str] = "bild"
    preserves: ClassVar[Guarantee | None] = None

    fallback: float = 0.6  # of max Q; children that come without a Q are certain
    rollback: float = 5.0  # nats

    def __post_init__(self) -> None:
        _between("fallback", self.fallback, 0.0, 1.0, closed_low=True)
        _between("rollback", self.rollback, 0.0, math.inf, closed_low=True)

    def check(self, sampling: SamplingOptions) -> None:
        require_greedy(self.name, sampling)

    def begin(self, tree: DraftTree, nodes: Nodes) -> NextToken:
        sampled = tree.sampled or {}
        unsure = {node for node, drawn in sampled.items() if float(drawn.probabilities.max()) < self.fallback}

        def passes(p: torch.Tensor, tokens: torch.Tensor, node: int) -> torch.Tensor:
            close = -p[tokens].log() <= self.rollback
            if node in unsure:
                drawn = set(sampled[node].tokens)
                close &= close.new_tensor([token not in drawn for token in tokens.tolist()])
            return close

        return _longest_path(tree, nodes, passes)


@dataclass(frozen=True, slots=True)
class Typical:
    """Typical acceptance (Medusa, Cai et al. 2024, arXiv:2401.10774, section 2.3.1): P > min(epsilon,
    delta exp(-H(P))), P at the sampling temperature, or at 1 when greedy."""

    name: ClassVar[str] = "typical"
    preserves: ClassVar[Guarantee | None] = None

    epsilon: float = 0.09
    delta: float = 0.3

    def __post_init__(self) -> None:
        _between("epsilon", self.epsilon, 0.0, 1.0)
        _between("delta", self.delta, 0.0, 1.0)

    def check(self, sampling: SamplingOptions) -> None:
        pass

    def begin(self, tree: DraftTree, nodes: Nodes) -> NextToken:
        return _longest_path(tree, nodes, self._passes)

    def _passes(self, p: torch.Tensor, tokens: torch.Tensor, node: int) -> torch.Tensor:
        entropy = -p.xlogy(p).sum()
        return p[tokens] > (self.delta * (-entropy).exp()).clamp(max=self.epsilon)


Passes = Callable[["torch.Tensor", "torch.Tensor", int], "torch.Tensor"]
"""(P [V] after a node, its children's tokens [c], the node) -> which children are accepted, bool [c]."""


def _longest_path(tree: DraftTree, nodes: Nodes, passes: Passes) -> NextToken:
    """Along the chosen path its tokens, then the target's own: the argmax when greedy, else a draw from P."""
    path = _choose(tree, nodes, passes)
    following = {tree.parents[node]: tree.tokens[node] for node in path}

    def next_token(node: int) -> int:
        return following[node] if node in following else nodes.own_token(node)

    return next_token


def _choose(tree: DraftTree, nodes: Nodes, passes: Passes) -> Sequence[int]:
    """The accepted path, root to leaf: the longest, then the likeliest, then the one stored first."""
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
        accepted, logs = passes(p, tokens, parent).tolist(), p[tokens].log().tolist()
        depth, log_p = reached[parent]
        for child, passed, own_log in zip(children[parent], accepted, logs, strict=True):
            if passed:
                reached[child] = (depth + 1, log_p + own_log)
                best = child if reached[child] > reached[best] else best
    path: list[int] = []
    while best != ROOT:
        path.append(best)
        best = tree.parents[best]
    return path[::-1]


def _between(name: str, value: float, low: float, high: float, *, closed_low: bool = False) -> None:
    fits = isinstance(value, (int, float)) and not isinstance(value, bool) and low <= value <= high
    if not fits or (value == low and not closed_low):
        bounds = f"{'at least' if closed_low else 'above'} {low:g}"
        bounds += f" and at most {high:g}" if high < math.inf else ""
        raise ValueError(f"{name} must be a number {bounds}, got {value!r}")
