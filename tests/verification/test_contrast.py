"""Contrastive decoding against the plain loop of the papers: with and without drafts, greedy and sampled at a seed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from copyspec.drafters.predictors.early_exit import early_exit
from copyspec.engine.engine import Engine
from copyspec.literature import Contrast
from copyspec.verification.noise import gumbel
from tests.helpers.models import tiny
from tests.helpers.texts import bart, byte_level, llama, new_engine

TEXT = "The cat sat on the mat, and the dog sat on"


@torch.inference_mode()
def reference(
    expert: PreTrainedModel, amateur: PreTrainedModel, prompt: Sequence[int], count: int, beta: float, alpha: float,
    temperature: float, seed: int,
) -> list[int]:  # fmt: skip
    """Decode token by token without caches: Yuan et al. 2024, section 3, with the noise of copyspec's own sampling."""
    ids = list(prompt)
    for _ in range(count):
        strong, weak = (model(torch.tensor([ids])).logits[0, -1] for model in (expert, amateur))
        valid = strong.softmax(-1) >= alpha * strong.softmax(-1).max()
        scores = ((1 + beta) * strong - beta * weak).masked_fill(~valid, -math.inf)
        if temperature:
            scores = scores / temperature + gumbel(seed, 0, [len(ids)], len(scores), scores.device)[0]
        ids.append(int(scores.argmax()))
    return ids[len(prompt) :]


@pytest.fixture(scope="module")
def engine() -> Engine:
    return new_engine()


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize(("beta", "alpha"), [(0.5, 0.1), (2.0, 0.02)])
def test_against_plain_contrastive_decoding(engine: Engine, temperature: float, beta: float, alpha: float) -> None:
    prompts = [TEXT, "He goes to school every day because"]
    amateur = early_exit(engine.model, 1)
    options = {
        "max_new_tokens": 24, "temperature": temperature, "seed": 5, "ignore_eos": True,
        "rule": Contrast("layers:1", beta, alpha),
    }  # fmt: skip
    expected = [
        reference(engine.model, amateur, engine.codec.encode(text).ids, 24, beta, alpha, temperature, 5)
        for text in prompts
    ]
    drafted, written = 0, [TEXT, *(engine.codec.decode(tokens) for tokens in expected)]
    for drafter in ("none", "copy", "auto", "model"):
        results = engine.generate(prompts, references=written, drafter=drafter, **options)
        assert [list(result.token_ids) for result in results] == expected, drafter
        drafted += sum(result.stats.num_draft_tokens for result in results)
    assert [list(result.token_ids) for result in engine.generate(prompts, **options | {"rule": None})] != expected
    assert drafted > 0


def test_no_strength_is_the_model_alone(engine: Engine) -> None:
    plain = engine.generate(TEXT, max_new_tokens=16)
    assert engine.generate(TEXT, max_new_tokens=16, rule=Contrast("layers:1", strength=0)).token_ids == plain.token_ids


def test_what_the_weaker_model_forbids_counts_as_its_least_likely_token() -> None:
    expert, amateur = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([0.0, -torch.inf, 1.0])
    for strength in (0.0, 0.5):
        scores = Contrast("", strength=strength)(expert, amateur)
        assert torch.equal(scores, Contrast("", strength=strength)(expert, torch.tensor([0.0, 0.0, 1.0])))


@pytest.mark.parametrize(
    "options", [{"choices": ["sun", "rain"]}, {"generation_config": {"no_repeat_ngram_size": 1}, "ignore_eos": True}]
)
def test_excluded_tokens_follow_in_the_models_order_where_others_are_forbidden(
    engine: Engine, options: dict[str, Any]
) -> None:
    """A cutoff of 1 leaves the model's best token alone."""
    plain = engine.generate(TEXT, max_new_tokens=12, **options)
    for drafter in ("none", "auto"):
        result = engine.generate(
            TEXT, max_new_tokens=12, drafter=drafter, rule=Contrast("layers:1", cutoff=1.0), **options
        )
        assert result.token_ids == plain.token_ids and result.text == plain.text, drafter


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_excluded_tokens_have_no_probability(dtype: torch.dtype) -> None:
    strong, weak = (20 * torch.randn(2, 4, 50, generator=torch.Generator().manual_seed(0))).to(dtype)
    scores = Contrast("", strength=2.0, cutoff=0.3)(strong, weak)
    is_excluded = strong.float() < strong.float().amax(-1, keepdim=True) + math.log(0.3)
    for temperature in (1e-6, 1.0, 1e6):
        assert bool((((scores / temperature).softmax(-1) == 0.0) | ~is_excluded).all()), temperature
    for row, own, excluded in zip(strong.float(), scores, is_excluded, strict=True):
        order = own[excluded].argsort(stable=True, descending=True)
        assert order.tolist() == row[excluded].argsort(stable=True, descending=True).tolist()


def test_excluded_tokens_are_not_among_the_most_probable(engine: Engine) -> None:
    result = engine.generate(TEXT, max_new_tokens=3, rule=Contrast("layers:1", cutoff=1.0), logprobs=3)
    assert [(logprob.logprob, len(logprob.top)) for logprob in result.logprobs] == [(0.0, 1)] * len(result.token_ids)


def test_a_prompt_beyond_the_weaker_encoder_is_told_to_its_call_alone() -> None:
    size = len(byte_level())
    engine, short = Engine(bart(size), byte_level()), tiny("bart", vocab_size=size, max_position_embeddings=16)
    options = {"rule": Contrast(short), "max_new_tokens": 4}
    expected = engine.generate([5] * 16, **options)
    fits, long = (engine.submit([5] * length, **options) for length in (16, 40))
    with pytest.raises(ValueError, match=r"40 tokens does not fit into the model of rule=, which reads 16"):
        long.results()
    assert fits.results()[0].token_ids == expected.token_ids


def test_a_prompt_beyond_the_weaker_model_names_its_limit(engine: Engine) -> None:
    short = tiny("llama", vocab_size=len(byte_level()), max_position_embeddings=16)
    with pytest.raises(ValueError, match=r"40 tokens does not fit into the model of rule=, which reads 16"):
        engine.generate([5] * 40, rule=Contrast(short), max_new_tokens=4)


def test_vocabularies_are_compared_once(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, other = (new_engine(seed) for seed in (0, 1))
    compared, get_vocab = list[object](), PreTrainedTokenizerFast.get_vocab
    monkeypatch.setattr(PreTrainedTokenizerFast, "get_vocab", lambda self: (compared.append(self), get_vocab(self))[1])
    for _ in range(2):
        engine.generate([TEXT] * 5, max_new_tokens=2, drafter="model", rule=Contrast(other))
        assert len(compared) == 2


def test_wrong_options_are_told(engine: Engine) -> None:
    for strength, cutoff, message in ((-1, 0.1, "strength must be a number"), (1, 0, "cutoff must be a number")):
        with pytest.raises(ValueError, match=message):
            Contrast("layers:1", strength, cutoff)
    for wrong, message in (("heads:x", "is none; give"), (llama(len(byte_level()) + 8), "another vocabulary")):
        with pytest.raises(ValueError, match=message):
            engine.generate(TEXT, max_new_tokens=2, rule=Contrast(wrong))
    with pytest.raises(TypeError, match="the model of rule must be"):
        engine.generate(TEXT, max_new_tokens=2, rule=Contrast(7))
