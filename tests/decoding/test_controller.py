"""The controller in simulated time: the cost of wrong drafts is bounded, and right drafts are used again."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from copyspec.budget import Budget
from copyspec.decoding.controller import LOSS_PER_TOKEN, MAX_IDLE_SHARE, DraftController, _record
from copyspec.decoding.loop import PROBE_NODES, _fit_shared, calibrated_scores, fit
from copyspec.decoding.stats import Stats
from copyspec.tree import COMPILED, EMPTY, ROOT, DraftTree, _in_order


@given(
    st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8), st.floats(0, 3), st.floats(0, 0.2)), max_size=200),
    st.floats(0.0, 4.0),
)
def test_the_loss_is_bounded_whatever_comes(calls: list[tuple[int, int, float, float]], start: float) -> None:
    """The loss never exceeds `start` plus LOSS_PER_TOKEN per call, plus one look and one draft within the allowance."""
    controller = DraftController(start)
    for count, (drafted, accepted, cost, look) in enumerate(calls, start=1):
        if not controller.wants_draft:
            controller.advance()
            continue
        scores = [0.9 ** (depth + 1) for depth in range(drafted)]
        tree = DraftTree(range(drafted), range(-1, drafted - 1), scores, [None] * drafted)
        paid = min(cost, max(0.0, controller.allowance))
        controller.observe(tree, tree, range(min(accepted, drafted)), paid if drafted else 0.0, look)
        assert controller.saved_passes >= -(start + LOSS_PER_TOKEN * count) - look - 1e-9


def test_a_draft_is_paid_by_all_rows_that_wait_for_it() -> None:
    """A draft of one row delays seven others: it pays for that row alone, but not for all eight."""
    tree = DraftTree([5, 6], [-1, 0], [0.5, 0.3], [None, None])
    costs = Budget(2, [1.0, 1.1, 1.15])
    alone = fit([DraftController()], [tree], costs).trees
    assert len(alone[0]) == 2
    together = fit([DraftController() for _ in range(8)], [tree, *[EMPTY] * 7], costs).trees
    assert together == [EMPTY] * 8
    assert fit([None] * 2, [tree, EMPTY], Budget(2)) == ([tree, EMPTY], 1.0), "without costs nothing is cut"


def test_nodes_up_to_the_size_of_a_pass_are_free() -> None:
    """Passes whose sizes have steps are filled with what is likeliest."""
    trees = [DraftTree.of_chain(range(4), 0.9), DraftTree.of_chain(range(4), 0.5)]
    costs = [1.0, *[1.2] * 5, *[2.0] * 4]
    fitted = fit([DraftController(6.0) for _ in trees], trees, Budget(4, costs, shared=costs))
    assert [len(tree) for tree in fitted.trees] == [4, 1] and fitted.cost == 1.2


def test_the_likeliest_nodes_of_all_rows_share_a_pass() -> None:
    sure, unsure = DraftTree.of_chain(range(4), 0.9), DraftTree.of_chain(range(4), 0.3)
    budget = Budget(4, [1.0, 1.1, 1.2, 1.3, 1.4], shared=[1.0 + 0.25 * nodes for nodes in range(17)])
    rows = [DraftController(6.0) for _ in range(4)]
    trees, cost = fit(rows, [unsure, sure, EMPTY, unsure], budget)
    assert [len(tree) for tree in trees] == [0, 0, 0, 0] and cost == 1.0, "a node costs a token of each"
    budget = replace(budget, shared=[1.0 + 0.15 * nodes for nodes in range(17)])
    trees, cost = fit(rows, [unsure, sure, EMPTY, unsure], budget)
    assert [len(tree) for tree in trees] == [0, 3, 0, 0] and cost == pytest.approx(1.45)
    poor = [DraftController(0.2) for _ in range(4)]
    trees, cost = fit(poor, [sure] * 4, budget)
    assert sum(map(len, trees)) == 1 and 4 * (cost - 1.0) <= 4 * 0.2


@given(
    st.lists(st.lists(st.floats(0.0, 1.0), max_size=6), min_size=1, max_size=5),
    st.lists(st.floats(0.0, 0.6), min_size=30, max_size=30),
    st.floats(0.0, 8.0),
)
def test_no_other_number_of_nodes_gives_more(chances: list[list[float]], steps: list[float], allowed: float) -> None:
    paths = [_falling(chance) for chance in chances]
    drafts = [None if not path else (list(range(-1, len(path) - 1)), path, 1.0, len(path)) for path in paths]
    costs, rows = [1.0, *itertools.accumulate(steps, initial=1.0)], len(chances)
    count, orders = _fit_shared(drafts, costs, allowed)
    worth = sorted(itertools.chain.from_iterable(paths), reverse=True)
    rates = [(rows + sum(worth[:n])) / costs[n] for n in range(len(worth) + 1) if rows * (costs[n] - 1.0) <= allowed]
    assert sum(map(len, orders)) == count and (rows + sum(worth[:count])) / costs[count] == pytest.approx(max(rates))
    assert all(order == list(range(len(order))) or len(set(order)) == len(order) for order in orders)


def _falling(chances: Sequence[float]) -> list[float]:
    return list(itertools.accumulate(chances, lambda path, chance: path * chance))


def test_a_tree_is_cut_to_its_likeliest_nodes_and_what_is_left_allows() -> None:
    tree = DraftTree([5, 6, 7, 8], [-1, 0, -1, 2], [0.6, 0.1, 0.3, 0.25], [None] * 4)
    (cut,), cost = fit([DraftController(0.25)], [tree], Budget(4, [1.0, 1.1, 1.2, 1.3, 1.4]))
    assert (list(cut.tokens), list(cut.parents), cost) == ([5, 7], [-1, -1], 1.2)
    assert fit([DraftController(0.05)], [tree], Budget(4, [1.0, 1.1, 1.2, 1.3, 1.4])) == ([EMPTY], 1.0)


def test_claims_are_weighed_by_the_record() -> None:
    controller, tree = DraftController(), DraftTree([5, 6], [-1, 0], [0.9, 0.81], [None, None])
    assert calibrated_scores(tree.parents, tree.scores, controller.calibration) == pytest.approx([0.9, 0.81])
    for _ in range(20):
        controller.observe(tree, tree, [], 0.1, 0.0)
    assert controller.calibration < 0.2
    assert controller.is_probe, "a probe uses the drafter's raw scores"
    (probe,), *_ = fit([controller], [DraftTree(range(8), range(-1, 7), [0.9] * 8, [None] * 8)], Budget(8, [1.0] * 9))
    assert len(probe) <= PROBE_NODES
    controller.observe(tree, tree, [0, 1], 0.0, 0.0)
    worth = calibrated_scores(tree.parents, tree.scores, controller.calibration)
    assert worth[0] == pytest.approx(0.9 * controller.calibration) and worth[1] == pytest.approx(
        0.81 * controller.calibration**2
    )


def test_looks_are_rationed_by_what_they_cost() -> None:
    def looks(cost: float) -> int:
        controller, count = DraftController(), 0
        for _ in range(300):
            if controller.wants_draft:
                count += 1
                controller.observe(EMPTY, EMPTY, [], 0.0, cost)
            else:
                controller.advance()
        return count

    assert looks(0.5 * MAX_IDLE_SHARE) == 300
    assert looks(4 * MAX_IDLE_SHARE) == 75


def test_stats_of_two_rows_add_up_to_what_was_last_measured() -> None:
    costs = {0: 1.0, 4: 2.0}
    first = Stats(decisions={"drafted": 2}, pass_costs=costs, pass_seconds=1.0, calibration=0.5, saved_passes=2.0)
    second = Stats(decisions={"drafted": 1, "paused": 3}, pass_costs={0: 1.0}, pass_seconds=3.0, saved_passes=-1.0)
    both = first + second
    assert (both.decisions, both.saved_passes) == ({"drafted": 3, "paused": 3}, 1.0)
    assert (both.pass_costs, both.pass_seconds, both.calibration) == ({0: 1.0}, 3.0, 1.0)
    assert (first + Stats()).pass_costs == first.pass_costs


@st.composite
def drafts(draw: st.DrawFn) -> tuple[list[int], list[float]]:
    """Parents and scores; some scores are equal, rise along a path, or exceed what a probability may be."""
    size = draw(st.integers(0, 24))
    parents = [draw(st.integers(ROOT, node - 1)) for node in range(size)]
    scores = st.sampled_from([0.0, 0.1, 0.5, 0.5000001, 0.9, 1.0, 1.5, -0.5, 1e-300, math.inf, -math.inf, math.nan])
    return parents, draw(st.lists(scores, min_size=size, max_size=size))


@pytest.mark.skipif(COMPILED is None, reason="compares the compiled functions")
@given(
    st.lists(st.tuples(drafts(), st.sampled_from([1.0, 0.7, 0.03]), st.booleans()), min_size=1, max_size=4),
    st.lists(st.sampled_from([0.0, 0.01, 0.3]), min_size=25, max_size=25),
    st.floats(0.0, 5.0),
)
def test_fit_in_c_equals_python(
    rows: list[tuple[tuple[list[int], list[float]], float, bool]], steps: list[float], allowed: float
) -> None:
    assert COMPILED is not None
    given_drafts = [
        None if not parents else (parents, scores, scale, 1 if is_probe else len(parents))
        for (parents, scores), scale, is_probe in rows
    ]
    costs = [1.0, *itertools.accumulate(steps, initial=1.0)]
    assert COMPILED.fit_shared(given_drafts, costs, allowed) == _fit_shared(given_drafts, costs, allowed)


@pytest.mark.skipif(COMPILED is None, reason="compares the compiled functions")
@given(drafts(), st.randoms(use_true_random=False))
def test_record_in_c_equals_python(draft: tuple[list[int], list[float]], rng: random.Random) -> None:
    assert COMPILED is not None
    parents, scores = draft
    path, at = [], ROOT
    for node, parent in enumerate(parents):
        if parent == at and rng.random() < 0.6:
            path.append(node)
            at = node
    arguments = parents, scores, path, 0.9, 4.0, 3.5
    assert COMPILED.record(*arguments) == _record(*arguments)


@pytest.mark.skipif(COMPILED is None, reason="compares the compiled functions")
@given(drafts(), st.randoms(use_true_random=False))
def test_subtrees_in_c_equal_python(draft: tuple[list[int], list[float]], rng: random.Random) -> None:
    assert COMPILED is not None
    parents, scores = draft
    order = list[int]()
    for node, parent in enumerate(parents):
        if (parent == ROOT or parent in order) and rng.random() < 0.7:
            order.insert(rng.randint(order.index(parent) + 1 if parent in order else 0, len(order)), node)
    arguments: Any = list(range(len(parents))), parents, list(map(str, scores)), [None] * len(parents), order
    assert COMPILED.in_order(*arguments) == _in_order(*arguments)


@pytest.mark.skipif(COMPILED is None, reason="compares the compiled functions")
def test_c_refuses_what_does_not_fit() -> None:
    assert COMPILED is not None
    chain, costs = ([-1, 0], [0.9, 0.8], 1.0, 2), [1.0] * 5
    for draft in (([0, 1], [0.9, 0.8], 1.0, 2), ([-1, 0], [0.9], 1.0, 2), ([-1, 0], [0.9, 0.8], 1.0, 3)):
        with pytest.raises(ValueError, match="do not fit"):
            COMPILED.fit_shared([draft, None, chain], costs, 1.0)
    with pytest.raises(ValueError, match="do not fit"):
        COMPILED.fit_shared([chain], [], 1.0)
    for parents, scores, path in [([0], [0.5], []), ([-1], [], []), ([-1], [0.5], [1]), ([-1], [0.5], [-1])]:
        with pytest.raises(ValueError, match="do not fit"):
            COMPILED.record(parents, scores, path, 0.9, 1.0, 1.0)
    with pytest.raises(TypeError):
        COMPILED.fit_shared([([-1], ["x"], 1.0, 1)], costs, 1.0)
    with pytest.raises(TypeError):
        COMPILED.fit_shared([[-1]], costs, 1.0)
