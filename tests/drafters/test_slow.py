"""A drafter whose time does not pay is not asked again: by measured times, unlike the tests beside it."""

from __future__ import annotations

import time
from collections.abc import Sequence

from copyspec import Budget, DraftTree
from copyspec.drafters.blend import BlendDrafter
from copyspec.drafters.predictors.base import CalibratedPredictor, Learned
from copyspec.sources import Source
from tests.helpers.texts import new_engine


def test_a_slow_drafter_is_paused() -> None:
    asked = []

    class Slow:
        def propose(self, budget: Budget) -> DraftTree:
            asked.append(1)
            time.sleep(0.05)
            return DraftTree.of_chain([1, 2, 3])

        def accept(self, tokens: Sequence[int]) -> None:
            pass

    options = {"max_new_tokens": 64, "ignore_eos": True}
    plain, drafted = (
        new_engine().generate("The cat sat on the mat", drafter=drafter, **options)  # type: ignore[call-overload]
        for drafter in ("none", lambda context: Slow())
    )
    assert drafted.token_ids == plain.token_ids
    assert len(asked) <= 12


class Sleeping(CalibratedPredictor):
    """A model that takes its time, and predicts what copies do not."""

    def run(self, tree: DraftTree) -> bool:
        started = time.perf_counter()
        time.sleep(0.02)
        self._predicted[()] = [(7, 0.9)]
        self._learned.time.took(time.perf_counter() - started)
        return True


def test_runs_of_a_model_whose_time_is_unknown_do_not_count_against_drafts() -> None:
    """The first ones load weights, or read a prompt; the row's copies would be paused with them."""
    model = Sleeping(Learned())
    drafter = BlendDrafter([Source([1, 2, 3], "prompt")], [model], eos=None)
    for unmeasured in (2, 0, 0):  # runs: the first does not count, and the second is the first that is known
        drafter.propose(Budget(8, [1.0] * 9, 10.0))
        assert 0.02 * unmeasured <= drafter.unmeasured <= 1.0 * unmeasured
        drafter.accept([9])
