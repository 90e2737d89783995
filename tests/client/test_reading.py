"""Provenance, margins and thoughts that are found by text."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from copyspec.client.reading import SEED, CharacterJoiner, ThoughtSplitter, changes_by_text, spans_by_text
from copyspec.engine.results.logprobs import TokenLogprob
from copyspec.views.provenance import SourceText, provenance_of

LETTERS = st.text("ab cé\n猫", max_size=40)
SEEDS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 30), st.integers(0, 30)), max_size=5)


@given(st.lists(LETTERS, max_size=4), SEEDS, LETTERS)
def test_spans_are_equal_text_in_order_and_leave_no_long_copy_out(
    texts: list[str], copies: list[tuple[int, int, int]], own: str
) -> None:
    sources = [SourceText(f"references[{at}]", "reference", at, text) for at, text in enumerate(texts)]
    pieces = [own[:10], *(texts[n][start : start + size] for n, start, size in copies if n < len(texts)), own[10:]]
    text = "".join(pieces)
    spans = spans_by_text(text, sources)
    end = 0
    for span in spans:
        assert end <= span.start_char < span.end_char <= len(text)
        end = span.end_char
        for place in (span.place, *span.ties):
            assert place.index is not None and place.start_char is not None
            assert texts[place.index][place.start_char : place.end_char] == text[span.start_char : span.end_char]
    covered = {at for span in spans for at in range(span.start_char, span.end_char)}
    seed = min(SEED, len(text))
    for at in range(len(text) - seed + 1) if seed else ():
        if any(text[at : at + seed] in source for source in texts):
            assert covered.intersection(range(at, at + seed))
    provenance = provenance_of(text, spans, sources)  # raises if a piece differs from its source
    assert sum(provenance.copied_characters()) == len(covered)


def test_a_copy_goes_on_where_it_was_and_takes_what_stands_before_it() -> None:
    line = "the cat sat on the mat and slept. "
    source = SourceText("edit_source", "edit", None, line * 3)
    text = line + "the dog sat on the mat and slept. " + line
    spans = spans_by_text(text, [source])
    starts = [(span.start_char, span.place.start_char) for span in spans]
    assert starts[0] == (0, 0) and all(here == there for here, there in starts)
    assert "".join(text[span.start_char : span.end_char] for span in spans) == text.replace("dog", "")


def test_short_answers_are_found_whole_only() -> None:
    source = SourceText("prompt", "prompt", None, "It was built in 1871 by two brothers.")
    (span,) = spans_by_text("1871", [source])
    assert (span.place.start_char, span.place.end_char) == (16, 20)
    assert spans_by_text("1872", [source]) == spans_by_text("", [source]) == ()


def test_long_texts_that_repeat_themselves_take_no_time() -> None:
    text = "a" * 20_000
    (span,) = spans_by_text(text, [SourceText("prompt", "prompt", None, "a" * 100_000)])
    assert span.end_char == 20_000


def tokens(*pieces: tuple[str, float, dict[str, float]]) -> list[TokenLogprob]:
    return [
        TokenLogprob(-1, text, own, tuple(TokenLogprob(-1, other, value) for other, value in top.items()))
        for text, own, top in pieces
    ]


@pytest.mark.parametrize(
    ("source", "pieces", "expected"),
    [
        ("He go home.", [("He", 0.0, {}), (" goes", -0.5, {" go": -1.5}), (" home.", 0.0, {})], [(2, 5, 1.0)]),
        # The token that differs begins before the difference.
        ("The childs go.", [("The", 0, {}), (" children", -0.1, {" child": -2.1}), (" go.", 0, {})], [(9, 10, 2.0)]),
        # A word more, and a word less.
        ("I am happy.", [("I am", 0, {}), (" very", -1.0, {" happy": -1.5}), (" happy.", 0, {})], [(4, 4, 0.5)]),
        ("I am very happy.", [("I am", 0, {}), (" happy", -0.2, {" very": -3.2}), (".", 0, {})], [(4, 9, 3.0)]),
        # The source's own word is not among the likeliest: the margin is at least the distance to the last of them.
        ("He go.", [("He", 0, {}), (" goes", -0.1, {" goes": -0.1, " went": -2.5}), (".", 0, {})], [(2, 6, 2.4)]),
    ],
)
def test_margins_of_changes(source: str, pieces: list, expected: list) -> None:  # type: ignore[type-arg]
    listed = tokens(*pieces)
    changes = changes_by_text(source, "".join(token.token for token in listed), listed)
    assert len(changes) == len(expected)
    for change, (start, end, margin) in zip(changes, expected, strict=True):
        assert change.start <= start <= change.start + 6 and change.end == end
        assert change.margin == pytest.approx(margin) or (margin == 2.4 and change.margin > margin)


@given(LETTERS, LETTERS, st.integers(1, 7))
def test_any_tokens_give_margins_in_the_text(source: str, output: str, size: int) -> None:
    listed = tokens(*((output[at : at + size], -0.1, {"a": -2.0}) for at in range(0, len(output), size)))
    for change in changes_by_text(source, output, listed):
        assert 0 <= change.start <= change.end <= len(source) and not math.isnan(change.margin)
    assert changes_by_text(output, output, listed) == ()


@given(st.text("ab <>/thinkx\n", max_size=40), st.integers(1, 9))
def test_a_streamed_thought_is_told_apart(text: str, size: int) -> None:
    thought = f"<think>{text.replace('</think>', '')}</think>"
    for whole, has_thought, answer in ((thought + text, True, text), (f"a{text}", False, f"a{text}")):
        splitter, got = ThoughtSplitter(), ["", ""]
        for at in range(0, len(whole), size):
            got = [have + new for have, new in zip(got, splitter.push(whole[at : at + size]), strict=True)]
        got = [have + new for have, new in zip(got, splitter.finish(), strict=True)]
        assert got[1].lstrip() == answer.lstrip() and bool(got[0]) <= has_thought


@given(st.lists(st.text(st.sampled_from("a猫😀\ud83d\ude00\udc80\n"), max_size=4), max_size=5))
def test_halves_of_characters_are_joined_or_replaced(pieces: list[str]) -> None:
    joiner = CharacterJoiner()
    text = "".join(map(joiner.push, pieces)) + joiner.push("", is_last=True)
    units = "".join(pieces).encode("utf-16-le", "surrogatepass")
    assert text == units.decode("utf-16-le", "replace")
    assert text.encode().decode() == text
    whole = [char for char in "".join(pieces) if char in "a猫\n"]
    assert [char for char in text if char in "a猫\n"] == whole
