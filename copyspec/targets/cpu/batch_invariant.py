"""Operators that give each token of a pass the bits that it has alone, in float32 on a CPU.

Most of PyTorch's operators do so: sums and norms over the numbers of a token, exponentials, short convolutions, and
transformers' recurrences of a batch of single tokens. Two kinds do not. Matrix products sum in another order for
several rows than for one. Activations compute the numbers at the end of a tensor, or of one thread's part of it, that
fill no vector by another formula than the others, so that the bits of a number depend on where it stands. These are
replaced while a pass runs. What attends is called token by token (`eager.row_attention`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from copyspec.targets.cpu.linears import product_by_row

VECTORS = 64
"""Numbers: a multiple of what PyTorch's loops take at a time."""

PART = 1 << 15
"""Numbers that PyTorch does not divide between threads."""

Operator = Callable[..., torch.Tensor]


class BatchInvariant(TorchFunctionMode):
    """Replaces operators of this thread, while the context is active, by such whose bits do not depend on how many
    tokens there are."""

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        replace = _REPLACED.get(function)
        return (function if replace is None else replace(function))(*args, **(kwargs or {}))


def _in_whole_vectors(function: Operator) -> Operator:
    def activation(input: torch.Tensor, *args: Any, **named: Any) -> torch.Tensor:
        """That of a tensor of any shape."""
        flat = input.reshape(-1)
        count = len(flat)
        if not count:
            return function(input, *args, **named)
        if count % VECTORS:
            flat = functional.pad(flat, (0, -count % VECTORS))
        parts = [function(flat[start : start + PART], *args, **named) for start in range(0, count, PART)]
        output = (parts[0] if len(parts) == 1 else torch.cat(parts))[:count].view(input.shape)
        return input.copy_(output) if parts[0].data_ptr() == flat.data_ptr() else output  # the first: in place

    return activation


def _one_by_one(function: Operator) -> Operator:
    def product(input: torch.Tensor, other: torch.Tensor, **named: Any) -> torch.Tensor:
        """That of batches of matrices. Each is copied: sums depend on where it starts in memory, too."""
        is_batch = max(input.dim(), other.dim()) > 2 and min(input.dim(), other.dim()) > 1
        if named or not is_batch or not (input.numel() and other.numel()):
            return function(input, other, **named)
        batch = np.broadcast_shapes(input.shape[:-2], other.shape[:-2])
        lefts, rights = (factor.expand(*batch, *factor.shape[-2:]) for factor in (input, other))
        parts = [function(lefts[index].clone(), rights[index].clone()) for index in np.ndindex(batch)]
        return torch.stack(parts).view(*batch, *parts[0].shape)

    return product


def _by_expert(function: Operator) -> Operator:
    def product(
        input: torch.Tensor, weight: torch.Tensor, offs: torch.Tensor | None = None, **named: Any
    ) -> torch.Tensor:
        """That of rows, [S, K], which are ordered by their experts, whose matrices are [E, K, N]. `offs`: where the
        rows of each end; none are of those behind."""
        if offs is None or weight.dim() != 3 or any(value is not None for value in named.values()):
            return function(input, weight, offs=offs, **named)
        ends = offs.tolist()
        output = input.new_zeros((len(input), weight.shape[2]))
        for of_expert, start, end in zip(weight, [0, *ends], ends, strict=False):
            if start < end:
                output[start:end] = product_by_row(input[start:end], of_expert.T)
        return output

    return product


_ACTIVATIONS = (
    functional.silu, functional.sigmoid, torch.sigmoid, torch.Tensor.sigmoid, functional.softplus, functional.gelu,
    functional.mish, functional.logsigmoid, functional.elu,
)  # fmt: skip
_PRODUCTS = (torch.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__)
_OF_EXPERTS = (getattr(functional, "grouped_mm", None), getattr(torch, "_grouped_mm", None))
_REPLACED: Mapping[Any, Callable[[Operator], Operator]] = {
    functional.linear: lambda _: product_by_row,
    **dict.fromkeys(_ACTIVATIONS, _in_whole_vectors),
    **dict.fromkeys(_PRODUCTS, _one_by_one),
    **dict.fromkeys(filter(None, _OF_EXPERTS), _by_expert),
}
