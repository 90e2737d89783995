"""Makes `os.fork` safe: a child process finds every lock free, and the data behind it consistent.

A fork copies only the calling thread. A lock held by another thread would stay locked in the child for ever, and what
it guards would stay half-changed, such as a model with the masks of a pass that never ends. A fork thus waits until
no thread holds a lock registered here, usually the few milliseconds of a pass. If that takes longer than FORK_TIMEOUT,
the child gets an error when it uses what was being changed.

torch's other threads are not copied either, and the child's first parallel operation would wait for them. The child
therefore uses one thread, unless it calls `torch.set_num_threads`. Processes started by `multiprocessing` with "spawn"
or "forkserver" have none of these limits.
"""

from __future__ import annotations

import os
import sys
from time import monotonic, sleep
from typing import Protocol, TypeVar
from weakref import WeakSet

from copyspec.common.lockless import LiveSet

FORK_TIMEOUT = 10.0
"""Seconds that a fork waits: longer than a pass of any practical model, shorter than loading a large one."""

FORK_SECONDS = 0.005
"""Seconds that the next pass waits where `is_fork_pending`. Locks are not fair: a decoding thread would otherwise take
its lock again before the fork wakes up."""

_ATTEMPT = 0.02
"""Seconds to wait for one lock. Then all are released, since its holder may be waiting for another of them."""


class Lock(Protocol):
    """The common interface of Lock, RLock and Condition."""

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool: ...
    def release(self) -> None: ...


AnyLock = TypeVar("AnyLock", bound=Lock)

_LOCKS: LiveSet[Lock] = LiveSet()
held_at_fork: WeakSet[Lock] = WeakSet()
"""In a forked child: the locks that other threads of the parent held."""

_taken: list[Lock] = []
is_fork_pending = False
"""Whether a fork waits. Passes read it before they take their locks."""


def fork_safe(lock: AnyLock) -> AnyLock:
    """Register `lock`, so that forks wait until it is free, and return it."""
    _LOCKS.add(lock)
    return lock


def check_forked(lock: Lock, what: str) -> None:
    """Raise RuntimeError in a process that was forked while another thread held `lock`; `what` it was doing."""
    if lock in held_at_fork:
        raise RuntimeError(
            f"this process was forked while another thread was {what}: its unfinished work was copied and cannot be "
            'completed here. Fork when it is done, or start processes with multiprocessing.get_context("spawn")'
        )


def _before() -> None:
    global is_fork_pending
    is_fork_pending = True
    locks = sorted(_LOCKS, key=id)
    end = monotonic() + FORK_TIMEOUT
    while not _take(locks):
        if monotonic() > end:
            _taken.extend(lock for lock in locks if lock.acquire(blocking=False))
            return
        sleep(0.001)


def _take(locks: list[Lock]) -> bool:
    """Acquire all locks or none; return whether that succeeded."""
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
    global is_fork_pending
    is_fork_pending = False
    _release()


def _in_child() -> None:
    ids = set(map(id, _taken))
    for lock in _LOCKS:
        if id(lock) not in ids:
            lock._at_fork_reinit()  # type: ignore[attr-defined]  # as the standard library does it for its own locks
            held_at_fork.add(lock)
    _end()
    torch = sys.modules.get("torch")
    if torch is not None and torch.get_num_threads() > 1:
        torch.set_num_threads(1)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_end, after_in_child=_in_child)
