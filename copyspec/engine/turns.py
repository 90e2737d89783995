"""Turns at models: one lock per model, however many engines stand on it or draft with it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack

from copyspec.targets.locks import lock_of

__all__ = ["Turn", "lock_of"]


class Turn:
    """Entered around every pass: holds the locks of a model and of those that draft for it.

    Always in the same order, so that two engines that draft for each other never wait for each other.
    """

    def __init__(self, locks: Callable[[], Sequence[threading.RLock]]) -> None:
        self._locks = locks
        self._held = threading.local()

    def __enter__(self) -> None:
        stack = ExitStack()
        for lock in sorted(set(self._locks()), key=id):
            stack.enter_context(lock)
        if not hasattr(self._held, "stacks"):
            self._held.stacks = []
        self._held.stacks.append(stack)

    def __exit__(self, *exception: object) -> None:
        self._held.stacks.pop().close()
