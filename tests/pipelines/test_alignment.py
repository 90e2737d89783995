"""Alignments of long texts: pairs of equal words in order, found in linear time."""

from __future__ import annotations

import random
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from copyspec.pipelines.edits import alignment
from copyspec.pipelines.edits.alignment import Shared, align
from copyspec.pipelines.edits.words import Tolerance, Word, words
from copyspec.pipelines.guards.wrappers import unwrapped

keys = st.lists(st.sampled_from("abcde"), max_size=40)


def made(written: list[str]) -> list[Word]:
    return words(" ".join(written), Tolerance())


@given(keys, keys, st.integers(1, 9))
def test_long_texts_give_pairs_of_equal_words_in_order(left: list[str], right: list[str], window: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(alignment, "EXACT_CELLS", 0)
        patch.setattr(alignment, "_WINDOW", window)
        pairs = align(made(left), made(right))
    assert all(left[i] == right[j] for i, j in pairs)
    assert pairs == sorted(set(pairs)) and len({i for i, _ in pairs}) == len({j for _, j in pairs}) == len(pairs)


@given(keys, keys)
def test_what_ends_of_a_stretch_share_is_what_their_alignment_has(left: list[str], right: list[str]) -> None:
    source, stretch = made(left), made(right)
    lengths = Shared(source).with_last(stretch)
    assert lengths == [len(align(source, stretch[len(stretch) - count :])) for count in range(len(stretch) + 1)]


@pytest.mark.parametrize("kinds", [2, 20, 20_000])
def test_long_texts_are_aligned_nearly_as_well_and_in_linear_time(kinds: int) -> None:
    chance = random.Random(kinds)
    common = chance.choices(range(kinds), [1 / (number + 1) for number in range(kinds)], k=60_000)
    left = [f"w{number}" for number in common]
    right = [word for word in left if chance.random() > 0.02]
    right[30_000:30_000] = ["new"] * 3_000
    source, target = made(left), made(right)
    started = time.process_time()
    pairs = align(source, target)
    assert time.process_time() - started < 3
    assert len(pairs) > 0.99 * (len(right) - 3_000)


def test_talk_with_many_places_to_stop_takes_one_alignment() -> None:
    source = "a - " * 8_000
    started = time.process_time()
    answer = unwrapped("Sure! " + "Ok. " * 70 + source.replace("- a - a -", "- a a -"), source)
    assert time.process_time() - started < 2
    assert answer.startswith("a -")
