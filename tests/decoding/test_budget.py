"""The node budget: which nodes of a tree are kept, and how the cost of a call is estimated."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from copyspec.budget import Budget, CostModel, prior_slope
from copyspec.decoding.controller import DraftController
from copyspec.decoding.meter import Meter
from copyspec.targets.static.settings import size_of
from copyspec.tree import EMPTY, DraftTree


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
    """Calls take 5 ms without nodes and 7 ms + 0.1 ms per node with them, in any order and with disturbances."""
    model = CostModel()
    for i in range(280):
        nodes = (0, 4, 12, 30, 0, 8, 1)[i % 7]
        seconds = 0.005 if nodes == 0 else 0.007 + 0.0001 * nodes
        model.observe(1 + nodes, seconds * (20 if i % 50 == 49 else 1))
    costs = model.budget(1, 32).costs
    assert costs[0] == 1.0
    assert costs[1] == pytest.approx(1.42, rel=0.12)
    assert costs[2] == pytest.approx(1.44, rel=0.12), "between 1 and 4"
    assert costs[32] == pytest.approx(2.04, rel=0.1)
    assert all(before <= after for before, after in pairwise(costs))


def test_a_curve_that_rises_and_falls_is_found_whatever_the_load() -> None:
    """Twelve nodes cost more than sixteen, as with float32 products of few rows, while the machine's speed changes."""
    model, rng = CostModel(), random.Random(0)
    true = {0: 1.0, 1: 1.1, 2: 1.16, 4: 2.0, 8: 2.85, 12: 4.0, 16: 2.75, 32: 3.6}
    for i in range(600):
        nodes = rng.choice(list(true))
        load = 3.0 if i % 300 >= 200 else 1.0
        model.observe(1 + nodes, 0.1 * true[nodes] * load * rng.lognormvariate(0.0, 0.05))
    costs = model.budget(1, 32).costs
    assert [costs[n] for n in true] == pytest.approx(list(true.values()), rel=0.15)
    assert model.budget(1, 64).costs[64] > costs[32]


def test_nodes_of_a_first_call_cost_what_its_tokens_do_but_no_more_than_nodes_of_later_ones() -> None:
    model = CostModel()
    for _ in range(3):
        model.observe_first(100, 0.1)
        model.observe(1, 0.1)
    assert model.budget(1, 32, is_first=True).costs[20] == pytest.approx(1.2)
    assert model.budget(1, 32).costs[20] == pytest.approx(1.3), "not yet measured, half as much again"
    for _ in range(30):
        model.observe_first(100, 0.5)  # mostly the fixed cost of a call, whatever the number of tokens
        model.observe(33, 0.164)
        model.observe(1, 0.1)
    assert model.budget(1, 32, is_first=True).costs[20] == pytest.approx(1.4)


def test_a_device_that_prompts_keep_busy_takes_as_long_for_a_node() -> None:
    model = CostModel()
    for seconds in (0.9, 0.5, 0.5, 0.5):  # the device warms up in the first pass
        model.observe_first(100, seconds)
        model.observe(2, 0.1)
    assert model.budget(2, 32, is_first=True).shared[10] == pytest.approx(1 + 10 * 0.004 / 0.1, rel=0.1)
    assert model.budget(2, 32).shared[10] == pytest.approx(1 + 10 * 0.004 / 0.1, rel=0.1), "not 0.02"
    for _ in range(30):
        model.observe_first(100, 0.1)  # an idle device, which a plain pass does not use fully either
    assert model.budget(2, 32, is_first=True).shared[20] <= 1.2


def test_a_pass_costs_what_its_tokens_do_whichever_rows_they_are_of() -> None:
    model = CostModel()
    assert model.budget(32, 8).shared[64] == pytest.approx((1 + 95 * 0.02) / (1 + 31 * 0.02))
    for _ in range(40):
        for tokens in (1, 8, 16, 32, 96):
            model.observe(tokens, 0.02 + 0.001 * tokens)
    for rows, nodes in ((1, 15), (4, 28), (8, 24), (32, 64)):
        expected = (20 + rows + nodes) / (20 + rows)
        assert model.budget(rows, 31).shared[nodes] == pytest.approx(expected, rel=0.05)
        assert model.seconds(rows) == pytest.approx(0.001 * (20 + rows), rel=0.05)
    one, many = model.budget(1, 8), model.budget(8, 8)
    assert one.costs == one.shared and len(many.shared) == 8 * 8 + 1
    assert 1.0 < many.costs[8] < many.shared[64], "what the rows draft is cut again"


def test_what_is_assumed_follows_from_first_passes() -> None:
    model = CostModel()
    model.observe_first(3200, 0.032)  # 10 us a token
    model.observe(1, 0.02)
    model.learn()
    assert model.budget(1, 8).costs[8] == pytest.approx(1 + 8 * 1.5e-5 / 0.02)
    assert model.budget(32, 8).shared[256] == pytest.approx((0.02 + 287 * 1.5e-5) / (0.02 + 31 * 1.5e-5))


def test_beyond_what_was_measured_nodes_cost_what_they_did_so_far() -> None:
    model = CostModel()
    for nodes, seconds in [(0, 1.0), (4, 1.04), (0, 1.0)]:
        model.observe(1 + nodes, seconds)
    model.learn()
    costs = model.budget(1, 32).costs
    slope = (costs[4] - 1) / 4
    assert 0.005 <= slope < 0.02 and costs[32] == pytest.approx(1 + 32 * slope)


