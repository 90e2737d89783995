"""The context length: one number of the engine, used to refuse prompts and to split texts."""

from __future__ import annotations

from typing import Any

import pytest

import copyspec
from copyspec.engine.asking.inputs import PromptTooLongError
from copyspec.pipelines import ModelOptions
from copyspec.pipelines.editing.model_corrector import ModelCorrector
from tests.helpers import models
from tests.helpers.texts import byte_level

BORDER = 64
LONGROPE = {"max_position_embeddings": 256, "rope_parameters": models.LONGROPE | {models.BORDER_NAME: BORDER}}
CASES: dict[str, tuple[str, dict[str, Any], int | None]] = {
    "longrope": ("llama", LONGROPE, BORDER),
    "mpt": ("mpt", {"max_seq_len": BORDER}, BORDER),
    "bart": ("bart", {"max_position_embeddings": BORDER}, BORDER),
    "t5": ("t5", {"n_positions": BORDER}, None),  # relative positions have no limit
}


@pytest.mark.parametrize("case", CASES)
def test_one_length_refuses_prompts_and_splits_texts(case: str) -> None:
    name, overrides, length = CASES[case]
    tokenizer = byte_level(template=None)
    engine = copyspec.Engine(models.tiny(name, vocab_size=len(tokenizer), **overrides), tokenizer)
    assert engine.max_length == length
    assert engine.split_length == BORDER
    corrector = ModelCorrector(engine, ModelOptions(instruction="{text}"))
    assert corrector.limit is not None and 0 < corrector.limit < BORDER
    assert engine.generate([5] * (BORDER - 1), max_new_tokens=1).token_ids
    if length is None:
        assert engine.generate([5] * (BORDER + 9), max_new_tokens=1).token_ids
    else:
        with pytest.raises(PromptTooLongError, match=f"the model's context is {BORDER}"):
            engine.generate([5] * (BORDER + 1), max_new_tokens=1)
