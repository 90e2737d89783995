"""Locks around forward passes: one per model, shared by all engines that run it or draft with it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

from copyspec.forks import wait_for_fork
from copyspec.targets.locks import lock_of

__all__ = ["PassLock", "lock_of"]

T = TypeVar("T")


class PassLock:
    """Holds the locks of a model and of its draft models during each forward pass.

    The locks are always taken in the same order, so that two engines drafting for each other cannot deadlock.
    """

    def __init__(self, locks: Callable[[], Sequence[threading.RLock]]) -> None:
        self._locks = locks

    def run(self, call: Callable[[], T]) -> T:
        """Run `call` with all locks held, and return its result."""
        wait_for_fork()
        locks = self._locks()
        if len(locks) == 1:
            with locks[0]:
                return call()
        return _holding(sorted(set(locks), key=id), call)


def _holding(locks: Sequence[threading.RLock], call: Callable[[], T]) -> T:
    # Nested `with` statements on the locks themselves, not a context manager: an interrupt (Ctrl-C) inside its
    # __enter__ would leave a lock held forever.
    if not locks:
        return call()
    with locks[0]:
        return _holding(locks[1:], call)
