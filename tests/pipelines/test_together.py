"""Changes that are judged together."""

from __future__ import annotations

import random

import pytest

from copyspec.pipelines.documents import Edit
from copyspec.pipelines.guards.together import groups

WORDS = ["first", "second", "this", "is", "are", "these", "has", "have", "cat", "cats", "moved", "or", "the", "orthe"]


@pytest.mark.parametrize("seed", range(20))
def test_groups_divide_all_changes_and_ascend(seed: int) -> None:
    """A word may move over others, so that groups are joined in any order."""
    draw = random.Random(seed)
    for _ in range(50):
        words = [draw.choice(WORDS) for _ in range(12)]
        text, edits, at = " ".join(words), list[Edit](), 0
        for word in words:
            if draw.random() < 0.5:
                start, end = draw.choice([(at, at + len(word)), (at, at)])
                new = draw.choice(["", *WORDS])
                edits += [Edit(start, end, new if end > start else f"{new or 'a'} ")]
            at += len(word) + 1
        divided = groups(text, edits)
        assert sorted(place for group in divided for place in group) == list(range(len(edits)))
        assert all(group == sorted(group) for group in divided)


def test_words_that_are_divided_belong_together() -> None:
    text = "a piece of code, orthe way"
    edits = [Edit(16, 16, " or"), Edit(17, 22, "the")]
    assert groups(text, edits) == [[0, 1]]
    assert groups("He go too school", [Edit(3, 5, "goes"), Edit(6, 9, "to")]) == [[0], [1]]
