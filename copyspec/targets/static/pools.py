"""Pools: the KV cache of a batch in pages, with the programs that run on it, reused by the next session.

A session decodes one batch (`targets.base.Session`), and a program runs its passes of one shape, captured as a CUDA
graph for example (`running`). A row holds a list of pages, its row of the block table. It joins, grows and leaves by
changes of that list; no keys are copied. Rows that begin with the same tokens hold the same pages.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

import torch

from copyspec.common.forks import fork_safe
from copyspec.common.lockless import LiveSet
from copyspec.targets.hooks.inference import inference_mode
from copyspec.targets.static.buffers import CacheLayout, KeyValues
from copyspec.targets.static.row_states import PooledStates
from copyspec.targets.static.running import CAPTURING, ProgramRunner
from copyspec.targets.static.settings import PAGE, PREFILL_TOKENS, size_of

if TYPE_CHECKING:
    from copyspec.targets.rows.prefixes import Layers


@dataclass(frozen=True, slots=True)
class PoolSize:
    """The minimum size of a pool for a session."""

    layout: CacheLayout
    rows: int
    pages: int  # the scratch page included
    cross: CacheLayout | None = None  # of cross-attention, in encoder-decoder models
    cross_width: int = 0  # number of encoder states of all rows

    def fits(self, other: PoolSize) -> bool:
        """Whether a pool of size `other` is large enough for this."""
        return (
            (self.layout, self.cross) == (other.layout, other.cross)
            and self.rows <= other.rows
            and self.pages <= other.pages
            and self.cross_width <= other.cross_width
        )

    def with_room_for(self, other: PoolSize) -> PoolSize:
        """The size of a pool that also has the space of `other`, if that is of the same model."""
        if (self.layout, self.cross) != (other.layout, other.cross):
            return self
        rows, pages = max(self.rows, other.rows), max(self.pages, other.pages)
        return replace(self, rows=rows, pages=pages, cross_width=max(self.cross_width, other.cross_width))


class PagePool:
    """The pages of one batch. Programs hold their addresses, so that a larger batch requires a new pool."""

    def __init__(self, size: PoolSize, make_runner: Callable[[PagePool], ProgramRunner] | None = None) -> None:
        self.size = size
        device = size.layout.device
        self.key_values = KeyValues(size.layout, size.pages * PAGE)
        self.states: PooledStates | None = None
        if size.layout.states:
            tokens = max(PREFILL_TOKENS, size_of(2 * size.rows))  # each row may draft a node
            self.states = PooledStates(size.layout.states, size.rows + 1, tokens, device)
        self.scratch = size.rows
        """The number of the scratch row, to which a pass's padding tokens belong. Its page is page 0."""
        self._pages: list[int] = list(range(size.pages - 1, 0, -1))  # free ones
        self._ref_counts = [0] * size.pages  # how many rows hold each page
        self._writers = [-1] * size.pages
        """The row that fills each page, also for others that hold it; -1: none."""
        self._rows = list(range(size.rows - 1, -1, -1))  # free numbers
        self.cross: KeyValues | None = None
        with inference_mode(False):
            self.block_table = torch.zeros((size.rows + 1, size.pages), dtype=torch.long, device=device)
            """The block table: the pages of each row, [R + 1, P]."""
            self.cross_ranges = torch.zeros((size.rows + 1, 2), dtype=torch.long, device=device)
            """The slots of each row's encoder states in the buffers of cross-attention: the first, and the end."""
        if size.cross is not None:
            self.cross = KeyValues(size.cross, size.cross_width)
        self._runner = make_runner(self) if make_runner is not None else None

    @property
    def runner(self) -> ProgramRunner:
        assert self._runner is not None
        return self._runner

    @property
    def free_pages(self) -> int:
        return len(self._pages)

    def add_row(self) -> int:
        """Take a free number for a row."""
        return self._rows.pop()

    def drop_row(self, number: int, pages: Sequence[int]) -> None:
        """Give back a row's number and its pages."""
        self._rows.append(number)
        self.seal(pages)
        self.drop(pages)

    def take(self, count: int, number: int) -> list[int]:
        """Take free pages, which row `number` will fill. Raises IndexError if there are fewer."""
        pages = [self._pages.pop() for _ in range(count)]
        for page in pages:
            self._ref_counts[page], self._writers[page] = 1, number
        return pages

    def share(self, pages: Sequence[int]) -> None:
        """Let one more row use these pages."""
        for page in pages:
            self._ref_counts[page] += 1

    def seal(self, pages: Sequence[int]) -> None:
        """Let no row write to these pages while several hold them."""
        for page in pages:
            self._writers[page] = -1

    def may_write(self, page: int, number: int) -> bool:
        """Whether row `number` may write to a page that it holds."""
        return self._ref_counts[page] == 1 or self._writers[page] == number

    def drop(self, pages: Sequence[int]) -> None:
        """Let one row fewer use these pages; those that none uses become free."""
        for page in pages:
            self._ref_counts[page] -= 1
            if not self._ref_counts[page]:
                self._pages.append(page)

    def copy_page(self, source: int, target: int) -> None:
        """Copy the keys and values of a page."""
        for buffer in self.key_values.buffers.values():
            pages = buffer.view(*buffer.shape[:2], -1, PAGE, buffer.shape[3])
            pages[:, :, target] = pages[:, :, source]
        nonfinite = self.key_values.nonfinite.view(-1, PAGE)
        nonfinite[target] = nonfinite[source]

    @property
    def used(self) -> int:
        """Number of pages in use, the scratch page included; a shared page counts once."""
        return self.size.pages - len(self._pages)

    def write_block_table(self, number: int, pages: Sequence[int], first: int = 0) -> None:
        """Write a row's pages, from index `first` on, to the block table on the device. If that is 0, the entries after
        them are cleared: no page may be twice in a row of the table."""
        rest = [] if first else [0] * (self.size.pages - len(pages))
        new = torch.tensor([*pages[first:], *rest], dtype=torch.long, device="cpu")
        device = self.block_table.device
        self.block_table[number, first : first + len(new)] = new.to(device, non_blocking=device.type == "cuda")

    def take_over(self, other: PagePool) -> None:
        """Take over all pages and rows of a smaller pool, whose sessions go on here."""
        self.key_values.copy(other.key_values, other.size.pages * PAGE)
        rows, pages = other.size.rows, other.size.pages
        if self.states is not None and other.states is not None:
            self.states.copy(other.states, rows)
        self.block_table.zero_()[:rows, :pages] = other.block_table[:rows]
        free = set(other._pages)
        self._ref_counts[:pages], self._writers[:pages] = other._ref_counts, other._writers
        self._pages = [page for page in self._pages if page >= pages or page in free]
        taken = set(other._rows)
        self._rows = [row for row in self._rows if row >= rows or row in taken]

    def reset(self) -> None:
        """Free all pages and rows."""
        self._pages, self._rows = list(range(self.size.pages - 1, 0, -1)), list(range(self.size.rows - 1, -1, -1))
        self._ref_counts = [0] * self.size.pages

    def release(self) -> None:
        """Free all memory now: programs refer to the buffers, and garbage collection may come late."""
        self.runner.forget()
        self._runner = None  # which refers to the buffers and to the model
        self.key_values.buffers = {}
        self.cross = self.states = None

    def fill_cross(self, rows: Sequence[tuple[int, Layers]]) -> None:
        """Copy the keys and values of each row's cross-attention, [H, S, D] per layer, one after the other."""
        assert self.cross is not None
        begin, device = 0, self.block_table.device
        for number, layers in rows:
            pair = layers[0]
            assert pair is not None
            end = begin + pair[0].shape[1]
            self.cross.fill(torch.arange(begin, end, device=device), layers)
            self.cross_ranges[number] = torch.tensor([begin, end], device=device)
            begin = end


