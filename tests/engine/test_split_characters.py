"""Spans of characters that are split into several tokens: what is coloured equals its source, character for
character."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

import copyspec
from copyspec.engine.results.spans import CopiedOutput, NamedSource
from copyspec.sources import OUTPUT
from copyspec.text.codec import Codec
from copyspec.tree import Origin
from copyspec.views.provenance import Span
from tests.helpers.texts import byte_level
from tests.helpers.tiny import tiny_model, tiny_tokenizer

CODECS = {"merged": Codec(byte_level()), "bytes": Codec(tiny_tokenizer())}
TEXTS = [
    "é",
    "è",
    "ĩ",
    "aéb",
    "🙂",
    "🙃🙂",
    "naïve 東京",
    "東亰",
    "the cat",
    "ééé",
    "é🙂é",
    "ÿÿ",
    "a\u0301",
    "👩‍👩‍👧",
    "Ж Ѐ",
    "",
]


def spans_of(
    codec: Codec, sources: Sequence[NamedSource], tokens: list[int], origins: Sequence[Origin | None], *, settled: bool
) -> tuple[str, tuple[Span, ...]]:
    text = codec.text_of(tokens)
    output = CopiedOutput(tokens, origins, sources, text)
    return text, output.find_spans(codec.decode, only_settled=settled)


def check(text: str, spans: Sequence[Span], sources: Sequence[NamedSource]) -> int:
    """Check that spans and their places hold the same characters; returns how many."""
    count, end = 0, 0
    for span in spans:
        assert end <= span.start_char <= span.end_char <= len(text)
        end = span.end_char
        for place in (span.place, *span.ties):
            own = text if place.source == "output" else next(s.text for s in sources if s.name == place.source)
            assert own is not None and place.start_char is not None and place.end_char is not None
            copied = own[place.start_char : place.end_char]
            assert copied == text[span.start_char : span.end_char]
        count += span.end_char - span.start_char
    return count


def source(codec: Codec, name: str, text: str) -> NamedSource:
    encoded = codec.encode(text)
    return NamedSource(name, "reference", 0, encoded.ids, encoded.offsets, text)


@pytest.mark.parametrize("name", CODECS)
@pytest.mark.parametrize("settled", [False, True])
def test_coloured_characters_equal_those_of_the_source(name: str, settled: bool) -> None:
    codec, draw, coloured = CODECS[name], random.Random(7), 0
    for _ in range(400):
        texts = ["".join(draw.choices(TEXTS, k=draw.randint(1, 4))) or "é" for _ in range(2)]
        sources = [source(codec, f"s{i}", text) for i, text in enumerate(texts)]
        tokens: list[int] = []
        origins: list[Origin | None] = []
        for _ in range(draw.randint(1, 6)):
            if draw.random() < 0.3:
                own = codec.encode(draw.choice(TEXTS)).ids
                own = own[draw.randint(0, len(own)) :] if draw.random() < 0.5 else own
                tokens += own
                origins += [None] * len(own)
            else:
                index = draw.choice([0, 1, OUTPUT]) if tokens else draw.choice([0, 1])
                stream = tokens if index == OUTPUT else list(sources[index].tokens)
                start = draw.randrange(len(stream))
                end = draw.randint(start + 1, len(stream))
                origins += [Origin(index, at) for at in range(start, end)]
                tokens += stream[start:end]
        text, spans = spans_of(codec, sources, tokens, origins, settled=settled)
        coloured += check(text, spans, sources)
    assert coloured > 500


@pytest.mark.parametrize("name", CODECS)
@pytest.mark.parametrize(("held", "made"), [("é", "è"), ("🙂", "🙃"), ("東", "杁"), ("aé", "aè"), ("🙂b", "🙃b")])
def test_a_part_of_a_character_has_no_place_of_its_own(name: str, held: str, made: str) -> None:
    codec = CODECS[name]
    sources, ids = [source(codec, "s", held)], codec.encode(made).ids
    tokens = list(sources[0].tokens)
    origins = [Origin(0, tokens.index(token)) if token in tokens else None for token in ids]
    text, spans = spans_of(codec, sources, ids, origins, settled=False)
    assert text == made
    check(text, spans, sources)
    shared = {char for char in made if char in held}
    assert {text[at] for span in spans for at in range(span.start_char, span.end_char)} == shared
    assert sum((span.place.end_char or 0) - (span.place.start_char or 0) for span in spans) == len(shared)


def test_whole_characters_keep_their_places() -> None:
    codec = CODECS["bytes"]
    sources = [source(codec, "s", "a é🙂 b")]
    ids = list(sources[0].tokens)
    _, (span,) = spans_of(codec, sources, ids, [Origin(0, at) for at in range(len(ids))], settled=False)
    assert (span.start_char, span.end_char, span.place.start_char, span.place.end_char) == (0, 6, 0, 6)


def test_results_of_random_models() -> None:
    tokenizer = tiny_tokenizer()
    for seed in range(8):
        engine = copyspec.Engine(tiny_model(seed), tokenizer)
        reference = "".join(random.Random(seed).choices(TEXTS, k=12))
        result = engine.generate(
            reference, references=[reference], max_new_tokens=60, ignore_eos=True, temperature=2.0, seed=seed
        )
        for span in result.spans:
            place = span.place
            if place.start_char is None or place.end_char is None or place.source == "output":
                continue
            copied = reference[place.start_char : place.end_char]
            assert copied == result.text[span.start_char : span.end_char]
