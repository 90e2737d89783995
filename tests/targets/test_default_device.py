"""A default device (torch.set_default_device) changes nothing: tensors are on the model's device or on the CPU.

The default is "meta" here, whose tensors cannot be read, in place of a GPU.
"""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

import copyspec
from copyspec.options import StaticOptions
from copyspec.targets import wrap
from copyspec.targets.cpu.linears import FastLinears, instructions
from copyspec.targets.static.layout import Shape
from copyspec.targets.static.running import ProgramRunner
from copyspec.tree import DraftTree
from tests.helpers.models import random_ids, tiny
from tests.helpers.texts import byte_level

META = torch.device("meta")
STATIC = StaticOptions(use="always", graphs=False)


def test_fast_layers_are_found() -> None:
    sizes: dict[str, Any] = {"hidden_size": 256, "intermediate_size": 512, "head_dim": 64, "num_key_value_heads": 4}
    model = tiny("llama", **sizes)
    expected = FastLinears(model)
    assert len(expected) > 0 or not instructions()
    with META:
        linears = FastLinears(model)
    assert (len(linears), len(linears._layers), linears.packed_bytes) == (
        len(expected),
        len(expected._layers),
        expected.packed_bytes,
    )
    assert linears.counts == expected.counts


def test_the_input_of_a_static_pass_is_laid_out_on_the_host() -> None:
    runner = ProgramRunner(
        lambda shape: SimpleNamespace(),  # type: ignore[arg-type, return-value]
        torch.device("cpu"),
        STATIC,
        nullcontext,
    )
    shape = Shape.of(8, 8)
    with META:
        assert len(runner.staging(shape)) == sum(shape.parts)


@pytest.mark.parametrize(
    ("name", "dtype", "static", "lengths"),
    [
        ("llama", torch.float32, None, (40, 21)),
        ("llama", torch.bfloat16, None, (40,)),
        ("llama", torch.float32, STATIC, (40, 21)),
        ("bart", torch.float32, None, (40, 21)),
        ("bart", torch.float32, STATIC, (40, 21)),
    ],
)
def test_outputs_are_the_same(
    name: str, dtype: torch.dtype, static: StaticOptions | None, lengths: tuple[int, ...]
) -> None:
    model = tiny(name, vocab_size=len(byte_level())).to(dtype)
    prompts = [random_ids(length, seed=length) for length in lengths]
    options: dict[str, Any] = {"max_new_tokens": 12, "ignore_eos": True}
    sampled: dict[str, Any] = {"temperature": 1.0, "top_p": 0.9, "seed": 3, "repetition_penalty": 1.3}
    plain = copyspec.Engine(model, byte_level(), static=static)
    engine = copyspec.Engine(model, byte_level(), static=static)
    references = [[list(result.token_ids)] for result in plain.generate(prompts, **options)]
    for more in ({}, sampled, {"logprobs": 1, "stopping_criteria": [lambda ids, scores: [False]]}):
        expected = plain.generate(prompts, references, **options, **more)
        with META:
            results = engine.generate(prompts, references, **options, **more)
        assert [result.token_ids for result in results] == [result.token_ids for result in expected]


class Copies(TorchFunctionMode):
    """The copies of tensors to a device, and whether they are waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.waited: list[bool] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.to and "non_blocking" in (kwargs or {}):
            self.waited.append(not kwargs["non_blocking"])
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", ["llama", "bloom", "t5"])
def test_copies_to_devices_other_than_cuda_are_waited_for(name: str) -> None:
    """On MPS, a copy that is still to be made reads memory that is free by then."""
    session = wrap(tiny(name).to(META)).open([[5, 6, 7]])
    tree = DraftTree([8, 9], [-1, -1], [0.5] * 2, [None] * 2)
    with Copies() as copies:
        session.score([[5, 6, 7]], [tree])
        session.keep([[1]])
        session.score([[4]], [DraftTree()])
    assert len(copies.waited) > 3 and all(copies.waited)
    session.close()
