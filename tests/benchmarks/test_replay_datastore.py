"""The replay with a datastore beside the copies."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from benchmarks.replay.run import Tally, replay
from copyspec.budget import Budget
from copyspec.drafters import create
from copyspec.drafters.base import Drafter
from copyspec.drafters.predictors.datastore import DatastorePredictor
from copyspec.retrievers import Datastore
from copyspec.sources import Source

STORED = [[1, 2, 3, 4, 5, 6], [1, 2, 3, 7, 8], [9, 2, 3, 4, 6]]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Datastore:
    return Datastore.create(tmp_path_factory.mktemp("store"), STORED)


def calls(drafter: Drafter, output: list[int]) -> int:
    tally = Tally()
    replay(drafter, output, Budget(16), tally)
    return tally.calls


def test_a_store_helps_where_it_is_right_and_costs_nothing_where_it_is_wrong(tmp_path: Path) -> None:
    rng = random.Random(0)
    known = [rng.randrange(200) for _ in range(400)]
    prompt, output = [rng.randrange(200) for _ in range(300)], known[100:300]
    quoted = prompt[50:250]
    right = Datastore.create(tmp_path / "right", [known])
    # A store with the prompt's tokens in another order: it predicts something after each of them, and is never right.
    pairs = [[token, (token + 1) % 200] * 3 for token in range(200)]
    wrong = Datastore.create(tmp_path / "wrong", pairs)

    def both(store: Datastore) -> Drafter:
        sources = [Source(prompt, "prompt")]
        return create(sources, frozenset({999}), predictors=[lambda: DatastorePredictor(store, prompt)])

    def copies() -> Drafter:
        return create([Source(prompt, "prompt")], frozenset({999}))

    assert 5 * calls(both(right), output) <= calls(copies(), output)
    assert calls(both(wrong), quoted) <= calls(copies(), quoted) + 2


def test_a_store_of_unrelated_text_costs_an_edited_text_next_to_nothing(tmp_path: Path) -> None:
    """The edited text has few changed tokens, and the store predicts something after every token."""
    rng = random.Random(1)
    text = [rng.randrange(150) for _ in range(600)]
    output = [rng.randrange(150) if rng.random() < 0.06 else token for token in text]
    unrelated = Datastore.create(tmp_path / "store", [[rng.randrange(150) for _ in range(5000)] for _ in range(4)])
    sources, eos = [Source(text, "edit")], frozenset({999})
    alone = calls(create(sources, eos), output)
    both = calls(create(sources, eos, predictors=[lambda: DatastorePredictor(unrelated, [])]), output)
    assert alone < 0.25 * len(output) and both <= 1.02 * alone
