"""Threads of torch: what one pass of a model on a CPU takes, and what the program has again behind it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from time import perf_counter, thread_time
from typing import TYPE_CHECKING, TypeVar

import torch

from copyspec.engine.cores import Load, allowed, held_by_others
from copyspec.engine.thread_choice import ThreadChoice

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from copyspec.budget import CostModel
    from copyspec.engine.pass_lock import PassLock

T = TypeVar("T")

SMALL = 32_000_000
"""Parameters: a smaller model begins with one thread, which reads it in some ten milliseconds. A larger one begins
with as many as the program has, less the cores that others hold: reading a long prompt on one would take minutes."""

_SEEN = threading.local()  # of threads that made a pass
_LENT: list[tuple[int, int]] = []  # of each pass that runs on a number of its own: the thread's number, and the pass's


class Threads:
    """How many threads the passes of one engine take. Where the model is not on a CPU it changes nothing.

    torch keeps that number per thread of the program and hands the latest one to new threads. It is changed for each
    pass and set back behind it, so that a caller's own work is not touched; what the caller has, by OMP_NUM_THREADS or
    `torch.set_num_threads`, is the most that is taken, and so is what the process may use.
    """

    def __init__(self, model: PreTrainedModel, costs: CostModel) -> None:
        """`costs`: where passes are measured; asked how far each was from what was expected."""
        self._parameters = sum(parameter.numel() for parameter in model.parameters())  # the model itself is not kept
        self._costs = costs
        self._limit = allowed()
        self._load = Load.read()
        self._choice: ThreadChoice | None = None

    def count(self) -> int:
        """Threads of the next pass in this thread."""
        bound = min(_own(), self._limit)
        return self._chosen(bound).next(bound)

    def run(self, call: Callable[[], T], given: int | None = None) -> T:
        """What `call`, a pass, returns, on `given` threads or as many as are measured to be best."""
        own = _own()
        bound = min(own, self._limit)
        if given is None and bound == 1 == own:
            return call()
        count = given or self._chosen(bound).next(bound)
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
        ratio = self._costs.take_ratio()
        if given is None:
            self._chosen(bound).observe(count, bound, perf_counter() - started, thread_time() - used, ratio)
        return result

    def _chosen(self, bound: int) -> ThreadChoice:
        if self._choice is None:
            free = bound if self._parameters <= SMALL else bound - round(held_by_others(self._load))
            self._choice = ThreadChoice(1 if self._parameters <= SMALL else free)
        return self._choice


class Passes:
    """The passes of one call: each has the model for itself, and the threads that are best for it."""

    def __init__(self, lock: PassLock, threads: Threads | None, given: int | None = None) -> None:
        """`threads`: None for a model that is not on a CPU; `given`: the caller's own number of them."""
        self._pass_lock, self._threads, self._given = lock, threads, given

    def run(self, call: Callable[[], T]) -> T:
        """What `call` returns, a pass or a part of one."""
        threads, given = self._threads, self._given
        if threads is None:
            return self._pass_lock.run(call)
        return self._pass_lock.run(partial(threads.run, call, given))


def _own() -> int:
    """The number of threads that this thread of the program has of its own.

    One that asks torch for the first time while a pass runs elsewhere gets that pass's number, for good: it is given
    what the other thread has.
    """
    own = torch.get_num_threads()
    if not hasattr(_SEEN, "yes"):
        _SEEN.yes = True
        for before, lent in tuple(_LENT):
            if lent == own:
                torch.set_num_threads(before)
                return before
    return own
