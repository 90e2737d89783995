"""The real model's answers, which drafts do not change."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import copyspec
from copyspec import Engine
from copyspec.pipelines import answers_plain_text
from tests.helpers.smollm2 import needs_smollm2

pytestmark = needs_smollm2

TEXTS = Path(__file__).parent.parent.parent / "examples" / "texts"


@pytest.fixture(scope="module")
def model() -> Engine:
    return copyspec.load("smollm2", dtype="float32")


def test_hello_gets_an_answer(model: Engine) -> None:
    assert answers_plain_text(model)
    assert "hello" in model.generate("Hello", max_new_tokens=12).text.lower()
    asked = model.generate("What is the capital of France?", max_new_tokens=12)
    assert asked.text == "The capital of France is Paris."


def test_outputs_are_those_of_generate(model: Engine) -> None:
    passages = (TEXTS / "passages.txt").read_text(encoding="utf-8").splitlines()
    prompts = [f"Correct the grammar: {passages[1][:120]}", f"Summarise this in one sentence: {passages[3]}"]
    limit = 16
    theirs = []
    for prompt in prompts:
        ids = torch.tensor([model.codec.encode(prompt, wrap=True).ids])
        made = model.model.generate(ids, max_new_tokens=limit, do_sample=False)  # type: ignore[operator]
        theirs.append(tuple(made[0, ids.shape[1] :].tolist()))
    for options in ({"drafter": "none"}, {}, {"batch_size": 1}):
        results = model.generate(prompts, passages, max_new_tokens=limit, **options)  # type: ignore[call-overload]
        assert [result.token_ids for result in results] == theirs
    sampled = [
        model.generate(prompts[1], passages, max_new_tokens=limit, temperature=0.8, seed=3, drafter=drafter).token_ids
        for drafter in ("none", "auto")
    ]
    assert sampled[0] == sampled[1]
