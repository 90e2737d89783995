"""Float32 weights that were stored as bfloat16, in half the memory.

Most models are published in bfloat16. Loaded in float32, half of each number is zeros, and a pass over few tokens takes
the time of reading them all. The compiled module reads a packed copy instead, two weights in 32 bits, and multiplies
by the same float32 numbers: results have the same bits. The model keeps its own weights.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import ref

import numpy as np
import torch

if TYPE_CHECKING:
    from numpy.typing import NDArray

try:
    import copyspec.targets._linear as _linear
except ImportError:  # the source is native/linear.c
    _linear = None  # type: ignore[assignment]

SHARE = 4
"""Packed copies take at most one part in so many of the memory that is available when they are made."""

_UNIT = 32  # inputs must be a multiple of it


def memory_for_packing() -> int:
    """Bytes that packed copies of a model's weights may take."""
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:
            found = next((line.split()[1] for line in lines if line.startswith("MemAvailable:")), "0")
    except OSError:
        return 0
    return int(found) * 1024 // SHARE


class PackedWeights:
    """A packed copy of a weight, [outputs, inputs]."""

    def __init__(self, weight: torch.Tensor, numbers: NDArray[np.uint32]) -> None:
        self.numbers = numbers
        """[outputs, inputs / 2]."""
        self._weight, self._state = ref(weight), _state(weight)

    @classmethod
    def of(cls, weight: torch.Tensor, memory: int) -> PackedWeights | None:
        """Pack a weight that the module can multiply; None if that takes more than `memory` bytes, or not all of its
        numbers are bfloat16."""
        outputs, inputs = weight.shape
        if weight.dtype != torch.float32 or inputs % _UNIT or 2 * weight.numel() > memory:
            return None
        if weight.is_inference():
            return None  # it has no version that tells of changes
        numbers = np.empty((outputs, inputs // 2), np.uint32)
        return cls(weight, numbers) if _linear.pack(numbers, weight.detach().numpy()) else None

    def is_of(self, weight: torch.Tensor) -> bool:
        """Whether this is a copy of `weight`, as far as PyTorch counts its changes."""
        return self._weight() is weight and self._state == _state(weight)

    def is_current(self) -> bool:
        """Compare some of the numbers, because changes through `.data` are not counted: 1 ms for 100 M of them."""
        weight = self._weight()
        return weight is None or not self.is_of(weight) or _linear.holds(self.numbers, weight.detach().numpy())


def _state(weight: torch.Tensor) -> tuple[int, int]:
    return weight.data_ptr(), weight._version
