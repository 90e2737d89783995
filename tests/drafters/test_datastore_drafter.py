"""The datastore drafter: trees contain the continuations in the store, best first, and satisfy the contract."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from copyspec.budget import Budget
from copyspec.drafters import Drafter
from copyspec.drafters.predictors.datastore import DatastoreDrafter
from copyspec.drafters.predictors.store import CONTEXT_TOKENS, PRIOR_RATES
from copyspec.retrievers import Datastore
from copyspec.tree import EMPTY, ROOT, Origin, check_tree

Found = tuple[tuple[int, int], list[tuple[int, int, list[int], float]]]


class Fixed:
    """A store with one answer."""

    def __init__(self, hits: list[tuple[int, int, list[int], float]], matched: int = 3) -> None:
        self.hits = hits
        self.matched = matched
        self.asked: list[list[int]] = []

    def find(self, context: Sequence[int], length: int, count: int) -> Found:
        self.asked.append(list(context))
        return (self.matched, len(self.hits)), self.hits


HITS = st.lists(
    st.tuples(
        st.integers(0, 3), st.integers(0, 9), st.lists(st.integers(0, 3), min_size=1, max_size=6), st.floats(0.01, 1)
    ),
    max_size=12,
)


@given(HITS, st.integers(0, 40))
def test_trees_are_the_best_prefixes_of_the_continuations(
    hits: list[tuple[int, int, list[int], float]], nodes: int
) -> None:
    tree = DatastoreDrafter(Fixed(hits), [1], first_source=5).propose(Budget(nodes))
    check_tree(tree)
    prefixes = {tuple(tokens[:end]) for _, _, tokens, _ in hits for end in range(1, len(tokens) + 1)}
    paths: list[tuple[int, ...]] = []
    for token, parent, origin in zip(tree.tokens, tree.parents, tree.origins, strict=True):
        paths.append((*(paths[parent] if parent != ROOT else ()), token))
        assert origin is not None
        assert any(
            document + 5 == origin.source and offset + len(paths[-1]) - 1 == origin.offset
            for document, offset, tokens, _ in hits
            if tuple(tokens[: len(paths[-1])]) == paths[-1]
        )
    assert len(set(paths)) == len(paths) and set(paths) <= prefixes
    for score, parent in zip(tree.scores, tree.parents, strict=True):
        assert 0 < score <= (tree.scores[parent] if parent != ROOT else 1.0)
    if hits and nodes == 40 and len(prefixes) <= 40:
        whole = DatastoreDrafter(Fixed(hits), [1]).propose(Budget(1000))
        assert min(tree.scores) == min(whole.scores)


def test_frequent_continuations_come_first() -> None:
    hits = [(0, 7, [4, 5], 0.2), (1, 3, [4, 6], 0.4), (2, 2, [8], 0.3)]
    tree = DatastoreDrafter(Fixed(hits), [1], first_source=0).propose(Budget(8))
    assert (list(tree.tokens), list(tree.parents)) == ([4, 6, 8, 5], [ROOT, 0, ROOT, 0])
    assert list(tree.origins) == [Origin(0, 7), Origin(1, 4), Origin(2, 2), Origin(0, 8)]
    assert tree.scores[0] == pytest.approx(PRIOR_RATES[3] * 0.6 / 0.9)
    assert tree.scores[1] == pytest.approx(tree.scores[0] * PRIOR_RATES[4] * 0.4 / 0.6)


def test_nothing_found_is_an_empty_tree() -> None:
    assert DatastoreDrafter(Fixed([]), [1]).propose(Budget(8)) is EMPTY
    store = Fixed([(0, 0, [1], 1.0)])
    assert DatastoreDrafter(store).propose(Budget(8)) is EMPTY
    assert DatastoreDrafter(store, [1]).propose(Budget(0)) is EMPTY
    assert not store.asked


def test_the_budget_leaves_out_what_does_not_pay() -> None:
    store = Fixed([(0, 0, [1, 2, 3, 4], 1.0)])
    assert len(DatastoreDrafter(store, [9]).propose(Budget(4, [1.0, 1.01, 1.02, 5.0, 9.0]))) == 2


def test_scores_follow_what_was_accepted() -> None:
    def score(right: bool) -> float:
        drafter = DatastoreDrafter(Fixed([(0, 0, [1], 1.0)]), [9])
        for _ in range(40):
            drafter.propose(Budget(4))
            drafter.accept([1 if right else 2])
        return drafter.propose(Budget(4)).scores[0]

    assert score(False) < 0.2 < PRIOR_RATES[3] < score(True) < 1


def test_the_output_is_followed() -> None:
    store = Fixed([])
    drafter = DatastoreDrafter(store, range(100))
    drafter.accept([7, 8])
    drafter.propose(Budget(4))
    assert store.asked == [[*range(70, 100), 7, 8]] and len(store.asked[0]) == CONTEXT_TOKENS


def test_a_text_that_is_in_the_store_is_drafted_from_it(tmp_path: Path) -> None:
    text = [n * n % 97 for n in range(400)]
    drafter: Drafter = DatastoreDrafter(Datastore.create(tmp_path, [[1, 2], text]), text[:4], first_source=0)
    at = calls = 4
    while at < 100:
        tree = drafter.propose(Budget(16))
        node, length = ROOT, 0
        for child, (token, parent) in enumerate(zip(tree.tokens, tree.parents, strict=True)):
            if parent == node and token == text[at + length]:
                node, length = child, length + 1
        drafter.accept(text[at : at + length + 1])
        at, calls = at + length + 1, calls + 1
    assert calls < 20
