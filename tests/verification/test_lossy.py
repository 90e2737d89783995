"""The lossy rules: their bounds, and what they accept."""

from __future__ import annotations

import math

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from copyspec.literature import Sampled
from copyspec.literature.candidates import DraftCandidate, Randomness, candidates_of, verify_candidates
from copyspec.literature.rules import DraftRule as Rule
from copyspec.literature.sampled import draw
from copyspec.tree import ROOT, DraftTree
from tests.helpers.enumeration import (
    VOCAB,
    Branching,
    P,
    Q,
    TableNodes,
    emitted,
    rule,
    tree_of,
    variation,
    walked,
)

distributions = (
    st.lists(st.integers(0, 8), min_size=VOCAB, max_size=VOCAB)
    .filter(any)
    .map(lambda weights: torch.tensor(weights, dtype=torch.float32) / sum(weights))
)


@settings(max_examples=60, deadline=None)
@given(
    distributions,
    distributions,
    st.integers(0, 2),
    st.lists(st.integers(0, VOCAB - 1), max_size=2, unique=True),
    st.booleans(),
    st.floats(0.05, 1.0),
)
def test_lenience_emits_at_most_p_over_lenience(
    p: torch.Tensor, q: torch.Tensor, count: int, copied: list[int], replacement: bool, lenience: float
) -> None:
    """On trees too, by induction over the turns: the bound of a turn is that of its residual."""

    def run(rng: Randomness) -> int:
        candidates = candidates_of(draw(q, count, rng, replacement=replacement), p)
        candidates += [DraftCandidate(token, None) for token in copied]
        token, rest = verify_candidates(p, candidates, rng, lenience=lenience)
        return rng.token(rest) if token is None else token

    out = emitted(run)
    assert bool((out <= p.double() / lenience + 1e-5).all())
    if lenience == 1.0:
        assert variation(out, p) < 1e-6


def test_lenience_of_one_token_is_its_formula() -> None:
    """The output has min(Q, P/l) from acceptance; the rest of the probability follows max(0, P - Q)."""
    lenience = 0.4
    out = emitted(lambda rng: first(rule("lenience", lenience=lenience), {(): draw(Q, 1, rng)}, rng))
    taken = Q.minimum(P / lenience)
    rest = (P - Q).clamp(min=0)
    assert variation(out, taken + (1 - taken.sum()) * rest / rest.sum()) < 1e-6
    assert variation(out, P) > 0.05, "and that is not P"


def first(chosen: Rule, drawn: dict[tuple[int, ...], Sampled], rng: Randomness) -> int:
    tree = tree_of({}, drawn)
    return walked(chosen, tree, TableNodes(P[None], tree, rng), 1)[0]


def passed(chosen: Rule, p: list[float], tokens: list[int] | None = None, sampled: bool = False) -> set[int]:
    """Return the root's children that the rule accepts, tested one at a time. Greedy."""
    row = torch.tensor(p)
    best = int(row.argmax())
    accepted = {best}  # the argmax is emitted in any case
    for token in range(len(p)) if tokens is None else tokens:
        tree = tree_of({} if sampled else {(): [token]}, {(): Sampled([token], row)} if sampled else {})
        nodes = TableNodes(row[None].repeat(len(p) + 1, 1), tree, Branching([]), greedy=True)
        if walked(chosen, tree, nodes, 1)[0] == token:
            accepted.add(token)
    return accepted


def test_what_passes_by_definition() -> None:
    p = [0.5, 0.25, 0.15, 0.06, 0.03, 0.01]
    assert passed(rule("lenience", lenience=0.5), p) == {0, 1}
    assert passed(rule("lenience", lenience=0.3), p) == {0, 1, 2}
    assert passed(rule("top-k-gap"), p) == {0, 1, 2, 3, 4}, "rank 5 at most; its gap is 2.81"
    assert passed(rule("top-k-gap", beta=3), p) == {0, 1, 2}
    assert passed(rule("top-k-gap", tau=1.0), p) == {0, 1}
    assert passed(rule("top-k-gap", beta=1), p) == {0}
    assert passed(rule("bild"), p) == set(range(6)), "-log 0.01 is 4.6"
    assert passed(rule("bild", rollback=3.0), p) == {0, 1, 2, 3}, "-log 0.03 is 3.5"
    entropy = -sum(x * math.log(x) for x in p)
    assert 0.06 < 0.3 * math.exp(-entropy) < 0.09
    forbidden = [0.7, 0.3, 0.0, 0.0]
    assert passed(rule("bild", rollback=math.inf), forbidden) == {0, 1}, "no bound lets through what P forbids"
    assert passed(rule("top-k-gap", tau=math.inf), forbidden) == {0, 1}
    assert passed(rule("typical"), p) == {0, 1, 2}
    assert passed(rule("typical", delta=0.15), p) == {0, 1, 2, 3}
    assert passed(rule("typical", epsilon=0.02), p) == {0, 1, 2, 3, 4}


