"""Models wrapped by torch.compile and PEFT, and names of dtypes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

import copyspec
from copyspec.models.devices import check_dtype
from tests.helpers.texts import byte_level, llama


class Adapted:
    """The interface of PEFT's models."""

    def __init__(self, base: object, *, is_prompt: bool = False) -> None:
        self._base = base
        self.active_peft_config = SimpleNamespace(is_prompt_learning=is_prompt)

    def get_base_model(self) -> object:
        return self._base


def test_wrapped_models_are_taken_as_the_model_inside() -> None:
    model = llama(len(byte_level()), seed=7)
    given: dict[str, Any] = {"tokenizer": byte_level(), "max_new_tokens": 8}
    wanted = copyspec.generate("the cat", model=model, **given)
    for wrapped in (
        torch.compile(model, backend="eager"),
        Adapted(model),
        Adapted(torch.compile(model, backend="eager")),
    ):
        assert copyspec.generate("the cat", model=wrapped, **given).token_ids == wanted.token_ids  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="model is a Adapted whose adapter is a prompt of its own"):
        copyspec.generate("the cat", model=Adapted(model, is_prompt=True), **given)  # type: ignore[call-overload]
    copyspec.unload(model)


@pytest.mark.parametrize(
    ("name", "meant"), [("bf16", "bfloat16"), ("fp16", "float16"), ("torch.float32", "float32"), ("auto", "auto")]
)
def test_short_names_of_dtypes(name: str, meant: str) -> None:
    assert check_dtype(name) == meant
