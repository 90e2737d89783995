"""Draft models with another tokenizer: texts agree, tokens do not."""

from __future__ import annotations

from collections.abc import Sequence
from time import sleep

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from copyspec.decoding.requests import Request
from copyspec.drafters.blend import BlendDrafter, PredictorDrafter
from copyspec.drafters.predictors.base import RowContext
from copyspec.drafters.predictors.language_model import DraftModel
from copyspec.drafters.predictors.text_bridge import BridgedPredictor, Tokenizing
from copyspec.options import SamplingOptions
from copyspec.sources import Source
from copyspec.targets import wrap
from copyspec.tree import EMPTY
from tests.helpers.decoded import decoded
from tests.helpers.fakes import FakeTarget
from tests.helpers.models import tiny
from tests.helpers.tiny import tiny_tokenizer

TEXT = "the cat sat on the mat, and the dog sat on the log; naïve café owners sat on the café's naïve mats. " * 3


def words_tokenizer() -> PreTrainedTokenizerFast:
    """Train a byte-level BPE on the text, so that most words are one token."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=320, initial_alphabet=alphabet, show_progress=False, special_tokens=["</s>"]
    )
    tokenizer.train_from_iterator([TEXT], trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>")


def side(tokenizer: PreTrainedTokenizerFast) -> Tokenizing:
    return Tokenizing(
        lambda text: tokenizer(text, add_special_tokens=False)["input_ids"],
        lambda ids: tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False),
    )


WORDS, BYTES = side(words_tokenizer()), side(tiny_tokenizer())


class Reciting(FakeTarget):
    """A model that knows the text, in its own tokens."""

    is_encoder_decoder = False

    def __init__(self, text: Sequence[int], sure: float = 20.0) -> None:
        super().__init__(vocab_size=max(text) + 1)
        self.text, self.sure = list(text), sure

    def logits(self, prefix: Sequence[int]) -> torch.Tensor:
        logits = torch.zeros(self.vocab_size)
        if len(prefix) < len(self.text) and self.text[: len(prefix)] == list(prefix):
            logits[self.text[len(prefix)]] = self.sure
        return logits


@pytest.mark.parametrize(("ours", "theirs"), [(WORDS, BYTES), (BYTES, WORDS), (WORDS, WORDS)])
def test_the_text_that_is_drafted_comes_in_the_targets_tokens(ours: Tokenizing, theirs: Tokenizing) -> None:
    truth, draft = ours.encode(TEXT), Reciting(theirs.encode(TEXT))
    heads = {n: theirs.encode(ours.decode(truth[:n])) for n in range(20, 40)}
    start = next(n for n, head in heads.items() if draft.text[: len(head)] == head)
    prompt, at = truth[:start], start
    row = RowContext(prompt, SamplingOptions(), start, 400)
    predictor = BridgedPredictor(DraftModel(draft), row, ours, theirs, tokens=12)  # type: ignore[arg-type]
    drafted = right = calls = 0
    while at < len(truth) - 12:
        calls += 1
        predictor.run(EMPTY)
        path: tuple[int, ...] = ()
        while probs := predictor.predict(path):
            path = (*path, probs[0][0])
            assert 0 < probs[0][1] <= 1
        same = next((i for i, token in enumerate(path) if truth[at + i : at + i + 1] != [token]), len(path))
        drafted, right = drafted + len(path), right + same
        predictor.accept(truth[at : at + same + 1])
        at += same + 1
    assert right > 0.6 * drafted > 0
    assert (at - start) / calls > 1.5


@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("shape", ["tree", "blend"])
def test_output_equals_plain_decoding(shape: str, temperature: float) -> None:
    model = tiny("llama", vocab_size=330)
    drafts = DraftModel(wrap(tiny("llama", vocab_size=259, seed=4)))
    prompts = [WORDS.encode(TEXT[:40]), WORDS.encode("naï"), [7]]
    requests = [
        Request(prompt, 16, SamplingOptions(temperature, seed=row), frozenset({0}), [Source(prompt, "prompt")])
        for row, prompt in enumerate(prompts)
    ]
    expected = run(model, requests)
    for request in requests:

        def make(request: Request = request) -> BlendDrafter | PredictorDrafter:
            row = RowContext(request.prompt, request.sampling, len(request.prompt), 330)
            predictors = [BridgedPredictor(drafts, row, WORDS, BYTES, confidence=0.0)]
            return (
                BlendDrafter(request.sources, predictors, eos=0) if shape == "blend" else PredictorDrafter(predictors)
            )

        request.drafter = make
    assert run(model, requests) == expected


def run(model: object, requests: Sequence[Request]) -> list[list[int]]:
    return [tokens for tokens, _ in decoded(wrap(model), requests, 8, batch_size=2)]  # type: ignore[arg-type]


def test_tokens_hold_as_the_draft_up_to_their_end_does() -> None:
    row = RowContext(WORDS.encode("the cat"), SamplingOptions(), 3, 400)
    predictor = BridgedPredictor(DraftModel(Reciting(BYTES.encode(TEXT))), row, WORDS, BYTES)  # type: ignore[arg-type]
    drafted = BYTES.encode(" sat on")
    predicted = predictor._in_our_tokens(drafted, [0.5] * len(drafted))
    assert [token for token, _ in predicted] == list(WORDS.encode(" sat on"))
    assert predicted[0][1] == pytest.approx(0.5 ** len(" sat"))
    assert predicted[1][1] == pytest.approx(0.5 ** len(" on"))


def test_the_work_of_a_draft_does_not_grow_with_the_text() -> None:
    counted, count = list[int](), 1_000

    def encode(text: str) -> list[int]:
        counted.append(len(text))
        return [ord(character) for character in text]

    def decode(ids: Sequence[int]) -> str:
        counted.append(len(ids))
        return "".join(map(chr, ids))

    side = Tokenizing(encode, decode)
    row = RowContext([65] * 4, SamplingOptions(), 4, 128)
    predictor = BridgedPredictor(DraftModel(FakeTarget(128)), row, side, side, tokens=1)  # type: ignore[arg-type]
    for _ in range(count):
        predictor.run(EMPTY)
        predictor.accept([66])
    assert predictor._reader._tokens == [65] * 4 + [66] * (count - 1)
    assert sum(counted) < 300 * count


def test_the_time_of_a_draft_includes_its_conversion() -> None:
    def encode(text: str) -> list[int]:
        sleep(0.003)
        return [ord(character) for character in text]

    side = Tokenizing(encode, lambda ids: "".join(map(chr, ids)))
    row = RowContext([65] * 4, SamplingOptions(), 4, 128)
    predictor = BridgedPredictor(DraftModel(FakeTarget(128)), row, side, side, tokens=1)  # type: ignore[arg-type]
    for _ in range(3):
        predictor.run(EMPTY)
        predictor.accept([66])
    assert predictor.seconds > 0.006


def test_half_a_character_and_nothing_are_not_drafted() -> None:
    row = RowContext(WORDS.encode("the na"), SamplingOptions(), 3, 400)
    predictor = BridgedPredictor(DraftModel(Reciting(BYTES.encode(TEXT))), row, WORDS, BYTES)  # type: ignore[arg-type]
    assert predictor._in_our_tokens(BYTES.encode("ï")[:1], [0.9]) == []
    assert predictor._in_our_tokens([0], [0.9]) == []  # an end of sequence has no text


def test_a_draft_model_without_numbers_drafts_nothing() -> None:
    class Overflowing(FakeTarget):
        def logits(self, prefix: Sequence[int]) -> torch.Tensor:
            return torch.full((self.vocab_size,), float("nan"))

    row = RowContext(WORDS.encode("the cat"), SamplingOptions(), 3, 400)
    predictor = BridgedPredictor(DraftModel(Overflowing(259)), row, WORDS, BYTES)  # type: ignore[arg-type]
    assert not predictor.run(EMPTY)
    assert predictor.predict(()) is None


def test_encoder_decoder_draft_models_are_refused() -> None:
    row = RowContext([5], SamplingOptions(), 1, 400)
    with pytest.raises(ValueError, match="must be decoder-only"):
        BridgedPredictor(DraftModel(wrap(tiny("t5"))), row, WORDS, BYTES)
