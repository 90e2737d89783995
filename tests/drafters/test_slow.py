"""A drafter whose time does not pay is not asked again: by measured times, unlike the tests beside it."""

from __future__ import annotations

import time
from collections.abc import Sequence

from copyspec import Budget, DraftTree
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