def test_costs_lag_behind_by_one_pass() -> None:
    late, early = CostModel(), CostModel()
    for model in (late, early):
        model.observe(1, 0.1)  # the first measurement counts at once
    assert late.seconds(1) == early.seconds(1) == pytest.approx(0.1)
    for nodes, seconds in [(2, 0.15), (0, 0.12), (2, 0.11)]:
        before = late.budget(1, 8)
        for model in (late, early):
            model.observe(1 + nodes, seconds)
        early.learn()
        early.learn()  # has no effect
        assert late.budget(1, 8) == before != early.budget(1, 8)
        assert late.take_ratio() == early.take_ratio() and late.budget(1, 8) == early.budget(1, 8)
    assert late.measured(1) == early.measured(1)


@pytest.mark.parametrize("tree", [EMPTY, DraftTree.of_chain([1, 2])], ids=["empty", "drafted"])
def test_a_pass_costs_what_its_budget_says(tree: DraftTree) -> None:
    model = CostModel()
    for nodes, seconds in [(0, 0.1), (2, 0.15), (0, 0.1)]:
        model.observe(1 + nodes, seconds)
    model.learn()
    observed: list[tuple[float, float]] = []

    class Watched(DraftController):
        def observe(self, proposed: DraftTree, drafted: DraftTree, path: object, cost: float, look: float) -> None:
            observed.append((cost, look))

    budget = model.budget(1, 4)
    for costed in (budget, budget, model.budget(1, 4, adaptive=False)):
        meter = Meter(model, (), frozenset(), Watched())
        meter.proposed = tree, 0.02
        extra = costed.costs[len(tree)] - 1.0 if costed.costs else 0.0
        meter.count(tree, [], costed, 1, extra)
        assert meter.stats(1).num_allowed_nodes == 4
    first, later, free = observed
    cost = budget.costs[len(tree)] - 1.0
    assert first == (cost, 0.0), "the very first draft is not charged"
    assert later == pytest.approx((cost, 0.02 / budget.seconds)) and free == (0.0, 0.0)


def test_the_prior_holds_until_calls_differ() -> None:
    model = CostModel()
    prior = list(model.budget(1, 8).costs)
    assert prior[0] == 1.0 and prior == sorted(prior)
    for _ in range(30):
        model.observe(9, 0.01)
    assert model.budget(1, 8).costs[8] == pytest.approx(prior[8], rel=0.05)
    assert not model.budget(1, 8, adaptive=False).costs


def test_nodes_are_assumed_to_be_cheaper_on_a_gpu_and_free_in_exact_mode() -> None:
    prices = []
    for slope in (prior_slope("cpu"), prior_slope("cuda"), prior_slope("cuda", exact=True)):
        model = CostModel(slope=slope)
        model.observe(1, 0.01)
        prices.append(model.budget(1, 32).costs[8])
    assert prices == pytest.approx([1 + 0.02 * 8, 1 + 0.0025 * 8, 1.0])


def test_passes_of_fixed_sizes_cost_the_same_up_to_each() -> None:
    model = CostModel(slope=prior_slope("cuda"))
    for _ in range(20):
        for size, seconds in ((1, 0.9), (32, 1.0), (48, 1.2), (64, 1.5)):
            model.observe(size, seconds)
    for rows in (24, 32):
        shared = model.budget(rows, 1, size_of).shared
        sizes = [size_of(rows + nodes) for nodes in range(rows + 1)]
        assert shared == pytest.approx([{32: 1.0, 48: 1.2, 64: 1.5}[size] for size in sizes], rel=0.07)
        assert model.budget(rows, 1, size_of).plain == 32 and model.seconds(32) == pytest.approx(1.0, rel=0.05)
        assert model.budget(rows, 1, size_of).seconds == pytest.approx(1.0 / rows, rel=0.05)
    alone = model.budget(1, 40, size_of)
    assert alone.costs == alone.shared and len(alone.costs) == 41
    prompts = model.budget(4, 8, size_of, uncached=40)
    assert prompts.plain == 8 and prompts.shared[:9] == [1.0] * 9 and prompts.shared[9] > 1.2, "in plain passes"


@given(st.integers(1, 40), st.integers(0, 40), st.integers(0, 700))
def test_there_is_a_cost_for_each_number_of_nodes(rows: int, nodes: int, uncached: int) -> None:
    model = CostModel()
    model.observe(8, 1.0)
    for computes in (None, size_of):
        budget = model.budget(rows, nodes, computes, uncached=uncached)
        assert len(budget.shared) == rows * nodes + 1 and len(budget.costs) == nodes + 1
        assert budget.shared[0] == budget.costs[0] == 1.0 and budget.shared == sorted(budget.shared)


def test_tokens_beyond_the_last_knot_count_as_it() -> None:
    model = CostModel()
    for tokens in (1, 9000, 9000):
        model.observe(tokens, 0.1 * min(tokens, 2))
    model.learn()
    assert model.seconds(1) == pytest.approx(0.1, rel=0.2) and model.seconds(9000) > model.seconds(2)
