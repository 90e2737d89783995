"""The node budget: what is kept of a tree, what calls are found to cost, when drafting pauses."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from copyspec.budget import Budget, CostModel, Pacer


@given(
    st.lists(st.floats(0.0, 1.0), max_size=20),
    st.lists(st.floats(0.0, 0.5), min_size=20, max_size=20),
    st.integers(0, 20),
)
def test_the_cut_against_all_cuts(scores: list[float], steps: list[float], max_nodes: int) -> None:
    costs = [1.0]
    for step in steps:
        costs.append(costs[-1] + step)
    budget = Budget(max_nodes, costs[: max_nodes + 1])
    rates = [(1 + sum(scores[:n])) / costs[n] for n in range(min(len(scores), max_nodes) + 1)]
    assert rates[budget.cut(scores)] == pytest.approx(max(rates))


def test_without_costs_only_the_number_of_nodes_is_limited() -> None:
    assert Budget(3).cut([0.9, 0.0, 0.0, 0.0]) == 3
    assert Budget(3).cut([0.9]) == 1
    assert Budget(0, [1.0]).cut([0.9]) == 0


def test_a_line_and_a_step_are_found() -> None:
    """Calls of 5 ms without nodes, 7 ms + 0.1 ms a node with them, in any order and with disturbed ones."""
    model = CostModel()
    for i in range(200):
        nodes = (0, 4, 12, 30, 0, 8)[i % 6]
        seconds = 0.005 if nodes == 0 else 0.007 + 0.0001 * nodes
        model.observe(1, nodes, seconds * (20 if i % 50 == 49 else 1))
    costs = model.budget(1, 32).costs
    assert costs[0] == 1.0
    assert costs[1] == pytest.approx(1.42, rel=0.12)
    assert costs[32] == pytest.approx(2.04, rel=0.1)
    assert all(before <= after for before, after in pairwise(costs))
    assert model.relative(1, 32, extra=0.005) == pytest.approx(3.04, rel=0.1)


def test_the_prior_holds_until_calls_differ() -> None:
    model = CostModel()
    prior = list(model.budget(1, 8).costs)
    assert prior[0] == 1.0 and prior == sorted(prior)
    for _ in range(30):
        model.observe(1, 8, 0.01)
    assert model.budget(1, 8).costs[8] == pytest.approx(prior[8], rel=0.05)
    assert not model.budget(1, 8, adaptive=False).costs
    assert list(model.budget(4, 8).costs) != prior, "other batch sizes are other calls"


def test_drafting_pauses_longer_and_longer_and_comes_back() -> None:
    pacer = Pacer()
    asked = [pacer.wants_draft() or None for _ in range(1)]
    assert asked == [True]
    drafts = 0
    for _ in range(300):
        if pacer.wants_draft():
            drafts += 1
            pacer.observe(drafted=8, accepted=0, cost=1.2)
    assert drafts < 25
    while not pacer.wants_draft():
        pass
    for _ in range(3):
        pacer.observe(drafted=8, accepted=8, cost=1.2)
    assert all(pacer.wants_draft() for _ in range(10))


def test_idle_looks_stay_frequent() -> None:
    pacer = Pacer()
    looks = 0
    for _ in range(300):
        if pacer.wants_draft():
            looks += 1
            pacer.observe(drafted=0, accepted=0, cost=1.02)
    assert 50 < looks < 120
