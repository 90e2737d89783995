"""Contrastive decoding against the plain loop of the papers: with and without drafts, greedy and sampled at a seed."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch
from transformers import PreTrainedModel

from copyspec.drafters.predictors.early_exit import early_exit
from copyspec.engine.engine import Engine
from copyspec.verification.noise import gumbel
from tests.helpers.texts import byte_level, llama

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
    return Engine(llama(len(byte_level())), byte_level())


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize(("beta", "alpha"), [(0.5, 0.1), (2.0, 0.02)])
def test_against_plain_contrastive_decoding(engine: Engine, temperature: float, beta: float, alpha: float) -> None:
    prompts = [TEXT, "He goes to school every day because"]
    amateur = early_exit(engine.model, 1)
    options = {
        "max_new_tokens": 24, "temperature": temperature, "seed": 5, "ignore_eos": True, "contrast": "layers:1",
        "contrast_strength": beta, "contrast_cutoff": alpha,
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
    assert [list(each.token_ids) for each in engine.generate(prompts, **options | {"contrast": None})] != expected
    assert drafted > 0


def test_no_strength_is_the_model_alone(engine: Engine) -> None:
    plain = engine.generate(TEXT, max_new_tokens=16)
    assert (
        engine.generate(TEXT, max_new_tokens=16, contrast="layers:1", contrast_strength=0).token_ids == plain.token_ids
    )


def test_wrong_options_are_told(engine: Engine) -> None:
    for wrong, message in (
        ({"contrast": "pool"}, "is not a model"),
        ({"contrast": "layers:1", "contrast_strength": -1}, "contrast_strength must be a number at least 0"),
        ({"contrast": "layers:1", "contrast_cutoff": 0}, "contrast_cutoff must be a number above 0"),
        ({"contrast": llama(len(byte_level()) + 8)}, "has another vocabulary"),
    ):
        with pytest.raises(ValueError, match=message):
            engine.generate(TEXT, max_new_tokens=2, **wrong)
    with pytest.raises(TypeError, match="contrast must be"):
        engine.generate(TEXT, max_new_tokens=2, contrast=7)
