"""One lock per model, shared by all targets and engines that use it."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from copyspec.common.forks import fork_safe

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# Reentrant, because the garbage collector may close an abandoned stream during another one's step.
_LOCKS: WeakKeyDictionary[PreTrainedModel, threading.RLock] = WeakKeyDictionary()
_GUARD = fork_safe(threading.RLock())


def lock_of(model: PreTrainedModel) -> threading.RLock:
    """Return the model's lock."""
    with _GUARD:
        return _LOCKS.setdefault(model, fork_safe(threading.RLock()))


def share_lock(model: PreTrainedModel, other: PreTrainedModel) -> None:
    """Give `model`, a new model that shares modules with `other`, the lock of `other`."""
    lock = lock_of(other)
    with _GUARD:
        _LOCKS[model] = lock
