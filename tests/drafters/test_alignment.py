"""Alignment and suffix matches against slow references."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from copyspec.drafters.copying.alignment import MAX_EXCESS, MOVE_EVERY, SOON, Alignment
from copyspec.drafters.copying.corpus import LONGEST, RECENT, SEPARATOR, CopyCorpus, matches
from copyspec.drafters.copying.native_module import COMPILED
from copyspec.sources import Source

needs_compiler = pytest.mark.skipif(COMPILED is None, reason="copyspec was installed without a C compiler")
tokens_of_four = st.lists(st.integers(0, 3), max_size=40)


def edit_costs(source: Sequence[int], output: Sequence[int], costs: Sequence[int] | None = None) -> list[int]:
    """Return the edit distance D[j] to every prefix source[:j], by the textbook table; `costs`: its first row."""
    costs = list(range(len(source) + 1)) if costs is None else list(costs)
    for token in output:
        row = [costs[0] + 1]
        for j in range(1, len(costs)):
            row.append(min(costs[j] + 1, costs[j - 1] + (source[j - 1] != token), row[-1] + 1))
        costs = row
    return costs


@settings(max_examples=200, deadline=None)
@given(source=tokens_of_four, output=tokens_of_four)
def test_alignment_against_the_table(source: list[int], output: list[int]) -> None:
    alignment = Alignment(source)
    alignment.extend(output)
    expected = edit_costs(source, output)
    assert (alignment.start, (alignment.costs + expected[0]).tolist()) == (0, expected)
    assert alignment.least() == min(expected)
    assert alignment.best() == expected.index(min(expected))
    assert alignment.near() == {
        j: cost - min(expected) for j, cost in enumerate(expected) if cost <= min(expected) + MAX_EXCESS
    }


@settings(max_examples=50, deadline=None)
@given(edits=st.lists(st.tuples(st.integers(0, 299), st.sampled_from("sid")), max_size=8))
def test_a_band_holds_the_best_position(edits: list[tuple[int, str]]) -> None:
    source = [index * 7 % 31 for index in range(300)]
    output = list(source)
    for position, kind in sorted(edits, reverse=True):
        output[position : position + (kind != "i")] = [] if kind == "d" else [99]
    alignment, expected, checked = Alignment(source, band=16), edit_costs(source, []), 0
    for count, token in enumerate(output, start=1):
        alignment.extend([token])
        assert len(alignment) <= 4 * 16 + 1
        if count % 37 == 0 or count == len(output):
            expected, checked = edit_costs(source, output[checked:count], expected), count
            assert alignment.least() == min(expected)
            assert alignment.best() == expected.index(min(expected))


def test_a_band_starts_anew_where_the_output_stands() -> None:
    source = list(range(1000))
    alignment = Alignment(source, band=16)
    alignment.reset_at(600)
    assert (
        alignment.in_band(600) and alignment.in_band(584) and not alignment.in_band(583) and not alignment.in_band(617)
    )
    alignment.extend(source[600:650])
    assert alignment.best() == 650
    alignment.reset_at(650)
    assert alignment.best() == 650


@settings(max_examples=200, deadline=None)
@given(
    source=tokens_of_four,
    before=tokens_of_four,
    after=st.lists(st.integers(0, 3), max_size=SOON + 4),
    place=st.integers(0, 40),
)
def test_what_is_near_a_place_where_the_output_stood(
    source: list[int], before: list[int], after: list[int], place: int
) -> None:
    place = min(place, len(source))
    alignment = Alignment(source)
    alignment.extend(before)
    alignment.reset_at(place)
    alignment.extend(after)
    costs = edit_costs(source, after, [abs(position - place) for position in range(len(source) + 1)])
    assert alignment.near() == {j: cost - min(costs) for j, cost in enumerate(costs) if cost <= min(costs) + MAX_EXCESS}


@needs_compiler
@settings(max_examples=200, deadline=None)
@given(
    source=st.integers(1, 30).flatmap(lambda most: st.lists(st.integers(0, most), max_size=200)),
    band=st.sampled_from([2, 5, 16, 31, 32, 33, 64, 256]),
    free=st.sampled_from([0, 0, 3, 12]),
    steps=st.lists(st.tuples(st.integers(0, 9), st.integers(-5, 5), st.integers(1, 20)), max_size=30),
)
def test_alignments_are_the_same_compiled_and_in_python(
    source: list[int], band: int, free: int, steps: list[tuple[int, int, int]]
) -> None:
    """Along a copy that breaks off, or moves by as many positions as a step gives."""
    assert COMPILED is not None
    compiled, place = COMPILED.align(band, MOVE_EVERY, SOON, MAX_EXCESS, source, free), 0
    in_python = Alignment(source, band, free)
    for kind, shift, length in steps:
        place = min(max(place + shift, 0), len(source) + 2)
        for alignment in (compiled, in_python):
            if kind == 0:
                alignment.reset_at(place)
            alignment.extend(source[place : place + length] or [kind])
        place += length
        assert list(compiled.near(3).items()) == list(in_python.near(3).items())
        assert (compiled.least(), compiled.best()) == (in_python.least(), in_python.best())
        assert [*map(compiled.in_band, range(-1, 203))] == [*map(in_python.in_band, range(-1, 203))]


@needs_compiler
def test_wrong_arguments_of_compiled_alignments_raise() -> None:
    class Emptying:
        def __index__(self) -> int:
            tokens.clear()
            return 1

    assert COMPILED is not None
    right = (16, 32, 24, 3, [1, 2, 3], 0)
    alignment = COMPILED.align(*right)
    tokens = [1, Emptying(), 3]
    for place, wrong in enumerate((1, 0, -1, 2**21, tokens, -1)):
        with pytest.raises((IndexError, ValueError)):
            COMPILED.align(*right[:place], wrong, *right[place + 1 :])
    tokens = [1, Emptying(), 3]
    alignment.extend(tokens)
    for method, argument in (
        *((alignment.extend, [2**64]), (alignment.extend, 5), (alignment.extend, ["a"])),
        *((alignment.reset_at, -1), (alignment.reset_at, 2**70), (alignment.reset_at, 20), (alignment.near, -1)),
        *((alignment.near, 2**63 - 2), (alignment.in_band, "a")),
    ):
        with pytest.raises((IndexError, OverflowError, TypeError, ValueError)):
            method(argument)
    with pytest.raises(TypeError, match="cannot create"):
        type(alignment)()


def slow_matches(text: list[int]) -> dict[int, int]:
    """Return the match length at every position of `text`, by comparing backwards."""
    lengths = {}
    for place in range(1, len(text)):
        length = 0
        while length < min(place, LONGEST) and text[place - 1 - length] == text[-1 - length] != SEPARATOR:
            length += 1
        if length:
            lengths[place] = length
    return lengths


@settings(max_examples=200, deadline=None)
@given(
    reference=st.lists(st.integers(0, 2), max_size=25),
    prompt=st.lists(st.integers(0, 2), max_size=25),
    output=st.lists(st.integers(0, 2), max_size=25),
)
def test_matches_against_comparing_backwards(reference: list[int], prompt: list[int], output: list[int]) -> None:
    # A prompt that quotes the reference is indexed only once; such cases have a test of their own.
    corpus = CopyCorpus([Source(reference[:7], "reference"), Source(prompt, "prompt")], None)
    corpus.extend(output)
    assert dict(matches(corpus)) == slow_matches(corpus.tokens)


def test_many_places_keep_the_longest_and_latest() -> None:
    text = [0, 1, 2, 0, 1, 3] * 200
    corpus = CopyCorpus([Source([*text, 5, 2, 0, 1], "prompt")], None)
    lengths, expected = dict(matches(corpus)), slow_matches(corpus.tokens)
    assert all(expected[place] == length for place, length in lengths.items())
    for length in set(expected.values()):
        places = sorted(place for place, other in expected.items() if other == length)
        longest = sorted(place for place, other in lengths.items() if other == length)
        assert longest == places[-len(longest) :] and len(longest) >= min(len(places), RECENT)