def test_equal_tokens_rank_as_argmax_takes_them() -> None:
    p = [0.1, 0.4, 0.4, 0.1]
    assert passed(rule("top-k-gap", beta=1), p) == {1}
    assert passed(rule("top-k-gap", beta=2), p) == {1, 2}


def test_bild_falls_back_where_the_drafter_is_unsure() -> None:
    p = [0.5, 0.3, 0.1, 0.06, 0.04]
    assert passed(rule("bild"), p, sampled=True) == {0}, "max Q is 0.5"
    assert passed(rule("bild", fallback=0.5), p, sampled=True) == {0, 1, 2, 3, 4}
    # Even if the drafter is uncertain, a copied child is judged by P alone.
    tree = tree_of({(): [1]}, {(): Sampled([2], torch.tensor(p))})
    nodes = TableNodes(torch.tensor([p] * 6), tree, Branching([]), greedy=True)
    assert walked(rule("bild"), tree, nodes, 1) == (1,)


def test_the_longest_path_wins_then_the_likeliest() -> None:
    table = torch.tensor(
        [
            [0.20, 0.35, 0.25, 0.15, 0.05],
            [0.20, 0.45, 0.25, 0.05, 0.05],
            [0.60, 0.10, 0.10, 0.10, 0.10],
            [0.30, 0.20, 0.20, 0.20, 0.10],
            [0.30, 0.20, 0.20, 0.20, 0.10],
            [0.40, 0.35, 0.20, 0.04, 0.01],
        ]
    )
    typical = rule("typical")

    def emits(children: dict[tuple[int, ...], list[int]]) -> tuple[int, ...]:
        tree = tree_of(children, {})
        return walked(typical, tree, TableNodes(table, tree, Branching([]), greedy=True), 9)

    assert emits({(): [0, 1]}) == (0, 1), "both pass; 0 is likelier; its argmax is 1"
    assert emits({(): [1, 0]}) == (0, 1), "stored order does not matter"
    assert emits({(): [0, 1], (1,): [2]}) == (1, 2, 0), "the longer path goes before the likelier one"
    assert emits({(): [0, 1, 2], (0,): [2], (1,): [1], (2,): [0]}) == (1, 1, 1), "log 0.35 * 0.45 is the highest sum"
    even = torch.full((VOCAB + 1, VOCAB), 1 / VOCAB)
    for stored in ([2, 3], [3, 2]):
        tree = tree_of({(): stored}, {})
        tokens = walked(typical, tree, TableNodes(even, tree, Branching([]), greedy=True), 9)
        assert tokens[0] == stored[0], "equal ones: the first stored, which commits without moving anything"
    assert emits({(): [4, 3], (4,): [0]}) == (0,), "nothing below a refused node counts"


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000))
def test_strict_settings_decode_as_plain(seed: int) -> None:
    """With settings that accept only the argmax, the lossy rules emit what plain greedy decoding would."""
    generator = torch.Generator().manual_seed(seed)
    table = torch.randn(VOCAB + 1, VOCAB, generator=generator).softmax(-1)
    tree = tree_of({(): [0, 1, 2], (0,): [3, 4], (1,): [0, 2], (2,): [1]}, {})
    nodes = TableNodes(table, tree, Branching([]), greedy=True)
    plain = walked(rule("coupled"), tree, nodes, 9)
    for strict in (rule("top-k-gap", beta=1), rule("top-k-gap", tau=0), rule("lenience", lenience=1.0)):
        assert walked(strict, tree, nodes, 9) == plain


def test_unlikely_argmax_among_refused_children_is_still_the_targets_own() -> None:
    """If the rule refuses a child but the target emits its token, the walk continues from it, so that no call is
    lost."""
    flat = torch.full((VOCAB + 1, VOCAB), 1 / VOCAB)
    tree = DraftTree([0, 0], [ROOT, 0], [0.5] * 2, [None] * 2)
    nodes = TableNodes(flat, tree, Branching([]), greedy=True)
    assert walked(rule("bild", rollback=1.0), tree, nodes, 9) == (0, 0, 0)
