"""The encoder-decoder: its forward pass equals T5's, its examples are well-formed, and runs are exported."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from transformers import T5Config, T5ForConditionalGeneration
from transformers.models.t5.modeling_t5 import T5Attention

from training.correction import reading_tokenizer
from training.data import encode as encode_rows
from training.data import load_prose
from training.examples import CORRECT, OTHER_CORRECT, Example
from training.families import FAMILIES, read_family
from training.model import Weights
from training.plans import PRESETS
from training.seq2seq import (
    START,
    Seq2SeqShape,
    decode,
    distance_buckets,
    encode,
    from_t5,
    halves,
    init_weights,
    loss_of,
    tables,
    to_t5,
)
from training.tokenizer import train_tokenizer

_SHAPE = Seq2SeqShape(
    vocab=96, width=24, encoder_layers=3, decoder_layers=2, heads=2, head=8, inner=20, buckets=8, distance=16,
    context=48,
)  # fmt: skip


def made_weights() -> Weights:
    generator = torch.Generator().manual_seed(0)
    weights = init_weights(_SHAPE, generator)
    # trained ones are never zero or one throughout
    return {name: value + 0.1 * torch.randn(value.shape, generator=generator) for name, value in weights.items()}


def t5_of(shape: Seq2SeqShape, weights: Weights) -> T5ForConditionalGeneration:
    model = T5ForConditionalGeneration(
        T5Config(
            vocab_size=shape.vocab, d_model=shape.width, d_kv=shape.head, d_ff=shape.inner,
            num_layers=shape.encoder_layers, num_decoder_layers=shape.decoder_layers, num_heads=shape.heads,
            relative_attention_num_buckets=shape.buckets, relative_attention_max_distance=shape.distance,
            feed_forward_proj="gated-gelu", pad_token_id=START, eos_token_id=1, decoder_start_token_id=START,
        )
    )  # fmt: skip
    missing, unexpected = model.load_state_dict(to_t5(weights, shape), strict=False)
    assert not unexpected and {name.split(".")[-2] for name in missing} <= {"embed_tokens", "lm_head"}
    model.tie_weights()
    return model.eval()


def made_batch() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(5, _SHAPE.vocab, (3, 40), generator=generator)
    starts, ends = torch.tensor([[20], [7], [15]]), torch.tensor([[40], [33], [17]])
    places = torch.arange(40)
    return ids.masked_fill(places >= ends, 0), (places >= starts) & (places < ends)


def test_training_forward_is_that_of_t5() -> None:
    weights = made_weights()
    ids, answer = made_batch()
    sources, pads, answers, ends = halves(ids, answer)
    inputs = torch.nn.functional.pad(answers[:, :-1], (1, 0), value=START)
    buckets = tables(_SHAPE, "cpu", torch.float32)
    states = encode(weights, sources, pads, _SHAPE, buckets[0])
    ours = decode(weights, inputs, states, pads, _SHAPE, buckets[1]) @ weights["embed"].T
    model = t5_of(_SHAPE, weights)
    theirs = model(input_ids=sources, attention_mask=(~pads).long(), decoder_input_ids=inputs).logits
    torch.testing.assert_close(ours[~ends], theirs[~ends], atol=2e-4, rtol=1e-4)
    expected = torch.nn.functional.cross_entropy(theirs[~ends], answers[~ends], reduction="sum")
    torch.testing.assert_close(loss_of(weights, ids, answer, _SHAPE, buckets), expected, atol=1e-2, rtol=1e-4)


def test_every_weight_is_trained() -> None:
    weights = {name: value.requires_grad_() for name, value in made_weights().items()}
    torch.autograd.backward(loss_of(weights, *made_batch(), _SHAPE, tables(_SHAPE, "cpu", torch.float32)))
    assert all(value.grad is not None and value.grad.abs().sum() > 0 for value in weights.values())


def test_export_names_go_there_and_back() -> None:
    weights = made_weights()
    again = from_t5(t5_of(_SHAPE, weights).state_dict(), _SHAPE)
    assert list(again) == list(weights)
    for name, value in weights.items():
        torch.testing.assert_close(again[name], value)


@pytest.mark.parametrize("both_ways", [True, False])
def test_buckets_against_transformers(both_ways: bool) -> None:
    shape = Seq2SeqShape()
    places = torch.arange(400)
    expected = T5Attention._relative_position_bucket(
        places[None] - places[:, None], both_ways, shape.buckets, shape.distance
    )
    assert torch.equal(distance_buckets(shape, 400, both_ways=both_ways), expected)


def test_halves_of_rows() -> None:
    ids = torch.tensor([[5, 6, 7, 8, 9, 1], [5, 1, 8, 1, 0, 0]])
    answer = torch.tensor([[0, 0, 0, 0, 1, 1], [0, 0, 1, 1, 0, 0]], dtype=torch.bool)
    sources, pads, answers, ends = halves(ids, answer)
    assert [row[~gone].tolist() for row, gone in zip(sources, pads, strict=True)] == [[5, 6, 7, 8], [5, 1]]
    assert [row[~gone].tolist() for row, gone in zip(answers, ends, strict=True)] == [[9, 1], [8, 1]]


def test_examples_are_sources_with_their_corrections(prose: Path) -> None:
    family, mixture = FAMILIES["t5"], PRESETS["seq2seq"].mixture
    maker, _ = load_prose(prose, mixture, family.maker)
    instructed = 0
    for seed in range(300):
        example = maker.draw(random.Random(seed), opening=seed % 2 == 0)
        assert example == maker.draw(random.Random(seed), opening=seed % 2 == 0)
        assert example.answer and not example.answer[0].isspace()
        assert not example.prompt.startswith("Quote")
        instruction = next((i for i in (CORRECT, *OTHER_CORRECT) if example.prompt.startswith(i)), "")
        instructed += bool(instruction)
        if not example.kinds and instruction.endswith(" "):
            assert example.prompt[len(instruction) :].split() == example.answer.split()
    assert 100 < instructed < 200


def test_source_and_copy_have_the_same_tokens(paragraphs: list[str]) -> None:
    tokenizer, text = reading_tokenizer(train_tokenizer(paragraphs, 320)), paragraphs[0]
    ((ids, start),) = encode_rows(tokenizer, [Example(text, text)])
    assert ids[:start] == ids[start:] and ids[-1] == 1
    assert tokenizer.decode(ids[start:]) == text


def test_an_unknown_family_is_named() -> None:
    with pytest.raises(ValueError, match="'mamba'"):
        read_family({"family": "mamba"})
