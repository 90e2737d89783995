"""Mistakes that change the output's distribution. Each is made here on purpose and detected; the rules avoid them.

The sizes are those of a toy example, `enumeration.P` and `enumeration.Q`, by exact enumeration.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from copyspec.literature import Sampled
from copyspec.literature.candidates import DraftCandidate, Randomness, verify_candidates
from copyspec.literature.sampled import draw
from copyspec.tree import DraftTree
from tests.helpers.enumeration import EXACT, P, Q, TableNodes, emitted, rule, tree_of, variation, walked

SHARPENED = (Q.log() / 0.6).softmax(-1)  # Q after a processor: temperature 0.6
SPREAD = torch.tensor([6.0, 2.0, 4.0, 1.0, 11.0]) / 24
RARE = 0.05  # SPREAD has one token below this
BEST, SECOND = (int(token) for token in Q.topk(2).indices)


def settle(p: torch.Tensor, candidates: list[DraftCandidate], rng: Randomness) -> int:
    token, rest = verify_candidates(p, candidates, rng)
    return rng.token(rest) if token is None else token


def under(name: str, tree: DraftTree, rng: Randomness) -> int:
    """Return the first token that one step with copyspec's rule emits."""
    nodes = TableNodes(P[None], tree, rng)
    return walked(rule(name), tree, nodes, 1)[0]


def every_path_draws(rng: Randomness) -> int:
    """REST's and Medusa's nucleus mode: each path has its own sample, and a fresh one ends the step."""
    samples = [rng.token(P) for _ in range(2)]
    for child, sample in zip((BEST, SECOND), samples, strict=True):
        if sample == child:
            return child
    return rng.token(P)


def one_draw_for_all_paths(rng: Randomness) -> int:
    return under("coupled", tree_of({(): [BEST, SECOND]}, {}), rng)


def unchanged_q(rng: Randomness) -> int:
    """Children drawn without replacement, verified with the Q of the first."""
    drawn = draw(Q, 2, rng, replacement=False)
    return settle(P, [DraftCandidate(token, Q) for token in drawn.tokens], rng)


def renormalised_q(rng: Randomness) -> int:
    return under("multi-step", tree_of({}, {(): draw(Q, 2, rng, replacement=False)}), rng)


def ratio_for_certain_children(rng: Randomness) -> int:
    """The two most likely children of Q, which are always drafted, verified as if they were drawn."""
    return settle(P, [DraftCandidate(BEST, Q), DraftCandidate(SECOND, Q)], rng)


def certain_children(rng: Randomness) -> int:
    return under("multi-step", tree_of({(): [BEST, SECOND]}, {}), rng)


def duplicate_dropped(rng: Randomness) -> int:
    """A drawn child equal to a copied child loses its rejected turn."""
    token = rng.token(Q)
    return settle(P, [DraftCandidate(BEST, None)] + ([DraftCandidate(token, Q)] if token != BEST else []), rng)


def duplicate_kept(rng: Randomness) -> int:
    return under("multi-step", tree_of({(): [BEST]}, {(): draw(Q, 1, rng)}), rng)


def duplicate_kept_after_the_copy(rng: Randomness) -> int:
    token = rng.token(Q)
    return settle(P, [DraftCandidate(BEST, None), DraftCandidate(token, Q)], rng)


def pruned(rng: Randomness) -> int:
    """A draw pruned for its small Q is treated as if it had never been made."""
    token = rng.token(SPREAD)
    return settle(P, [DraftCandidate(token, SPREAD)] if SPREAD[token] > RARE else [], rng)


def pruned_from_the_tree_alone(rng: Randomness) -> int:
    drawn = draw(SPREAD, 1, rng)
    tree = tree_of({}, {(): drawn})
    if SPREAD[drawn.tokens[0]] < RARE:
        tree = DraftTree((), (), (), (), tree.notes)
    return under("multi-step", tree, rng)


def q_before_processors(rng: Randomness) -> int:
    drawn = draw(SHARPENED, 1, rng)
    return under("rejection", tree_of({}, {(): Sampled(drawn.tokens, Q)}), rng)


def q_as_drawn(rng: Randomness) -> int:
    return under("rejection", tree_of({}, {(): draw(SHARPENED, 1, rng)}), rng)


TRAPS: list[tuple[Callable[[Randomness], int], float, list[Callable[[Randomness], int]]]] = [
    (every_path_draws, 0.19, [one_draw_for_all_paths]),  # published for 0.15 to 0.23
    (unchanged_q, 0.11, [renormalised_q]),
    (ratio_for_certain_children, 0.43, [certain_children]),
    (duplicate_dropped, 0.086, [duplicate_kept, duplicate_kept_after_the_copy]),
    (pruned, 0.038, [pruned_from_the_tree_alone]),
    (q_before_processors, 0.05, [q_as_drawn]),
]


@pytest.mark.parametrize(("trap", "size", "right"), TRAPS, ids=lambda value: getattr(value, "__name__", None))
def test_trap(trap: Callable[[Randomness], int], size: float, right: list[Callable[[Randomness], int]]) -> None:
    assert variation(emitted(trap), P) == pytest.approx(size, rel=0.15)
    for ours in right:
        assert variation(emitted(ours), P) < EXACT
