"""The text of tokens is what they add to those before: for tokenizers of each kind, however it is asked for."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
import torch

from copyspec.engine.results.logprobs import LogprobRecorder
from copyspec.engine.results.spans import CopiedOutput, NamedSource
from copyspec.text.codec import Codec
from copyspec.text.replies.marks import unmarked
from copyspec.text.stops import WINDOW, StopStrings
from copyspec.tree import Origin
from tests.helpers.decoders import MAKERS, codec_of

TEXTS = ["the cat", " é", "🙂", "  a", "\n", "the cats. "]
NUM_LISTS = 120  # per kind: more than 1,000 in all


def split_randomly(draw: random.Random, tokens: Sequence[int]) -> list[Sequence[int]]:
    places = sorted(draw.choices(range(len(tokens) + 1), k=draw.randint(0, 6)))
    return [tokens[start:end] for start, end in zip([0, *places], [*places, len(tokens)], strict=True)]


def prompt_of(draw: random.Random, codec: Codec, tokens: Sequence[int]) -> list[int]:
    """A prompt that ends in a word, a space, a line, a special token, a part of a character, or anything."""
    written = [token for text in TEXTS for token in codec.encode(text).ids]
    prompt = draw.choices(draw.choice([tokens, written]), k=draw.choice([0, 1, 5, 40]))
    end = draw.choice([" the", "the ", "the\n", "\n  ", " é", "🙂", "", None])
    if end is None:
        return [*prompt, draw.choice(sorted(codec.special_ids) or [tokens[0]])]
    ids = codec.encode(end).ids
    return prompt + (ids[:-1] if draw.random() < 0.3 else ids)


def drawn(draw: random.Random, codec: Codec) -> tuple[list[int], list[int]]:
    known = range(len(codec.tokenizer))
    common = [token for text in TEXTS for token in codec.encode(text).ids]
    output: list[int] = []
    writes = draw.random() < 0.4
    for _ in range(draw.choice([0, 1, 3, 12])):
        output += codec.encode(draw.choice(TEXTS)).ids if writes or draw.random() < 0.4 else draw.choices(known, k=2)
        output += [draw.choice(common)] * draw.choice([0, 0, 1, 3 * WINDOW if draw.random() < 0.1 else 0])
    return prompt_of(draw, codec, known), output


@pytest.mark.parametrize("kind", MAKERS)
def test_every_text_of_an_output_is_the_same(kind: str) -> None:
    codec, draw, num_defined = codec_of(kind), random.Random(kind), 0
    for _ in range(NUM_LISTS):
        prompt, output = drawn(draw, codec)
        before = codec.context(prompt)
        text = codec.text_of(output, before)
        for tokens in (split_randomly(draw, output), [[token] for token in output]):
            detokenizer = codec.detokenizer(before)
            assert "".join(map(detokenizer.push, tokens)) + detokenizer.finish() == text
        assert unmarked(codec.marked(output, before)) == text
        known, whole = codec.decode(prompt), codec.decode([*prompt, *output])
        if whole.startswith(known) and "\ufffd" not in whole:
            num_defined += 1
            assert text == whole[len(known) :], (prompt, output)
    assert num_defined > NUM_LISTS / 8


@pytest.mark.parametrize("kind", MAKERS)
def test_stop_strings_are_places_in_the_text(kind: str) -> None:
    codec, draw, num_matches = codec_of(kind), random.Random(kind + "stop"), 0
    for _ in range(NUM_LISTS):
        prompt, output = drawn(draw, codec)
        before = codec.context(prompt)
        text = codec.text_of(output, before)
        if not text:
            continue
        start = draw.randrange(len(text))
        string = text[start : start + draw.randint(1, 4)]
        stop = StopStrings([string], codec.decode, before=before, takes_back=codec.takes_back)
        ended = next((i for i, token in enumerate(output) if stop.push(token) is not None), None)
        if ended is None:  # its characters were never complete
            shown = codec.detokenizer(before)
            assert string not in shown.push(output)
            continue
        num_matches += 1
        assert stop.match is not None and text.find(string) == stop.match.start
        assert string in codec.text_of(output[: ended + 1], before)
    assert num_matches > NUM_LISTS / 4


@pytest.mark.parametrize("kind", MAKERS)
def test_tokens_of_log_probabilities_add_up_to_the_text(kind: str) -> None:
    codec, draw = codec_of(kind), random.Random(kind + "logprobs")
    size = len(codec.tokenizer)
    for _ in range(NUM_LISTS // 3 if kind == "bytes" else NUM_LISTS):  # whose decoder is slow
        prompt, output = drawn(draw, codec)
        output = output[:30] or [0]
        before = codec.context(prompt)
        recorder = LogprobRecorder(1, 3, [], codec.decode, before=before, takes_back=codec.takes_back)
        pieces, joined = [], []
        for position, token in enumerate(output):
            scores = torch.zeros(1, size)
            scores[0, draw.choices(range(size), k=2)] = 1.0
            scores[0, token] = 2.0
            recorder(torch.tensor([[0, *output[:position]]]), scores)
            (taken,) = recorder.take(position, [token], is_last=position == len(output) - 1)
            assert taken.top[0].token == taken.token and taken.top[0].token_id == token
            for other in taken.top[1:]:
                detokenizer = codec.detokenizer(before)
                detokenizer.push(output[:position])
                assert other.token == detokenizer.push([other.token_id])
            pieces.append(taken.token)
            joined.append(codec.bytes_of(token, taken.token))
        text = codec.text_of(output, before)
        assert "".join(pieces) == text
        whole = b"".join(part or b"" for part in joined)
        if None not in joined and "\ufffd" not in text and "\ufffd" not in codec.decode(prompt):
            if kind == "ctrl":  # a part of a word at the end shows its mark, which is no part of any token
                assert whole.decode().removesuffix("@@") == text.removesuffix("@@")
            elif kind != "bytes":  # drops bytes that are no characters
                assert whole.decode() == text
            elif text == codec.text_of(output):
                assert whole.decode("utf-8", "ignore") == text


@pytest.mark.parametrize("kind", MAKERS)
def test_characters_of_spans_count_the_whole_text(kind: str) -> None:
    codec, draw = codec_of(kind), random.Random(kind + "spans")
    for _ in range(NUM_LISTS // 4):
        prompt, output = drawn(draw, codec)
        before = codec.context(prompt)
        text = codec.text_of(output, before)
        source = NamedSource("source", "reference", 0, output)
        origins = [Origin(0, place) for place in range(len(output))]
        copied = CopiedOutput(output, origins, [source], text, 0, codec.takes_back, before)
        for span in copied.find_spans(codec.decode):
            assert 0 <= span.start_char <= span.end_char <= len(text)
            assert span.end_char == len(text) or "\ufffd" in text


@pytest.mark.parametrize("kind", ["llama 2", "mistral", "t5", "stripping"])
def test_a_space_after_the_prompt_is_text(kind: str) -> None:
    codec = codec_of(kind)
    vocabulary = codec.tokenizer.get_vocab()
    word = vocabulary["▁a"] if "▁a" in vocabulary else vocabulary["▁the"]
    shown = " a" if "▁a" in vocabulary else " the"
    for text in ("the", "the cat sat", "the\n", "é"):
        ids = codec.encode(text).ids
        if codec.special_ids.intersection(ids):
            continue
        assert codec.text_of([word], codec.context(ids)) == shown
        assert codec.text_of([word], codec.context([*ids, *sorted(codec.special_ids)])) == shown
    assert codec.text_of([word], codec.context([])) == shown[1:]
    assert codec.text_of([word], codec.context(sorted(codec.special_ids))) == shown[1:]
    spaces = [vocabulary["▁"]] * 2
    assert codec.text_of([*spaces, word], codec.context([word])) == "  " + shown
    if kind != "stripping":
        assert codec.text_of([word], spaces[:1]) == shown


def test_a_character_that_the_prompt_began_belongs_to_the_output() -> None:
    for kind in ("byte-level", "llama 2", "gemma", "bytes"):
        codec = codec_of(kind)
        euro = codec.encode("€").ids[-3:]
        for count in (1, 2):
            before = codec.context([*codec.encode("the").ids, *euro[:count]])
            assert codec.text_of(euro[count:], before) == "€"
            assert codec.text_of([], before) == ""
            after = codec.encode("the").ids[-1:]
            assert codec.text_of(after, before) == codec.detokenizer(before).push(after) == codec.decode(after)
