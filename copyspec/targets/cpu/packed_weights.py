"""Copies of weights in the order in which the compiled module multiplies them, in bfloat16.

A copy is read from beginning to end, and its products are sums of whole registers, so nothing is transposed in a pass.
Most models are published in bfloat16. Loaded in float32, half of each number is zeros: their copy takes half the time
to read, and is multiplied as the same float32 numbers. The model keeps its own weights; where they are mapped from a
file, they take memory only while a pass reads them: a page of such weights takes memory once it is read, and is given
back then. If it is needed again, the system maps it from its cache of the file.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from weakref import ref

import numpy as np
import torch

from copyspec.common.control_groups import available_memory
from copyspec.targets.cpu.compiled import _linear
from copyspec.targets.hooks.modules import state_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

SHARE = 4
"""The copies take at most one part in so many of the memory that is available when they are made."""

_OUTPUTS, _INPUTS = 32, 32  # inputs must be a multiple of the latter


def memory_for_packing(root: Path = Path("/")) -> int:
    """Bytes that the copies of a model's weights may take, of what the machine and its container have available."""
    return available_memory(root) // SHARE


class PackedWeights:
    """A packed copy of a weight, [outputs, inputs]: of as many outputs as are a multiple of 32."""

    def __init__(self, weight: torch.Tensor, units: NDArray[np.uint32]) -> None:
        self.units = units
        """Pairs of adjacent inputs, [outputs, inputs / 2] in number; in the order [outputs / 32, inputs / 2, 32], with
        inputs in that of the kernel's sums."""
        self._weight, self._state = ref(weight), state_of(weight)

    @classmethod
    def of(cls, weight: torch.Tensor, memory: int) -> PackedWeights | None:
        """Pack a float32 weight. None if the copy would take more than `memory` bytes, or lose bits."""
        outputs, inputs = weight.shape
        if 2 * weight.numel() > memory:
            return None
        whole = outputs // _OUTPUTS * _OUTPUTS
        if not whole or inputs % _INPUTS or weight.is_inference():  # the latter do not count their changes
            return None
        units = np.empty((whole, inputs // 2), np.uint32)
        return cls(weight, units) if _linear.pack(units, numbers(weight)[:whole]) else None

    def is_of(self, weight: torch.Tensor) -> bool:
        """Whether this is a copy of `weight`, as far as PyTorch counts its changes."""
        return self._weight() is weight and self._state == state_of(weight)


def numbers(tensor: torch.Tensor) -> NDArray[np.float32]:
    """View a float32 tensor as an array that shares its memory."""
    array: NDArray[np.float32] = tensor.detach().contiguous().numpy()
    return array


_DONTNEED = 4  # MADV_DONTNEED
_FILE, _SWAPPED, _PRESENT = (np.uint64(1 << bit) for bit in (61, 62, 63))  # of an entry of /proc/self/pagemap

_madvise: Callable[[int, int, int], int] | None = None
if sys.platform == "linux":
    _madvise = cast("Callable[[int, int, int], int]", ctypes.CDLL(None).madvise)
    _madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)  # type: ignore[attr-defined]


def give_back(numbers: NDArray[Any]) -> bool:
    """Give back the whole pages of an array, if all of them are those of its file, and return whether they are. Others,
    as of a weight that was changed, are in memory only and would be lost."""
    size = mmap.PAGESIZE
    first = -(-numbers.ctypes.data // size)
    last = (numbers.ctypes.data + numbers.nbytes) // size
    if _madvise is None or last <= first:
        return False
    try:
        with open("/proc/self/pagemap", "rb", buffering=0) as file:
            file.seek(8 * first)
            entries = np.frombuffer(file.read(8 * (last - first)), np.uint64)
    except OSError:  # some systems do not let a process read it
        return False
    present = entries & _PRESENT != 0
    if len(entries) < last - first or (entries & _SWAPPED).any() or not (entries[present] & _FILE).all():
        return False
    return not present.any() or _madvise(first * size, (last - first) * size, _DONTNEED) == 0
