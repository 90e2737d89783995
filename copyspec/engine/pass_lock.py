"""Turns at models: one lock per model, however many engines stand on it or draft with it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

from copyspec.forks import give_way
from copyspec.targets.locks import lock_of

__all__ = ["PassLock", "lock_of"]

T = TypeVar("T")


class PassLock:
    """Around every pass: holds the locks of a model and of those that draft for it.

    Always in the same order, so that two engines that draft for each other never wait for each other.
    """

    def __init__(self, locks: Callable[[], Sequence[threading.RLock]]) -> None:
        self._locks = locks

    def run(self, call: Callable[[], T]) -> T:
        """What `call` returns, with all locks held."""
        give_way()
        locks = self._locks()
        if len(locks) == 1:
            with locks[0]:
                return call()
        return _holding(sorted(set(locks), key=id), call)


def _holding(locks: Sequence[threading.RLock], call: Callable[[], T]) -> T:
    # No context manager of our own: an interrupt (Ctrl-C) inside its __enter__ would leave a lock held for good. In a
    # `with` of the lock itself there is no such moment.
    if not locks:
        return call()
    with locks[0]:
        return _holding(locks[1:], call)
