"""Runs forward passes: under the locks of their models and, on a CPU, on the best number of torch's threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter, sleep, thread_time
from typing import TYPE_CHECKING, TypeVar

import torch

from copyspec import forks
from copyspec.engine.cores import Load, allowed, held_by_others
from copyspec.engine.thread_choice import ThreadChoice

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from copyspec.budget import CostModel

T = TypeVar("T")

SMALL = 32_000_000
"""Number of parameters up to which a model starts with one thread, which reads its weights in some ten milliseconds. A
larger one starts with the program's threads less the cores that others use: on one thread a long prompt would take
minutes."""


class _Seen(threading.local):
    """Marks threads that made a pass."""

    yes = False


_SEEN = _Seen()
_LENT: list[tuple[int, int]] = []  # (thread's own count, pass's count) of each running pass that changed it


class Threads:
    """The thread counts of one engine's forward passes. It changes nothing for models that are not on a CPU.

    torch keeps the count per thread and gives the latest one to new threads. It is changed for each pass and restored
    afterwards, so that the caller's own work is not affected. The upper limit is the caller's setting (OMP_NUM_THREADS
    or `torch.set_num_threads`) and the cores the process may use.
    """

    def __init__(self, model: PreTrainedModel, costs: CostModel) -> None:
        """`costs`: measures the passes and reports each one's time relative to the expected time."""
        self._parameters = sum(parameter.numel() for parameter in model.parameters())  # the model itself is not kept
        self.costs = costs
        self.limit = allowed()
        self.choice: ThreadChoice | None = None  # made with the first pass
        self._load = Load.read()

    def count(self) -> int:
        """Threads of the next pass in this Python thread."""
        bound = min(_own(), self.limit)
        return (self.choice or self.first_choice(bound)).next(bound)

    def first_choice(self, bound: int) -> ThreadChoice:
        """Begin to measure, with at most `bound` threads."""
        start = 1 if self._parameters <= SMALL else bound - round(held_by_others(self._load))
        self.choice = choice = ThreadChoice(start)
        return choice


@dataclass(frozen=True, slots=True)
class Passes:
    """Runs the forward passes of one call: each with the locks of the model and of its draft models held, on the best
    number of threads.

    The locks are always taken in the same order, so that two engines drafting for each other cannot deadlock.
    """

    locks: Callable[[], Sequence[threading.RLock]]
    counts: Threads | None = None  # None for a model that is not on a CPU
    given: int | None = None  # the caller's thread count; None: the number measured to be fastest

    def run(self, call: Callable[[], T], locks: Sequence[threading.RLock] | None = None) -> T:
        """Run `call`, a forward pass or a part of one. `locks`: those to take before; None: all."""
        if locks is None:
            if forks.is_waiting:
                sleep(forks.FORK_SECONDS)
            locks = sorted(set(self.locks()), key=id)
        if locks:
            # Nested `with` statements on the locks themselves, not a context manager: an interrupt (Ctrl-C) inside its
            # __enter__ would leave a lock held forever.
            with locks[0]:
                return self.run(call, locks[1:])
        counts, given = self.counts, self.given
        if counts is None:
            return call()
        own = torch.get_num_threads() if _SEEN.yes else _own()
        bound = min(own, counts.limit)
        if given is None and bound == 1 == own:
            return call()
        choice = counts.choice or counts.first_choice(bound)
        count = given or choice.next(bound)
        started, used = perf_counter(), thread_time()
        if count == own:
            result = call()
        else:
            lent = (own, count)
            _LENT.append(lent)
            try:
                torch.set_num_threads(count)
                result = call()
            finally:
                torch.set_num_threads(own)
                _LENT.remove(lent)
        ratio = counts.costs.take_ratio()
        if given is None:
            choice.observe(count, bound, perf_counter() - started, thread_time() - used, ratio)
        return result


def _own() -> int:
    """The thread count that this Python thread has on its own.

    A thread that first uses torch while a pass runs elsewhere would inherit that pass's count for good; it gets the
    other thread's own count instead.
    """
    own = torch.get_num_threads()
    if not _SEEN.yes:
        _SEEN.yes = True
        for before, lent in tuple(_LENT):
            if lent == own:
                torch.set_num_threads(before)
                return before
    return own
