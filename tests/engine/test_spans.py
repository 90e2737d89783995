"""Spans: consecutive tokens of one origin, their characters, and the other places with the same tokens."""

from __future__ import annotations

import pickle
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from copyspec.engine.results import Span
from copyspec.engine.results.spans import MAX_TIES, CopiedOutput, NamedSource
from copyspec.sources import OUTPUT
from copyspec.text.codec import Codec
from copyspec.tree import Origin
from tests.helpers.texts import byte_level, engine, sentencepiece_like

pytestmark = pytest.mark.usefixtures("steady_drafts")

CODEC = Codec(byte_level())


def named(text: str, kind: str = "reference", index: int | None = 0) -> NamedSource:
    encoded = CODEC.encode(text)
    return NamedSource(f"{kind}", kind, index, encoded.ids, encoded.offsets)


def spans_of(
    tokens: list[int],
    origins: list[Origin | None],
    sources: list[NamedSource],
    text: str | None = None,
    *,
    only_settled: bool = False,
) -> tuple[Span, ...]:
    text = CODEC.decode(tokens) if text is None else text
    return CopiedOutput(tokens, origins, sources, text).find_spans(CODEC.decode, only_settled=only_settled)


def test_tokens_of_one_origin_join_across_the_targets_own_token() -> None:
    source = named("the cat sat on the mat")
    tokens = list(source.tokens)
    origins: list[Origin | None] = [Origin(0, i) for i in range(len(tokens))]
    origins[0] = origins[3] = origins[-1] = None
    (span,) = spans_of(tokens, origins, [source])
    assert (span.start, span.end) == (0, len(tokens))
    assert (span.place.start, span.place.end) == (0, len(tokens))
    assert (span.place.start_char, span.place.end_char) == (0, 22) == (span.start_char, span.end_char)


def test_what_nobody_copied_before_a_run_joins_it_where_the_source_holds_it() -> None:
    source = named("the cat sat on the mat")
    tokens = [*source.tokens[:4], 332, *source.tokens[3:]]
    origins: list[Origin | None] = [None] * len(tokens)
    origins[1], origins[-1] = Origin(0, 1), Origin(0, len(source.tokens) - 1)
    first, second = spans_of(tokens, origins, [source])
    assert (first.start, first.end, second.start, second.end) == (0, 4, 5, len(tokens))
    assert (first.place.start, second.place.start) == (0, 3)


def test_an_own_token_that_leaves_the_source_ends_the_span() -> None:
    source = named("the cat sat on the mat")
    tokens = [*source.tokens[:3], 332, *source.tokens[4:]]
    origins: list[Origin | None] = [Origin(0, i) for i in range(len(tokens))]
    origins[3] = None
    first, second = spans_of(tokens, origins, [source])
    assert (first.start, first.end, second.start, second.end) == (0, 3, 4, len(tokens))
    assert second.place.start == 4


def test_a_span_goes_on_where_the_draft_came_from_another_place_with_the_same_text() -> None:
    sources = [named("the cat sat", index=0), named("x the cat sat", index=1)]
    tokens = list(sources[0].tokens)
    offset = len(CODEC.encode("x").ids)
    origins: list[Origin | None] = [Origin(0, 0), *(Origin(1, offset + i) for i in range(1, len(tokens)))]
    (span,) = spans_of(tokens, origins, sources)
    assert span.place.index == 0 and span.end == len(tokens)


def test_ties_are_listed_and_bounded() -> None:
    sources = [named("a cat", index=0), named("a dog, a cat", index=1), named(" a cat" * 20, "prompt", None)]
    needle = CODEC.encode(" a cat").ids
    at = next(i for i in range(20) if list(sources[1].tokens[i : i + len(needle)]) == needle)
    origins: list[Origin | None] = [Origin(1, at + i) for i in range(len(needle))]
    (span,) = spans_of(needle, origins, sources)
    assert span.place.index == 1
    assert len(span.ties) == MAX_TIES and {tie.kind for tie in span.ties} == {"prompt"}
    assert [(tie.start_char, tie.end_char) for tie in span.ties[:2]] == [(0, 6), (6, 12)]


