"""The datastore beside copies: its predictions and their probabilities, and that a wrong store loses weight."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from copyspec.drafters.predictors.datastore import DatastorePredictor
from copyspec.retrievers import Datastore

STORED = [[1, 2, 3, 4, 5, 6], [1, 2, 3, 7, 8], [9, 2, 3, 4, 6]]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Datastore:
    return Datastore.create(tmp_path_factory.mktemp("store"), STORED)


def test_predictions_are_what_followed_and_deeper_ones_follow_theirs(store: Datastore) -> None:
    predictor = DatastorePredictor(store, [1, 2, 3])
    probs = dict(predictor.predict(()) or ())
    assert set(probs) == {4, 7} and probs[4] > probs[7] and sum(probs.values()) < 1
    assert {token for token, _ in predictor.predict((4,)) or ()} == {5, 6}
    assert [token for token, _ in predictor.predict((7,)) or ()] == [8]
    assert predictor.predict((5,)) is None and predictor.predict((7, 8)) is None
    predictor.accept([4])
    assert {token for token, _ in predictor.predict(()) or ()} == {5, 6}
    predictor.accept([100])
    assert predictor.predict(()) is None
    assert DatastorePredictor(store, []).predict(()) is None


@given(context=st.lists(st.integers(0, 9), max_size=6), path=st.lists(st.integers(0, 9), max_size=3))
def test_probabilities_are_at_most_one(store: Datastore, context: list[int], path: list[int]) -> None:
    probs = DatastorePredictor(store, context).predict(tuple(path)) or []
    assert sum(probability for _, probability in probs) <= 1 and [p for _, p in probs] == sorted(
        [p for _, p in probs], reverse=True
    )


def test_a_path_longer_than_every_continuation_has_no_predictions(store: Datastore) -> None:
    assert DatastorePredictor(store, [1]).predict(tuple(range(1000))) is None


def test_after_a_draft_few_places_say_less_than_many(tmp_path: Path) -> None:
    store = Datastore.create(tmp_path / "store", [[1, 2, 3, 4], [1, 2, 5, 6], [1, 2, 5, 6]])
    predictor = DatastorePredictor(store, [1, 2])
    ((_, one),), ((_, two),) = predictor.predict((3,)) or (), predictor.predict((5,)) or ()
    ((_, directly),) = DatastorePredictor(store, [1, 2, 3]).predict(()) or ()
    assert one < two < directly
