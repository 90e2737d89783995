"""One lock per model, however many targets and engines stand on it."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from copyspec.forks import at_rest

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# Reentrant: the garbage collector may close an abandoned stream in the middle of another one's step.
_LOCKS: WeakKeyDictionary[PreTrainedModel, threading.RLock] = WeakKeyDictionary()
_GUARD = at_rest(threading.RLock())


def lock_of(model: PreTrainedModel) -> threading.RLock:
    """The lock of a model."""
    with _GUARD:
        return _LOCKS.setdefault(model, at_rest(threading.RLock()))


def share_lock(model: PreTrainedModel, other: PreTrainedModel) -> None:
    """`model`, which is new and has modules of `other`, takes turns with it."""
    lock = lock_of(other)
    with _GUARD:
        _LOCKS[model] = lock
