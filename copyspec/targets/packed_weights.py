"""Copies of weights in the order in which the compiled module multiplies them, in bfloat16.

A copy is read from beginning to end, and its products are sums of whole registers, so nothing is transposed in a pass.
Most models are published in bfloat16. Loaded in float32, half of each number is zeros: their copy takes half the time
to read, and is multiplied as the same float32 numbers. The model keeps its own weights; where they are mapped from a
file, they take memory only while a pass reads them (`pages.py`).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING
from weakref import ref

import numpy as np
import torch

from copyspec.control_groups import control_groups
from copyspec.targets.compiled import _linear
from copyspec.targets.hooks.weights import state_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Numbers = NDArray[np.float32] | NDArray[np.uint16]

SHARE = 4
"""The copies take at most one part in so many of the memory that is available when they are made."""

_OUTPUTS, _INPUTS = 32, 32  # outputs and inputs must be multiples of these


def memory_for_packing(root: Path = Path("/")) -> int:
    """Bytes that the copies of a model's weights may take, of what the machine and its container have available."""
    try:
        lines = (root / "proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    found = next((line.split()[1] for line in lines if line.startswith("MemAvailable:")), "0")
    limits = (limit for group in control_groups("memory", root) for limit in _available(group))
    return max(0, min([int(found) * 1024, *limits])) // SHARE


def _available(group: Path) -> list[int]:
    """Bytes that a control group (version 1 or 2) may still take; [] without a limit."""
    names = ("max", "current") if (group / "memory.max").exists() else ("limit_in_bytes", "usage_in_bytes")
    try:
        limit, used = (int((group / f"memory.{name}").read_text()) for name in names)
        lines = (group / "memory.stat").read_text().splitlines()
    except (OSError, ValueError):  # no such group, or "max" (no limit)
        return []
    # Cached files count as used, of models too, and make way, as in MemAvailable.
    counts = {name: int(count) for name, _, count in (line.partition(" ") for line in lines) if count.isdigit()}
    cached = sum(counts.get(f"total_{name}", counts.get(name, 0)) for name in ("active_file", "inactive_file"))
    return [limit - max(0, used - cached)]


class PackedWeights:
    """A packed copy of a weight, [outputs, inputs]."""

    def __init__(self, weight: torch.Tensor, units: NDArray[np.uint32]) -> None:
        self.units = units
        """Pairs of adjacent inputs, [outputs, inputs / 2] in number; in the order [outputs / 32, inputs / 2, 32], with
        inputs in that of the kernel's sums."""
        self._weight, self._state = ref(weight), state_of(weight)

    @classmethod
    def of(cls, weight: torch.Tensor, format: str, memory: int) -> PackedWeights | None:
        """Pack a weight that the module can multiply, float32 ("f") or bfloat16 ("H"). None where that is not faster,
        takes more than `memory` bytes, or would lose bits."""
        outputs, inputs = weight.shape
        if format == "" or not _linear.packs(format) or 2 * weight.numel() > memory:
            return None
        if outputs % _OUTPUTS or inputs % _INPUTS or weight.is_inference():  # the latter do not count their changes
            return None
        units = np.empty((outputs, inputs // 2), np.uint32)
        return cls(weight, units) if _linear.pack(units, numbers(weight)) else None

    def is_of(self, weight: torch.Tensor) -> bool:
        """Whether this is a copy of `weight`, as far as PyTorch counts its changes."""
        return self._weight() is weight and self._state == state_of(weight)


def numbers(tensor: torch.Tensor) -> Numbers:
    """View a tensor as an array that shares its memory; bfloat16 as raw bits, since NumPy has no such type."""
    tensor = tensor.detach() if tensor.requires_grad else tensor
    array: Numbers = (tensor.view(torch.uint16) if tensor.dtype == torch.bfloat16 else tensor).contiguous().numpy()
    return array
