"""The controller in simulated time: the cost of wrong drafts is bounded, and right drafts are used again."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import pytest

from benchmarks.speed.prompts import Case
from benchmarks.speed.simulation import DEVICES, AlwaysWrong, Device, Outcome, simulate
from copyspec.budget import Budget, CostModel
from copyspec.decoding.controller import DraftController
from copyspec.decoding.loop import fit
from copyspec.drafters import create
from copyspec.drafters.base import Drafter
from copyspec.options import DraftOptions
from copyspec.sources import Source
from copyspec.tree import DraftTree


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
        for one in cases:
            simulate([one], DEVICES["small"], DraftOptions(32), costs, make)
        assert most - 0.2 < costs.trust <= most

    costs = CostModel()
    for first_draft, trust in (((0.9, False), 0.15), ((0.0, False), 0.35), ((0.9, True), 1.0)):
        for _ in range(12):
            costs.finish(0.0, first_draft)
        assert costs.trust == pytest.approx(trust, abs=0.05)
    tree, budget = DraftTree.of_chain(range(8), 0.9), Budget(8, [1.0 + 0.2 * n for n in range(9)])
    sizes = [len(fit([DraftController(6.0, trust=trust)], [tree], budget).trees[0]) for trust in (1.0, 0.5, 0.1)]
    assert sizes[0] > sizes[1] > sizes[2] == 0


def test_decisions_are_in_the_stats() -> None:
    (row,) = run([case(200)], DEVICES["cpu-float32"], partial(wrong, 1)).stats
    fields = row.to_dict()
    assert set(fields["decisions"]) <= {"drafted", "probed", "no_draft", "unprofitable", "paused"}  # type: ignore[call-overload]
    costs = fields["pass_costs"]
    assert isinstance(costs, dict) and costs[0] == 1.0
    assert costs[1] == pytest.approx(1.1, rel=0.1), "as the device has it"
    assert fields["pass_seconds"] == pytest.approx(0.17, rel=0.1)
    assert fields["calibration"] < 0.5 and fields["saved_passes"] < 0 and fields["mean_allowed_nodes"] > 0  # type: ignore[operator]
