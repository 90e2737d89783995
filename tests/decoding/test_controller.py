"""The controller in simulated time: the cost of wrong drafts is bounded, and right drafts are used again."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.speed.prompts import Case
from benchmarks.speed.simulation import DEVICES, AlwaysWrong, Device, Outcome, simulate
from copyspec.budget import Budget, CostModel
from copyspec.decoding.controller import LOSS_PER_TOKEN, MAX_IDLE_SHARE, DraftController, _record
from copyspec.decoding.loop import PROBE_NODES, _fit_shared, calibrated_scores, fit
from copyspec.decoding.stats import Stats
from copyspec.drafters import create
from copyspec.drafters.base import Drafter
from copyspec.options import DraftOptions
from copyspec.sources import Source
from copyspec.tree import COMPILED, EMPTY, ROOT, DraftTree


def case(tokens: int = 100, seed: int = 0) -> Case:
    """A text of distinct tokens: nothing in it can be copied."""
    rng = random.Random(seed)
    prompt = [rng.randrange(1, 1000) for _ in range(60)]
    return Case(prompt, (Source(prompt, "prompt"),), [*rng.sample(range(1000, 2000), tokens - 1), 0])


def run(cases: Sequence[Case], device: Device, make: object, nodes: int = 32, batch_size: int = 1) -> Outcome:
    """Run all cases with one cost model, as an engine does."""
    costs, whole = CostModel(), Outcome([], 0.0)
    for start in range(0, len(cases), batch_size):
        part = cases[start : start + batch_size]
        one = simulate(part, device, DraftOptions(nodes), costs, make, batch_size=batch_size)  # type: ignore[arg-type]
        whole.seconds += one.seconds
        whole.stats += one.stats
    return whole


def wrong(width: int, case: Case, eos: frozenset[int]) -> Drafter:
    return AlwaysWrong(case, width=width)


@pytest.mark.parametrize("batch_size", [1, 4])
@pytest.mark.parametrize(("nodes", "width"), [(1, 1), (4, 1), (32, 1), (32, 4), (64, 16)])
@pytest.mark.parametrize("name", list(DEVICES))
def test_a_drafter_that_is_always_wrong_costs_little(name: str, nodes: int, width: int, batch_size: int) -> None:
    cases = [case(seed=seed) for seed in range(4)]
    plain = run(cases, DEVICES[name], None, nodes=0, batch_size=batch_size)
    drafted = run(cases, DEVICES[name], partial(wrong, width), nodes, batch_size)
    assert plain.seconds / drafted.seconds >= 0.965


def test_rows_of_a_simulated_batch_open_in_any_order() -> None:
    lengths = [320, 18, 15, 36, 12]  # once the cost of a token is known, a batch reads short prompts before long ones
    cases = [replace(case(seed=seed), prompt=list(range(1, length))) for seed, length in enumerate(lengths)]
    costs = CostModel()
    for _ in range(2):
        simulate(cases, DEVICES["cpu-float32"], DraftOptions(8), costs, partial(wrong, 1), batch_size=4)


def test_the_first_batch_drafts_what_pays_for_all_its_rows() -> None:
    """Passes with 16 rows have not been measured before. The cost of a token is known from reading the prompts."""

    def copied(case: Case, eos: frozenset[int]) -> Drafter:
        return create(list(case.sources), sorted(eos))

    cases = []
    for seed in range(32):
        rng = random.Random(seed)
        text = [rng.randrange(10, 3000) for _ in range(60)]
        output = [token if rng.random() < 0.95 else rng.randrange(10, 3000) for token in text]
        cases.append(Case([5, *text, 6], (Source(text, "edit"), Source([5, *text, 6], "prompt")), [*output, 0]))
    device = Device(0.02, {0: 1, 1: 1.03, 1024: 1.08, 2048: 1.15}, prefill=0.0002, draft_seconds=5e-5)
    plain = run(cases, device, None, nodes=0, batch_size=16)
    assert plain.seconds / run(cases, device, copied, batch_size=16).seconds > 5


def test_wrong_drafts_become_few_and_small() -> None:
    """In simulated time the counts are the same in every run: after a few trials, about a pass in sixteen is a
    probe."""
    (stats,) = run([case(400)], DEVICES["cpu-bfloat16"], partial(wrong, 1)).stats
    assert stats.num_accepted_tokens == 0 and stats.num_passes == 400
    assert stats.num_draft_tokens < 120 and stats.num_drafts < 40
    assert stats.decisions["paused"] > 340 and 3 <= stats.decisions["probed"] < 30
    assert stats.calibration < 0.5 and -4.0 < stats.saved_passes < 0.0
    assert sum(stats.decisions.values()) == 399, "the last token is the target's own"


def test_a_drafter_that_becomes_right_is_believed_again() -> None:
    class Late(AlwaysWrong):
        """A drafter that is wrong for 150 tokens, then right."""

        def __init__(self, case: Case, eos: frozenset[int]) -> None:
            super().__init__(case)
            self.output, self.at = list(case.recorded or ()), 0

        def propose(self, budget: Budget) -> DraftTree:
            if self.at < 150:
                return super().propose(budget)
            tokens = self.output[self.at : self.at + budget.max_nodes]
            scores = [0.95 ** (depth + 1) for depth in range(len(tokens))]
            return DraftTree(tokens, range(-1, len(tokens) - 1), scores, [None] * len(tokens))

        def accept(self, tokens: Sequence[int]) -> None:
            self.at += len(tokens)

    for name in ("cpu-bfloat16", "gpu"):
        (stats,) = run([case(400)], DEVICES[name], Late).stats
        assert stats.num_passes < 150 + 32 + 2 + 40, (
            "at most the longest pause, and back at full length within a few calls"
        )
        assert stats.calibration > 0.8 and stats.saved_passes > 150


def test_uncopyable_text_is_as_fast_as_plain_decoding() -> None:
    from copyspec.drafters import create

    cases = [case(seed=seed) for seed in range(3)]
    for device in DEVICES.values():
        for noise in (0.0, 0.2):
            noisy = replace(device, noise=noise)
            plain = run(cases, noisy, None, nodes=0)
            copied = run(cases, noisy, lambda case, eos: create(case.sources, eos))
            ratio = plain.seconds / copied.seconds
            assert ratio >= (0.975 if noise == 0.0 else 0.94)  # two runs with noisy pass times differ anyway


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
    paths = [_falling(each) for each in chances]
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


def test_first_drafts_are_weighed_by_those_of_earlier_rows() -> None:
    """Models may begin with a word of their own before they copy."""

    class FromTheSecondToken(AlwaysWrong):
        def __init__(self, case: Case, eos: frozenset[int], *, is_right: bool = False) -> None:
            super().__init__(case)
            self.output, self.at, self.is_right = list(case.recorded or ()), 0, is_right

        def propose(self, budget: Budget) -> DraftTree:
            if not self.at and not self.is_right:
                return super().propose(budget)
            return DraftTree.of_chain(self.output[self.at : self.at + budget.max_nodes], 0.95)

        def accept(self, tokens: Sequence[int]) -> None:
            self.at += len(tokens)

    costs, cases = CostModel(), [case(60, seed) for seed in range(12)]
    for is_right, most in ((False, 0.2), (True, 1.0)):
        make = partial(FromTheSecondToken, is_right=is_right)
        for each in cases:
            simulate([each], DEVICES["small"], DraftOptions(32), costs, make)
        assert most - 0.2 < costs.trust <= most

    costs = CostModel()
    for first_draft, trust in (((0.9, False), 0.15), ((0.0, False), 0.35), ((0.9, True), 1.0)):
        for _ in range(12):
            costs.finish(0.0, first_draft)
        assert costs.trust == pytest.approx(trust, abs=0.05)
    tree, budget = DraftTree.of_chain(range(8), 0.9), Budget(8, [1.0 + 0.2 * n for n in range(9)])
    sizes = [len(fit([DraftController(6.0, trust=trust)], [tree], budget).trees[0]) for trust in (1.0, 0.5, 0.1)]
    assert sizes[0] > sizes[1] > sizes[2] == 0


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


def test_decisions_are_in_the_stats() -> None:
    (row,) = run([case(200)], DEVICES["cpu-float32"], partial(wrong, 1)).stats
    fields = row.to_dict()
    assert set(fields["decisions"]) <= {"drafted", "probed", "no_draft", "unprofitable", "paused"}  # type: ignore[call-overload]
    costs = fields["pass_costs"]
    assert isinstance(costs, dict) and costs[0] == 1.0
    assert costs[1] == pytest.approx(1.1, rel=0.1), "as the device has it"
    assert fields["pass_seconds"] == pytest.approx(0.17, rel=0.1)
    assert fields["calibration"] < 0.5 and fields["saved_passes"] < 0 and fields["mean_allowed_nodes"] > 0  # type: ignore[operator]


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
