"""Gives back the memory of weights that are mapped from a file.

A page of such weights takes memory once it is read. Where passes read packed copies instead, the pages are given back;
if they are needed again, the system maps them from its cache of the file.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from collections.abc import Callable
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

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
