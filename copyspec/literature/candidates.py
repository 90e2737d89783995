"""Acceptance of the draft tokens at one node, tried one after the other: functions of float32 tensors and of the
randomness passed to them.

P is the target's distribution after all processors, Q the drafter's, and R what is left of P after rejections.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

from copyspec.common.checks import brief, shown
from copyspec.tree import DraftTree

if TYPE_CHECKING:
    import torch

# Halvings of an interval within [1, k]: below float32's resolution for any k that fits into a tree.
_BISECTIONS = 40
# Above this overlap P and Q are equal up to float32's rounding. The equation is then too flat to solve, so rho is 1.
_EQUAL = 1 - 1e-6


@dataclass(frozen=True, slots=True)
class Sampled:
    """Tokens that a drafter sampled after one node, for the rules that need their distribution: `DraftTree.notes`.

    Every draw is listed, in the order drawn: a token may repeat, may equal that of a copied child, and need not
    have a node in the tree. Dropping a draw because of its value would bias every such rule.
    """

    tokens: Sequence[int]  # [k]
    probabilities: torch.Tensor  # [V], float32: the distribution Q drawn from, after temperature and truncation
    replacement: bool = True  # False: each draw is from Q without the tokens drawn before, renormalised


def draws_of(tree: DraftTree) -> Mapping[int, Sampled]:
    """The draws of a tree, by parent; all other children are deterministic (Q is one-hot). Raises ValueError for
    notes that are not draws."""
    draws: dict[int, Sampled] = {}
    for parent, drawn in (tree.notes or {}).items():
        if not isinstance(drawn, Sampled):
            raise ValueError(f"notes[{parent}] must be a Sampled, got {shown(drawn)}")
        q, tokens = drawn.probabilities, drawn.tokens
        if not (hasattr(q, "is_floating_point") and q.is_floating_point() and q.dim() == 1):
            raise ValueError(
                f"the distribution drawn from after node {parent} must be a float tensor [V], got {shown(q)}"
            )
        if not isinstance(tokens, Sequence) or not all(hasattr(token, "__index__") for token in tokens):
            raise ValueError(f"the tokens drawn after node {parent} must be a list of token ids, got {shown(tokens)}")
        if (strange := next((token for token in tokens if not 0 <= token < len(q)), None)) is not None:
            raise ValueError(f"{brief(strange)} is drawn after node {parent}; ids go from 0 to {len(q) - 1}")
        # Reading the sum would synchronise with another device.
        if q.is_cpu and (not math.isclose(total := float(q.sum()), 1.0, abs_tol=1e-3) or float(q.min()) < 0.0):
            raise ValueError(
                f"the distribution drawn from after node {parent} sums to {total!r}, not to 1, or is negative"
            )
        draws[parent] = drawn
    return draws


class DraftCandidate(NamedTuple):
    """A draft token at a node, and the distribution it was drawn from."""

    token: int
    q: torch.Tensor | None  # [V], renormalised if drawn without replacement; None: copied


class Randomness(Protocol):
    """The randomness of one output position, independent of the randomness that drew the drafts."""

    def accepts(self, probability: float) -> bool:
        """Return True with this probability: u < probability is strict, so that 0 is never accepted."""

    def token(self, probabilities: torch.Tensor) -> int:
        """Draw a token from `probabilities` [V], which need not sum to 1."""


def verify_candidates(
    p: torch.Tensor, candidates: Sequence[DraftCandidate], rng: Randomness, *, lenience: float = 1.0
) -> tuple[int | None, torch.Tensor]:
    """Try the candidates in order; return the accepted token, or None and what is left of P to draw from, [V].

    Multi-step speculative sampling (SpecInfer, Miao et al. 2024, arXiv:2305.09781, algorithm 2): accept with
    min(1, R/Q), else set R = norm(max(0, R - Q)). With one candidate this is the rule of Leviathan et al. 2023
    (arXiv:2211.17192) and Chen et al. 2023 (arXiv:2302.01318). A `lenience` below 1 divides the ratio; the
    distribution is then not preserved.
    """
    rest = p
    for token, q in candidates:
        if rng.accepts(acceptance(rest, q, token, lenience=lenience)):
            return token, rest
        rest = residual(rest, q, token)
    return None, rest


def acceptance(r: torch.Tensor, q: torch.Tensor | None, token: int, *, lenience: float = 1.0) -> float:
    """min(1, R/(lenience Q)) at `token`. Raises ValueError if Q gives the token no probability."""
    if q is None:
        return min(1.0, float(r[token]) / lenience)
    drawn_with = float(q[token])
    if not drawn_with > 0.0:
        raise ValueError(
            f"token {token} was drawn from a distribution that gives it probability {drawn_with!r}: "
            "Sampled.probabilities must be the distribution that it was drawn from, after temperature and truncation"
        )
    return min(1.0, float(r[token]) / (lenience * drawn_with))


def residual(r: torch.Tensor, q: torch.Tensor | None, token: int) -> torch.Tensor:
    """norm(max(0, R - Q)) after `token` was rejected. If rounding leaves no mass: R without the token."""
    if q is not None:
        rest = (r - q).clamp(min=0.0)
        if float(mass := rest.sum()) > 0.0:
            return rest / mass
    rest = r.clone()
    rest[token] = 0.0
    mass = rest.sum()
    return rest / mass if float(mass) > 0.0 else r


def k_sequential(
    p: torch.Tensor, q: torch.Tensor, tokens: Sequence[int], rng: Randomness
) -> tuple[int | None, torch.Tensor]:
    """Try k independent draws from Q; return the accepted token, or None and what is left of P, [V].

    SpecTr (Sun et al. 2023, arXiv:2310.15141, algorithm 3): accept with min(1, P/(rho Q)); what is left is
    norm(P - min(Q, P/rho) Pacc/beta). Any rho that is at least the solution keeps the distribution.
    """
    if not tokens:
        return None, p
    rho = solve_rho(p, q, len(tokens))
    for token in tokens:
        if rng.accepts(acceptance(p, q, token, lenience=rho)):
            return token, p
    covered = q.minimum(p / rho)
    beta = min(float(covered.sum()), 1.0)
    accepted = (1.0 - (1.0 - beta) ** len(tokens)) / beta if beta > 0.0 else 0.0
    rest = (p - covered * accepted).clamp(min=0.0)
    mass = float(rest.sum())
    if mass > 0.0:
        return None, rest / mass
    rest = p
    for token in tokens:
        rest = residual(rest, None, token)
    return None, rest


def solve_rho(p: torch.Tensor, q: torch.Tensor, k: int) -> float:
    """Solve 1 - (1 - beta)^k = rho beta, beta = sum min(Q, P/rho), for rho in [1, k] from above, by bisection."""
    if k == 1 or float(q.minimum(p).sum()) >= _EQUAL:
        return 1.0
    low, high = 1.0, float(k)
    for _ in range(_BISECTIONS):
        rho = (low + high) / 2
        beta = float(q.minimum(p / rho).sum())
        if 1.0 - (1.0 - min(beta, 1.0)) ** k > rho * beta:
            low = rho
        else:
            high = rho
    return high


def candidates_of(drawn: Sampled, p: torch.Tensor) -> list[DraftCandidate]:
    """The candidates drawn at a node, in order. Raises ValueError if Q is not over P's vocabulary."""
    q = drawn.probabilities.to(p)
    if q.shape != p.shape:
        raise ValueError(
            f"the drafter drew from {list(q.shape)} tokens where the target has {list(p.shape)}: "
            "hand over a distribution over the target's vocabulary"
        )
    candidates: list[DraftCandidate] = []
    for token in drawn.tokens:
        candidates.append(DraftCandidate(token, q))
        if not drawn.replacement:
            q = residual(q, None, token)
    return candidates