def test_the_outputs_own_earlier_text_is_a_place() -> None:
    phrase = CODEC.encode(" the cat").ids
    tokens = [*phrase, *phrase]
    origins: list[Origin | None] = [None] * len(phrase) + [Origin(OUTPUT, i) for i in range(len(phrase))]
    (span,) = spans_of(tokens, origins, [])
    assert span.place.kind == "output" and (span.place.start_char, span.place.end_char) == (0, 8)
    assert (span.start_char, span.end_char) == (8, 16)
    assert span.ties == ()


def test_a_copy_that_ends_with_a_token_without_characters_has_those_before_it() -> None:
    """As at the end of an encoder's prompt."""
    text, codec = "the cat sat", Codec(sentencepiece_like())
    prompt = codec.encode(text, wrap=True)
    assert prompt.offsets is not None and prompt.offsets()[-1] == (0, 0)
    source = NamedSource("prompt", "prompt", None, prompt.ids, prompt.offsets, text)
    origins = [Origin(0, i) for i in range(len(prompt.ids))]
    (span,) = CopiedOutput(prompt.ids, origins, [source], text).find_spans(codec.decode)
    assert (span.place.start_char, span.place.end_char) == (0, 11)
    (span,) = CopiedOutput(prompt.ids[-1:], origins[-1:], [source], "").find_spans(codec.decode)
    assert span.place.start_char == span.place.end_char


def test_characters_stay_inside_a_text_that_was_cut() -> None:
    source = named("the cat sat")
    tokens = list(source.tokens)
    (span,) = spans_of(tokens, [Origin(0, i) for i in range(len(tokens))], [source], text="the c")
    assert span.end_char == 5


@given(
    st.lists(st.lists(st.integers(0, 4), max_size=12), min_size=1, max_size=3),
    st.lists(st.integers(0, 4), max_size=16),
    st.data(),
)
def test_spans_hold_the_tokens_they_name(sources: list[list[int]], tokens: list[int], data: st.DataObject) -> None:
    named_sources = [NamedSource(str(i), "reference", i, ids) for i, ids in enumerate(sources)]
    origins: list[Origin | None] = []
    for i, token in enumerate(tokens):
        places = [Origin(s, o) for s, ids in enumerate(sources) for o, t in enumerate(ids) if t == token]
        places += [Origin(OUTPUT, o) for o in range(i) if tokens[o] == token]
        origins.append(data.draw(st.sampled_from([None, *places])))
    spans = spans_of(tokens, origins, named_sources)
    end = 0
    for span in spans:
        assert end <= span.start < span.end
        end = span.end
        for place in (span.place, *span.ties):
            stream = tokens if place.kind == "output" else sources[int(place.source)]
            assert stream[place.start : place.end] == tokens[span.start : span.end]
    with mock.patch("copyspec.engine.results.spans.SHORT", data.draw(st.sampled_from([1, 3, 8]))):
        spans, settled_before = spans_of(tokens, origins, named_sources), 0
        for count in range(len(tokens)):
            settled = spans_of(tokens[:count], origins[:count], named_sources, only_settled=True)
            assert len(settled) >= settled_before and settled == spans[: len(settled)]
            settled_before = len(settled)
    covered = {i for span in spans for i in range(span.start, span.end)}
    assert {i for i, origin in enumerate(origins) if origin is not None} <= covered


def test_spans_of_a_result_name_the_reference_as_it_was_given() -> None:
    tiny = engine()
    plain = tiny.generate("the cat", drafter="none", max_new_tokens=40)
    reference = f"x {plain.text} x"
    result = tiny.generate("the cat", ["unrelated", {"text": reference, "name": "mine"}], max_new_tokens=40)
    assert result.token_ids == plain.token_ids
    copied = [span for span in result.spans if span.place.kind == "reference"]
    assert copied
    for span in copied:
        assert (span.place.source, span.place.index) == ("mine", 1)
        assert span.place.start_char is not None
        piece = result.text[span.start_char : span.end_char].strip()
        if "\ufffd" not in piece:
            assert piece in reference[span.place.start_char : span.place.end_char]
    copy = pickle.loads(pickle.dumps(result))
    assert copy == result and copy.spans == result.spans
