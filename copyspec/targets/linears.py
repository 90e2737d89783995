"""Linear layers of a model on a CPU, for passes of few tokens: the same products in the time of reading the weights.

PyTorch's general products of a few rows take up to three times as long as their weights take to be read. Where the
compiled module (`native/linear.c`) can do better, the layers of a model use it for the length of a pass of ours: the
weights are read where they lie, so no memory is taken, and behind the pass the model is as it was. In float32 sums
round differently, as between any two numbers of rows; in bfloat16 it is used where it gives PyTorch's own bits, which
is tried for each shape of weights.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn.functional import linear

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Numbers = NDArray[np.float32] | NDArray[np.uint16]

try:
    import copyspec.targets._linear as _linear
except ImportError:  # the source is native/linear.c
    _linear = None  # type: ignore[assignment]

logger = logging.getLogger(__name__)

VERSION = 3
"""Of the module that fits: one compiled from an older source is left alone."""

ROWS = {torch.float32: range(2, 129), torch.bfloat16: range(1, 65)}
"""Tokens of a pass, of all rows: beyond, general products are as fast, and so is that of one token in float32."""

SLOW_BFLOAT16 = frozenset({"avx2"})
"""Instructions without products of bfloat16, where PyTorch's take four times as long for any number of tokens."""

LEAST_WEIGHTS = 1 << 16
"""Of a layer: smaller ones stay in the processor's cache, and take no time worth saving."""

TRIED = 60_000
"""Numbers that are compared for each shape: another order of sums shows in one of thirty thousand in bfloat16."""

_PANEL, _WHOLE = 32, {torch.float32: 16, torch.bfloat16: 32}  # outputs and inputs come in multiples of these
_FORMATS = {torch.float32: "f", torch.bfloat16: "H"}
_TOLERANCE = 1e-4  # of the trial in float32, beside the largest output

Forward = Callable[[torch.Tensor], torch.Tensor]


def is_compiled(dtype: torch.dtype) -> bool:
    """Whether the module was compiled, and this processor has its instructions."""
    return bool(instructions(dtype))


def is_there() -> bool:
    """Whether the module was compiled, whatever this processor has."""
    return _linear is not None and _linear.VERSION == VERSION


def instructions(dtype: torch.dtype) -> str:
    """The processor's instructions that the module uses: "avx512", "avx2", or "" where it can use none."""
    return _linear.instructions(_FORMATS[dtype]) if is_there() and dtype in _FORMATS else ""


def multiplied(dtype: torch.dtype) -> range:
    """The numbers of tokens of a pass for which the module is faster than PyTorch."""
    if dtype == torch.bfloat16 and instructions(dtype) in SLOW_BFLOAT16:
        return range(1, sys.maxsize)
    return ROWS.get(dtype, range(0))


class FastLinears:
    """The linear layers of a model that the module multiplies; none where it cannot."""

    def __init__(self, model: nn.Module) -> None:
        self._forwards: list[tuple[dict[str, object], Forward]] = []  # by the module's own dictionary
        self.counts = range(0)
        """Tokens of a product that some layer would leave to the module."""
        if "forward" in vars(model) or getattr(model, "_compiled_call_impl", None) is not None:
            return  # compiled by torch, which would do so again
        tried: dict[object, bool] = {}
        for module in model.modules():
            if type(module) is nn.Linear and "forward" not in vars(module) and _fits(module):
                kind = (module.weight.dtype, module.weight.shape, module.bias is None)
                if kind not in tried:
                    tried[kind] = _is_right(module)
                if tried[kind]:
                    self._forwards.append((vars(module), _forward(module)))
                    of_layer = multiplied(module.weight.dtype)
                    self.counts = range(
                        min(self.counts.start or sys.maxsize, of_layer.start), max(self.counts.stop, of_layer.stop)
                    )

    def __len__(self) -> int:
        return len(self._forwards)

    @contextmanager
    def used(self) -> Iterator[None]:
        """For its length the layers use the module. For the holder of the model's lock; others who pass something
        through the model meanwhile get the same products."""
        for names, forward in self._forwards:
            names["forward"] = forward
        try:
            yield
        finally:
            for names, _ in self._forwards:
                names.pop("forward", None)


