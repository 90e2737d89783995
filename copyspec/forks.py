"""Makes forking safe: a child process finds every registered lock free, and its data consistent.

A fork copies only the calling thread. A lock held by another thread would stay held in the child forever, and the data
it protects would stay half changed, such as a model in the middle of a forward pass. A fork therefore waits until no
registered lock is held, which takes a few milliseconds: the rest of a pass. If that takes longer than PATIENCE, the
child gets an error when it uses what was in progress.

Torch's worker threads are not copied either, and the child's first parallel loop would wait for them forever: the child
gets one thread, unless it calls `torch.set_num_threads` itself. Processes that are spawned (`multiprocessing`'s "spawn"
and "forkserver") have none of these limits.
"""

from __future__ import annotations

import os
import sys
from time import monotonic, sleep
from typing import Protocol, TypeVar
from weakref import WeakSet, WeakValueDictionary

PATIENCE = 10.0
"""Seconds that a fork waits: longer than any reasonable forward pass, shorter than loading a large model."""

_GIVEN_WAY = 0.005
"""Seconds that the next pass is delayed while a fork waits: locks are not fair, and a decoding thread would take its
own again before the waiting fork wakes up."""

_ATTEMPT = 1.0
"""Seconds to wait for one lock before releasing all, since its holder may be waiting for another one."""


class Lock(Protocol):
    """The common interface of Lock, RLock and Condition."""

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool: ...
    def release(self) -> None: ...


AnyLock = TypeVar("AnyLock", bound=Lock)

_LOCKS: WeakValueDictionary[int, Lock] = WeakValueDictionary()
_HALFWAY: WeakSet[Lock] = WeakSet()
_taken: list[Lock] = []
_is_waiting = False


def at_rest(lock: AnyLock) -> AnyLock:
    """Register `lock`, so that forks wait for it, and return it."""
    _LOCKS[id(lock)] = lock
    return lock


def give_way() -> None:
    """Called before a pass: lets a waiting fork go first."""
    if _is_waiting:
        sleep(_GIVEN_WAY)


def check_forked(lock: Lock, what: str) -> None:
    """Raise RuntimeError in a forked process if another thread held `lock` at the fork; `what` names its activity."""
    if _HALFWAY and lock in _HALFWAY:
        raise RuntimeError(
            f"this process was forked while another thread was {what}: its half-done work came along, and cannot be "
            'ended here. Fork when it is done, or start processes with multiprocessing.get_context("spawn")'
        )


def _before() -> None:
    global _is_waiting
    _is_waiting = True
    locks = sorted((lock for ref in _LOCKS.valuerefs() if (lock := ref()) is not None), key=id)
    end = monotonic() + PATIENCE
    while not _take(locks):
        if monotonic() > end:
            _taken.extend(lock for lock in locks if lock.acquire(blocking=False))
            return
        sleep(0.001)


def _take(locks: list[Lock]) -> bool:
    """Take all locks, or none."""
    for lock in locks:
        if not lock.acquire(timeout=_ATTEMPT):
            _release()
            return False
        _taken.append(lock)
    return True


def _release() -> None:
    while _taken:
        _taken.pop().release()


def _end() -> None:
    global _is_waiting
    _is_waiting = False
    _release()


def _in_child() -> None:
    held = set(map(id, _taken))
    for lock in [lock for ref in _LOCKS.valuerefs() if (lock := ref()) is not None]:
        if id(lock) not in held:
            lock._at_fork_reinit()  # type: ignore[attr-defined]  # as the standard library resets its own locks
            _HALFWAY.add(lock)
    _end()
    torch = sys.modules.get("torch")
    if torch is not None and torch.get_num_threads() > 1:
        torch.set_num_threads(1)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_end, after_in_child=_in_child)
