"""Models wrapped by torch.compile and PEFT, and names of dtypes."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import copyspec
from copyspec.models.devices import check_dtype
from copyspec.models.loading import unwrapped
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
    options: dict[str, Any] = {"tokenizer": byte_level(), "max_new_tokens": 8}
    wanted = copyspec.generate("the cat", model=model, **options)
    for wrapped in (
        torch.compile(model, backend="eager"),
        Adapted(model),
        Adapted(torch.compile(model, backend="eager")),
    ):
        assert copyspec.generate("the cat", model=wrapped, **options).token_ids == wanted.token_ids  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="model is a Adapted whose adapter is a prompt of its own"):
        copyspec.generate("the cat", model=Adapted(model, is_prompt=True), **options)  # type: ignore[call-overload]
    copyspec.unload(model)


REFUSED = [
    {"is_prompt_learning": True},
    {"alora_invocation_tokens": [5, 6]},
    {"peft_type": "PeftType.XLORA"},
    {"peft_type": "POLY"},
]
TAKEN = [{"peft_type": "PeftType.LORA"}, {"peft_type": "IA3"}, {"alora_invocation_tokens": None}]


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("adapter", [*REFUSED, *TAKEN], ids=str)
def test_adapters_that_work_outside_of_the_layers_are_refused(adapter: dict[str, Any], inside: bool) -> None:
    """In a model of PEFT, and in one of transformers that has adapters."""
    model: Any = llama(len(byte_level()), seed=7)
    configs = {"a": SimpleNamespace(**adapter), "unused": SimpleNamespace(is_prompt_learning=True)}
    wrapped: Any = SimpleNamespace(get_base_model=lambda: model, peft_config=configs, active_adapters=["a"])
    if inside:
        wrapped = copy.copy(model)
        wrapped.__dict__.update(peft_config=configs, active_adapters=lambda: ["a"])
    if adapter in TAKEN:
        assert unwrapped(wrapped) is (wrapped if inside else model)
        return
    with pytest.raises(TypeError, match=r"whose adapter is .+, which is not supported; adapters inside the layers"):
        unwrapped(wrapped)


@pytest.mark.parametrize(
    ("name", "meant"), [("bf16", "bfloat16"), ("fp16", "float16"), ("torch.float32", "float32"), ("auto", "auto")]
)
def test_short_names_of_dtypes(name: str, meant: str) -> None:
    assert check_dtype(name) == meant