class FreePools:
    """The free pool of one target, if any: the one that was used last."""

    def __init__(self) -> None:
        self._free: list[PagePool] = []
        self._keeps = True
        self._lock = fork_safe(threading.RLock())
        _ALL.add(self)

    def take(self, size: PoolSize, make: Callable[[PoolSize], PagePool]) -> PagePool:
        """Take the free pool if it has space for `size`. Otherwise make one in its place that has space for both, so
        that sessions of different sizes soon use the same pool."""
        with self._lock:
            if self._free:
                pool = self._free.pop()
                if size.fits(pool.size):
                    pool.reset()
                    return pool
                size = size.with_room_for(pool.size)
                pool.release()
        return with_memory(size.layout.device, lambda: make(size))

    def give(self, pool: PagePool) -> None:
        """Keep a pool that is no longer used in place of the free one, unless that is at least as large."""
        with self._lock:
            self._free.append(pool)
            if len(self._free) > 1:
                first, last = self._free
                self._free.pop(last.size.fits(first.size)).release()
            if not self._keeps:
                self.clear()

    def clear(self, device: torch.device | None = None) -> None:
        """Drop the free pool, or that on one device."""
        with self._lock:
            for pool in [pool for pool in self._free if device in (None, pool.size.layout.device)]:
                self._free.remove(pool)
                pool.release()

    def close(self) -> None:
        """Drop the free pool, and those in use as soon as they are given back."""
        self._keeps = False
        self.clear()


_ALL: LiveSet[FreePools] = LiveSet()

_Made = TypeVar("_Made")


def with_memory(device: torch.device, make: Callable[[], _Made]) -> _Made:
    """Call `make`; if memory runs out, drop the free pools of all targets on its device, and call it again."""
    with suppress(torch.OutOfMemoryError):
        return make()
    for pools in _ALL:
        pools.clear(device)
    gc.collect()
    with CAPTURING:  # during another thread's capture, torch refuses to empty its cache
        torch.cuda.empty_cache()
    return make()
