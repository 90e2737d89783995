"""The exact rules, by enumeration on five tokens: a sum over every draft and every decision."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from copyspec.literature import Sampled
from copyspec.literature.candidates import (
    DraftCandidate,
    Randomness,
    acceptance,
    candidates_of,
    draws_of,
    k_sequential,
    residual,
    solve_rho,
    verify_candidates,
)
from copyspec.literature.sampled import draw
from copyspec.tree import ROOT, DraftTree, check_tree
from tests.helpers.enumeration import (
    EXACT,
    RULES,
    VOCAB,
    Branching,
    P,
    Q,
    TableNodes,
    drafted,
    emitted,
    joint,
    outcomes,
    rule,
    tree_of,
    variation,
    walked,
)

# Integers divided by their sum, so that zeros, ties and equal P and Q are all likely.
distributions = (
    st.lists(st.integers(0, 8), min_size=VOCAB, max_size=VOCAB)
    .filter(any)
    .map(lambda weights: torch.tensor(weights, dtype=torch.float32) / sum(weights))
)
copied_sets = st.lists(st.integers(0, VOCAB - 1), max_size=3, unique=True)


def tables(seed: int, *, support: int = VOCAB) -> torch.Tensor:
    """Return a distribution after each token and one at the root, over `support` tokens each, [VOCAB + 1, VOCAB]."""
    generator = torch.Generator().manual_seed(seed)
    table = torch.randn(VOCAB + 1, VOCAB, generator=generator)
    for row in table[:-1]:
        row[torch.randperm(VOCAB, generator=generator)[support:]] = float("-inf")
    return table.softmax(-1)


def settle(token: int | None, rest: torch.Tensor, rng: Randomness) -> int:
    return rng.token(rest) if token is None else token


@settings(max_examples=40, deadline=None)
@given(distributions, distributions, st.integers(0, 2), copied_sets, st.booleans(), st.booleans())
def test_multi_step_emits_p(
    p: torch.Tensor, q: torch.Tensor, count: int, copied: list[int], replacement: bool, drawn_first: bool
) -> None:
    """Any number of draws, with and without replacement, with copied children before or after them."""

    def run(rng: Randomness) -> int:
        candidates = candidates_of(draw(q, count, rng, replacement=replacement), p)
        certain = [DraftCandidate(token, None) for token in copied]
        return settle(*verify_candidates(p, candidates + certain if drawn_first else certain + candidates, rng), rng)

    assert variation(emitted(run), p) < EXACT


@settings(max_examples=25, deadline=None)
@given(distributions, distributions, st.integers(1, 3), copied_sets)
def test_k_sequential_emits_p(p: torch.Tensor, q: torch.Tensor, count: int, copied: list[int]) -> None:
    def run(rng: Randomness) -> int:
        token, rest = k_sequential(p, q, draw(q, count, rng).tokens, rng)
        if token is None:
            token, rest = verify_candidates(rest, [DraftCandidate(token, None) for token in copied], rng)
        return settle(token, rest, rng)

    assert variation(emitted(run), p) < EXACT


@settings(max_examples=100, deadline=None)
@given(distributions, distributions, st.integers(1, 8))
def test_rho_solves_its_equation(p: torch.Tensor, q: torch.Tensor, k: int) -> None:
    rho = solve_rho(p, q, k)
    beta = float(q.double().minimum(p.double() / rho).sum())
    assert 1.0 <= rho <= k
    assert 1 - (1 - beta) ** k == pytest.approx(rho * beta, abs=2e-6)
    if torch.equal(p, q):
        assert rho == 1.0


COPIED = {(): [1, 3], (1,): [0], (3,): [3, 2]}
TREES = {
    "rejection": [("rejection", (1, 1), True, {}), ("rejection", (0, 0), True, {(): [2], (2,): [4]})],
    "rejection on a tree": [("rejection", (2, 1), True, {(): [1]})],
    "multi-step": [("multi-step", (2, 1), True, {}), ("multi-step", (1, 2), True, {})],
    "multi-step without replacement": [("multi-step", (2, 1), False, {}), ("multi-step", (1, 2), False, {})],
    "multi-step on a mixed tree": [("multi-step", (1, 1), True, COPIED), ("multi-step", (0, 0), True, COPIED)],
    "k-sequential": [("k-sequential", (2, 1), True, {}), ("k-sequential", (1, 2), True, {})],
    "k-sequential on a mixed tree": [("k-sequential", (1, 1), True, COPIED)],
    "coupled": [("coupled", (1, 1), True, COPIED)],
}


@pytest.mark.parametrize("case", TREES)
def test_trees_of_depth_two_keep_the_joint_distribution(case: str) -> None:
    target, drafter = tables(1), tables(2, support=3)
    expected = target[-1].double()[:, None] * target[:-1].double()
    for name, counts, replacement, copied in TREES[case]:

        def draft(
            rng: Randomness,
            counts: tuple[int, int] = counts,
            replacement: bool = replacement,
            copied: dict[tuple[int, ...], list[int]] = copied,
        ) -> DraftTree:
            return drafted(drafter, rng, counts, replacement=replacement, copied=copied)

        assert variation(joint(rule(name), target, draft), expected) < EXACT


def test_every_exact_rule_is_enumerated() -> None:
    exact = {name for name, kind in RULES.items() if kind.keeps_distribution}
    assert {cases[0][0] for cases in TREES.values()} == exact


def test_draws_without_a_node_keep_their_turns() -> None:
    """Trees cut to fewer nodes or levels remain exact, since the draws are listed at the parent."""
    target, drafter = tables(1), tables(2, support=3)

    def draft(rng: Randomness) -> DraftTree:
        return drafted(drafter, rng, (2, 1)).up_to_depth(1).first_chain()

    expected = target[-1].double()[:, None] * target[:-1].double()
    for name in ("multi-step", "k-sequential"):
        assert variation(joint(rule(name), target, draft), expected) < EXACT


@pytest.mark.parametrize("name", [name for name, kind in RULES.items() if kind.keeps_distribution])
def test_greedy_decoding_takes_the_argmax_under_every_exact_rule(name: str) -> None:
    target, drafter = tables(3), tables(4)
    best = int(target[-1].argmax())
    for weight, tree in outcomes(lambda rng: drafted(drafter, rng, (2, 1))):
        nodes = TableNodes(target, tree, Branching([]), greedy=True)
        tokens = walked(rule(name), tree, nodes, 2)
        assert weight > 0 and tokens == (best, int(target[best].argmax()))[: len(tokens)]


def accepted(p: torch.Tensor, run_turns: list[DraftCandidate]) -> float:
    """Return the probability that a turn is accepted."""
    return sum(w for w, token in outcomes(lambda rng: verify_candidates(p, run_turns, rng)[0]) if token is not None)


@settings(max_examples=40, deadline=None)
@given(distributions, distributions, copied_sets)
def test_drawn_children_first_is_never_worse(p: torch.Tensor, q: torch.Tensor, copied: list[int]) -> None:
    """With one draw before copied children, the order accepts min(P, Q) summed over other tokens, plus P of the
    copied."""
    certain = [DraftCandidate(token, None) for token in copied]
    first = last = 0.0
    for weight, drawn in outcomes(lambda rng: draw(q, 1, rng)):
        candidates = candidates_of(drawn, p)
        first += weight * accepted(p, candidates + certain)
        last += weight * accepted(p, certain + candidates)
    best = torch.where(torch.isin(torch.arange(VOCAB), torch.tensor(copied, dtype=torch.long)), p, p.minimum(q))
    assert first == pytest.approx(float(best.sum()), abs=1e-5)
    assert first >= last - 1e-5


@settings(max_examples=40, deadline=None)
@given(distributions, distributions)
def test_a_copied_child_of_a_rejected_draw_needs_no_turn(p: torch.Tensor, q: torch.Tensor) -> None:
    for token in q.nonzero().flatten().tolist():
        if acceptance(p, q, token) < 1.0:
            rest = residual(p, q, token)
            assert acceptance(rest, None, token) == 0.0
            assert torch.allclose(residual(rest, None, token), rest)


def test_acceptance_is_strict() -> None:
    p = torch.tensor([0.0, 1.0])
    assert acceptance(p, torch.tensor([1.0, 0.0]), 0) == 0.0
    assert acceptance(p, torch.tensor([0.5, 0.5]), 1) == 1.0
    assert acceptance(p, None, 1) == 1.0 and acceptance(p, None, 0) == 0.0


def test_residuals_without_mass_keep_r_without_the_child() -> None:
    r = torch.tensor([0.25, 0.5, 0.25])
    assert residual(r, r, 0).tolist() == pytest.approx([0, 2 / 3, 1 / 3])
    assert residual(r, r + 1e-3, 1).tolist() == pytest.approx([0.5, 0, 0.5])
    one = torch.tensor([0.0, 1.0, 0.0])
    assert residual(one, one, 1).tolist() == [0, 1, 0], "nothing else is left to emit"
    assert r.tolist() == [0.25, 0.5, 0.25], "what was handed in stays as it is"
    # Rejections that only rounding could cause: all of Q is covered.
    script = Branching([0, 0, 2])
    assert settle(*k_sequential(r, r, [0, 1], script), script) == 2
    assert k_sequential(r, r, [], script) == (None, r)


def test_draws_without_replacement_are_distinct_and_renormalised() -> None:
    drawn = draw(Q, VOCAB + 3, Branching([]), replacement=False)
    assert sorted(drawn.tokens) == list(range(VOCAB)), "as many as there are"
    candidates = candidates_of(drawn, P)
    left = Q.clone()
    for token, q in candidates:
        assert q is not None and torch.allclose(q, left / left.sum(), atol=1e-6)
        left[token] = 0.0


def test_draws_that_do_not_fit_are_named() -> None:
    nodes = TableNodes(tables(1), DraftTree(), Branching([]))
    impossible = Sampled([0], torch.tensor([0.0, 1.0, 0.0, 0.0, 0.0]))
    tree = tree_of({}, {(): impossible})
    with pytest.raises(ValueError, match=r"token 0 was drawn from .* probability 0\.0: Sampled.probabilities must be"):
        rule("multi-step").begin(tree, nodes)(ROOT)
    narrow = tree_of({}, {(): Sampled([0], torch.tensor([1.0]))})
    with pytest.raises(ValueError, match=r"drew from \[1\] tokens where the target has \[5\]"):
        rule("rejection").begin(narrow, nodes)(ROOT)
    unique = tree_of({}, {(): Sampled([0, 1], Q, replacement=False)})
    with pytest.raises(ValueError, match=r"'k-sequential' needs children drawn with replacement; .* MultiStep"):
        rule("k-sequential").begin(unique, nodes)


def test_trees_carry_their_draws() -> None:
    tree = tree_of({(): [3]}, {(): Sampled([1, 1], Q), (3,): Sampled([2], Q), (1,): Sampled([4], Q)})
    check_tree(tree)
    assert tree.tokens == [3, 1, 4, 2] and set(tree.notes or ()) == {ROOT, 0, 1}
    assert set(tree.up_to_depth(1).notes or ()) == {ROOT, 0, 1}
    assert set(tree.first_chain().notes or ()) == {ROOT, 0}


def one(**changes: object) -> DraftTree:
    """A tree of one node, changed."""
    parts: dict[str, object] = {"tokens": [3], "parents": [ROOT], "scores": [0.5], "origins": [None]}
    return DraftTree(**{**parts, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize("vocab_size", [None, 5])
@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize(
    ("tree", "message"),
    [
        (one(tokens=[2.5]), "2.5 is not a token id"),
        (one(tokens=["a"]), "'a' is not a token id"),
        (one(tokens=[torch.tensor(2.0)]), r"tensor\(2\.\) is not a token id"),
        (one(parents=[-0.5]), "node 0 has parent -0.5"),
    ],
)
def test_what_is_wrong_with_a_tree(
    tree: DraftTree, message: str, compiled: bool, vocab_size: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not compiled:
        monkeypatch.setattr("copyspec.tree.COMPILED", None)
    with pytest.raises(ValueError, match=message):
        check_tree(tree, vocab_size)


@pytest.mark.parametrize(
    ("drawn", "message"),
    [
        ([1], r"notes\[0\] must be a Sampled, got list"),
        (Sampled([1], 2 * Q), r"drawn from after node 0 sums to 2\.0"),
        (Sampled([1], torch.tensor([1.5, -0.5, 0, 0, 0])), "or is negative"),
        (Sampled([1], Q.tolist()), "after node 0 must be a float tensor .*, got list"),
        (Sampled([-5], Q), "-5 is drawn after node 0; ids go from 0 to 4"),
        (Sampled([5], Q), "5 is drawn"),
        (Sampled([1.5], Q), "must be a list of token ids"),
        (Sampled("ab", Q), "tokens drawn after node 0 must be a list of token ids, got str: 'ab'"),
        (Sampled(None, Q), "tokens drawn after node 0 must be a list of token ids, got NoneType"),
    ],
)
def test_what_is_wrong_with_draws(drawn: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        draws_of(one(notes={0: drawn}))


@pytest.mark.parametrize("token", [3, np.int64(3), torch.tensor(3)])
def test_tokens_may_be_integers_of_any_kind(token: int, monkeypatch: pytest.MonkeyPatch) -> None:
    check_tree(one(tokens=[token]), 5)
    monkeypatch.setattr("copyspec.tree.COMPILED", None)
    check_tree(one(tokens=[token]), 5)
