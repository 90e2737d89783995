"""Forks: a child process finds every lock free, and what it guards at rest.

A fork copies one thread. What another one held at that moment stays held in the copy for good, and what it was at
stays half done: a model with the masks of a pass that nobody ends. So a fork waits until no thread is inside anything
that a lock guards here: for the end of a pass, a few milliseconds. Where that takes longer than PATIENCE, the child may
not use what was in the middle of something, and is told so.

The other threads of torch do not come along either, and the child's first parallel loop would wait for them: it has
one thread, unless it calls `torch.set_num_threads` again. Processes that are started (`multiprocessing`'s "spawn" and
"forkserver") have none of these limits.
"""

from __future__ import annotations

import os
import sys
from time import monotonic, sleep
from typing import Protocol, TypeVar
from weakref import WeakSet, WeakValueDictionary

PATIENCE = 10.0
"""Seconds that a fork waits: longer than any pass of a model that is worth using, shorter than loading a large one."""

_GIVEN_WAY = 0.005
"""Seconds that the next pass waits while a fork does: locks are not fair, and a thread that decodes would take its own
again before a waiting fork wakes up."""

_ATTEMPT = 1.0
"""Seconds for one lock. Then all are let go of, since somebody who holds this one may be waiting for another."""


class Lock(Protocol):
    """A Lock, an RLock or a Condition."""

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool: ...
    def release(self) -> None: ...


AnyLock = TypeVar("AnyLock", bound=Lock)

_LOCKS: WeakValueDictionary[int, Lock] = WeakValueDictionary()
_HALFWAY: WeakSet[Lock] = WeakSet()
_taken: list[Lock] = []
_is_waiting = False


def at_rest(lock: AnyLock) -> AnyLock:
    """`lock`, for which forks wait from now on."""
    _LOCKS[id(lock)] = lock
    return lock


def give_way() -> None:
    """Before a pass: a fork that waits for a moment without one gets it."""
    if _is_waiting:
        sleep(_GIVEN_WAY)


def check_forked(lock: Lock, what: str) -> None:
    """Raises RuntimeError in a process that was forked while another thread held `lock`; `what` it was at."""
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
    """All of them, or none."""
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
            lock._at_fork_reinit()  # type: ignore[attr-defined]  # as the standard library does it for its own locks
            _HALFWAY.add(lock)
    _end()
    torch = sys.modules.get("torch")
    if torch is not None and torch.get_num_threads() > 1:
        torch.set_num_threads(1)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_end, after_in_child=_in_child)
