"""Verification of one row's step by a rule: position-keyed randomness, the target's nodes, and draws for drafters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch

from copyspec.literature.candidates import Randomness, Sampled, residual
from copyspec.options import SamplingOptions
from copyspec.tree import ROOT, DraftTree, path_to
from copyspec.verification.noise import gumbel, uniform
from copyspec.verification.picking import Picker

# XORed into the seed, so that drafting, verification and the coupled walk never share a random number. The constants
# are hex digits of pi, above the 32 bits that seeds usually have.
_VERIFYING, _DRAFTING = 0x243F6A8800000000, 0x85A308D300000000
_SAMPLE_BITS = 32  # the draw's number at a position is stored above the bits of the sample's number


class KeyedRandom:
    """Random numbers of one output position, the same each time the position is decided."""

    def __init__(self, sampling: SamplingOptions, position: int, *, drafting: bool = False) -> None:
        """`drafting`: the numbers for a drafter's draws, which are independent of those that verify them."""
        self._seed = sampling.seed ^ (_DRAFTING if drafting else _VERIFYING)
        self._sample = sampling.sample
        self._position = position
        self._draws = 0

    def accepts(self, probability: float) -> bool:
        self._draws += 1
        return uniform(self._seed, self._sample, self._position, self._draws) < probability

    def token(self, probabilities: torch.Tensor) -> int:
        self._draws += 1
        sample = self._sample + (self._draws << _SAMPLE_BITS)
        noise = gumbel(self._seed, sample, [self._position], len(probabilities), probabilities.device)
        return int((probabilities.log() + noise[0]).argmax())


def draw(q: torch.Tensor, count: int, rng: Randomness, *, replacement: bool = True) -> Sampled:
    """Draw `count` draft tokens for `DraftTree.notes` from Q [V], given after temperature and truncation.

    Without replacement, fewer are returned if Q has fewer tokens. `rng`: that of the drafted position,
    `KeyedRandom(sampling, position, drafting=True)`.
    """
    q = q.float() / q.float().sum()
    if not replacement:
        count = min(count, int((q > 0).sum()))
    tokens: list[int] = []
    rest = q
    for _ in range(count):
        tokens.append(rng.token(rest))
        rest = rest if replacement else residual(rest, None, tokens[-1])
    return Sampled(tokens, q, replacement)


class Nodes(Protocol):
    """The interface through which a rule sees the target at the nodes of one tree (ROOT is -1)."""

    @property
    def greedy(self) -> bool:
        """Whether the temperature is 0: P is then the softmax of the scores, and the output their argmax."""

    def own_token(self, node: int) -> int:
        """The target's own token after `node`, which plain decoding would emit at this seed."""

    def probabilities(self, node: int) -> torch.Tensor:
        """P after `node`. [V], float32."""

    def randomness(self, node: int) -> Randomness:
        """New randomness for the position after `node`; each call restarts its sequence."""


NextToken = Callable[[int], int]
"""Returns the token after a node. Called once per node, from the root along the accepted path."""


class RulePicks:
    """Picks under a rule, for `walk`. Repeating a step gives the same random numbers."""

    def __init__(
        self, begin: Callable[[DraftTree, Nodes], NextToken], picker: Picker, logits: torch.Tensor, tree: DraftTree
    ) -> None:
        """`begin`: of the rule. `logits` [1 + m, V] of the root and each node of `tree`. Create it before the step's
        first `append`."""
        self._picker = picker
        self._logits = logits
        self._tree = tree
        self._start = picker.length
        self._depths = tree.depths()
        self._scores: dict[int, torch.Tensor] = {}  # [V] by node, without noise
        self._begin = begin
        self._next: NextToken | None = None

    @property
    def greedy(self) -> bool:
        return self._picker.sampling.is_greedy

    def token(self, node: int) -> int:
        if self._next is None:  # not earlier, so that an error of a logits processor is raised inside the row's walk
            self._next = self._begin(self._tree, self)
        return self._next(node)

    def own_token(self, node: int) -> int:
        scores = self.scores(node)
        if not self.greedy:
            sampling, position = self._picker.sampling, self._position(node)
            scores = scores + gumbel(sampling.seed, sampling.sample, [position], len(scores), scores.device)[0]
        return int(scores.argmax())

    def probabilities(self, node: int) -> torch.Tensor:
        return self.scores(node).softmax(-1)

    def randomness(self, node: int) -> Randomness:
        return KeyedRandom(self._picker.sampling, self._position(node))

    def scores(self, node: int) -> torch.Tensor:
        if node not in self._scores:
            unseen = self._path(node)[self._picker.length - self._start :]
            self._scores[node] = self._picker.unperturbed(self._logits[node + 1][None], unseen)[0]
        return self._scores[node]

    def _position(self, node: int) -> int:
        return self._start + (0 if node == ROOT else self._depths[node])

    def _path(self, node: int) -> Sequence[int]:
        """Draft tokens from the root to `node`."""
        return [self._tree.tokens[ancestor] for ancestor in path_to(self._tree.parents, node)]