def few_row_product(weight: torch.Tensor) -> Forward:
    """What multiplies a few rows, [..., D], with `weight`, [V, D], which stays where it is: by the module where that is
    faster and right, else by PyTorch. For weights that belong to no layer of a model."""
    module = nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
    module.weight = nn.Parameter(weight, requires_grad=False)
    return _forward(module) if _fits(module) and _is_right(module) else module.forward


def _fits(module: nn.Linear) -> bool:
    weight = module.weight
    if weight.device.type != "cpu" or weight.layout != torch.strided or weight.numel() < LEAST_WEIGHTS:
        return False
    if not weight.is_contiguous() or not is_compiled(weight.dtype):
        return False
    bias_fits = module.bias is None or (module.bias.dtype == weight.dtype and module.bias.is_contiguous())
    return bias_fits and weight.shape[0] % _PANEL == 0 and weight.shape[1] % _WHOLE[weight.dtype] == 0


@torch.inference_mode()
def _is_right(module: nn.Linear) -> bool:
    """Whether the module gives for many tokens what PyTorch gives for each of them alone: its bits in bfloat16, but
    for sums that round differently in float32."""
    forward, weight = _forward(module), module.weight
    tokens = min(1 + TRIED // weight.shape[0], max(ROWS[weight.dtype]))
    given = torch.randn((tokens, weight.shape[1]), generator=torch.Generator().manual_seed(0)).to(weight.dtype)
    theirs = torch.cat([linear(given[at : at + 1], weight, module.bias) for at in range(tokens)])
    ours = forward(given)
    if weight.dtype == torch.bfloat16:
        right = torch.equal(theirs, ours)
    else:
        right = float((theirs - ours).abs().max()) <= _TOLERANCE * float(theirs.abs().max())
    if not right:
        logger.info("weights of shape %s are multiplied by torch: its results are others", tuple(weight.shape))
    return right


def _forward(module: nn.Linear) -> Forward:
    """What takes the place of the layer's `forward`."""
    held = _Held()

    def forward(input: torch.Tensor) -> torch.Tensor:
        weight, bias = module.weight, module.bias
        size = weight.shape[1]
        rows = input.numel() // size
        if (
            rows not in multiplied(input.dtype)
            or input.dtype is not weight.dtype
            or torch.is_grad_enabled()
            or type(input) is not torch.Tensor
            or input.device.type != "cpu"
            or input.shape[-1] != size
        ):
            return linear(input, weight, bias)
        arrays = held.arrays(weight, bias)
        if arrays is None:
            return linear(input, weight, bias)
        output = torch.empty((*input.shape[:-1], weight.shape[0]), dtype=input.dtype)
        given, found = _numbers(input.reshape(rows, size)), _numbers(output.view(rows, -1))
        for at in range(0, rows, _linear.MOST_ROWS):
            piece = slice(at, at + _linear.MOST_ROWS)
            _linear.linear(found[piece], given[piece], *arrays, torch.get_num_threads())
        return output

    return forward


class _Held:
    """The weights of a layer as arrays, as long as they are the same memory."""

    def __init__(self) -> None:
        self._at = (0, 0)
        self._arrays: tuple[Numbers, Numbers | None] | None = None

    def arrays(self, weight: torch.Tensor, bias: torch.Tensor | None) -> tuple[Numbers, Numbers | None] | None:
        """None where the module cannot read them any more: they were moved, say."""
        at = (weight.data_ptr(), 0 if bias is None else bias.data_ptr())
        if at != self._at or self._arrays is None:
            fits = (
                weight.device.type == "cpu" and weight.is_contiguous() and (bias is None or bias.dtype == weight.dtype)
            )
            self._arrays = (_numbers(weight), None if bias is None else _numbers(bias)) if fits else None
            self._at = at
        return self._arrays


def _numbers(tensor: torch.Tensor) -> Numbers:
    """The same memory as an array; bfloat16 as its bits, which NumPy has no type for."""
    tensor = tensor.detach()
    array: Numbers = (tensor.view(torch.uint16) if tensor.dtype == torch.bfloat16 else tensor).contiguous().numpy()
    return array
