"""Arenas: a batch's buffers and the programs captured on them, which are reused between sessions."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import torch

from copyspec.common.forks import fork_safe
from copyspec.common.lockless import LiveSet
from copyspec.targets.hooks.inference import inference_mode
from copyspec.targets.static.buffers import CacheLayout, KeyValues
from copyspec.targets.static.running import CAPTURING, ProgramRunner

if TYPE_CHECKING:
    from copyspec.targets.prefixes import Layers

KEPT = 2
"""Maximum number of free arenas kept: one for a batch, one for new rows that run a first pass before they join it."""


@dataclass(frozen=True, slots=True)
class ArenaSize:
    """The minimum size of an arena for a session."""

    layout: CacheLayout
    rows: int
    capacity: int  # slots per row, including scratch
    cross: CacheLayout | None = None  # of cross-attention, in encoder-decoder models
    cross_width: int = 0  # number of encoder states

    def fits(self, other: ArenaSize) -> bool:
        """Whether an arena of size `other` is large enough for this."""
        return (
            (self.layout, self.cross) == (other.layout, other.cross)
            and self.rows <= other.rows
            and self.capacity <= other.capacity
            and self.cross_width <= other.cross_width
        )


class Arena:
    """The buffers of one batch. Programs hold their addresses, so that growing requires a new arena."""

    def __init__(self, size: ArenaSize, dtype: torch.dtype, make_runner: Callable[[Arena], ProgramRunner]) -> None:
        self.size = size
        self.key_values = KeyValues(size.layout, size.rows, size.capacity)
        self.cross: KeyValues | None = None
        self.cross_mask: torch.Tensor | None = None  # additive, [B, 1, 1, S]
        if size.cross is not None:
            self.cross = KeyValues(size.cross, size.rows, size.cross_width)
            with inference_mode(False):
                shape = (size.rows, 1, 1, size.cross_width)
                self.cross_mask = torch.zeros(shape, dtype=dtype, device=size.layout.device)
        self.runner = make_runner(self)

    def clear(self) -> None:
        """Zero all keys and values."""
        for buffers in filter(None, (self.key_values, self.cross)):
            buffers.clear()

    def release(self) -> None:
        """Let go of all memory at once: programs refer to the buffers, and garbage collection may take its time."""
        self.runner.forget()
        del self.runner  # which refers to the buffers and to the model
        self.key_values.buffers = {}
        self.cross = self.cross_mask = None

    def fill_cross(self, rows: Sequence[Layers], lowest: torch.Tensor) -> None:
        """Copy the keys and values of each row's cross-attention, [H, S, D] per layer, and mask what is beyond them."""
        assert self.cross is not None and self.cross_mask is not None
        self.cross_mask.copy_(lowest)
        for row, layers in enumerate(rows):
            width = self.cross.fill(row, 0, layers)
            self.cross_mask[row, 0, 0, :width] = 0


class ArenaPool:
    """The free arenas of one target."""

    def __init__(self) -> None:
        self._free: list[Arena] = []  # most recently used last
        self._kept = KEPT
        self._lock = fork_safe(threading.RLock())
        _POOLS.add(self)

    def take(self, size: ArenaSize, make: Callable[[ArenaSize], Arena]) -> Arena:
        """Take the smallest free arena with space for `size`, or create one in place of those that it could replace."""
        with self._lock:
            fitting = [arena for arena in self._free if size.fits(arena.size)]
            if fitting:
                chosen = min(fitting, key=lambda arena: arena.size.rows * arena.size.capacity)
                self._free.remove(chosen)
                # Here and not in `give`, which garbage collection may call in the middle of somebody's capture.
                chosen.clear()  # a row may have left NaN
                return chosen
            for arena in [arena for arena in self._free if arena.size.fits(size)]:
                self._free.remove(arena)
                arena.release()
        return with_memory(size.layout.device, lambda: make(size))

    def give(self, arena: Arena) -> None:
        """Return an arena to the pool; drop the one that has been free the longest if there are too many."""
        with self._lock:
            self._free.append(arena)
            while len(self._free) > self._kept:
                self._free.pop(0).release()

    def clear(self, device: torch.device | None = None) -> None:
        """Drop the free arenas, or those on one device."""
        with self._lock:
            for arena in [arena for arena in self._free if device in (None, arena.size.layout.device)]:
                self._free.remove(arena)
                arena.release()

    def close(self) -> None:
        """Drop all free arenas, and those in use as soon as they are given back."""
        self._kept = 0
        self.clear()


_POOLS: LiveSet[ArenaPool] = LiveSet()

_Made = TypeVar("_Made")


def with_memory(device: torch.device, make: Callable[[], _Made]) -> _Made:
    """Call `make`; if memory runs out, drop the free arenas of all targets on its device, and call it again."""
    with suppress(torch.OutOfMemoryError):
        return make()
    for pool in _POOLS:
        pool.clear(device)
    gc.collect()
    with CAPTURING:  # during another thread's capture, torch refuses to empty its cache
        torch.cuda.empty_cache()
    return make()
