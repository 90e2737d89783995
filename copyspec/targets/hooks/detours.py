"""Detours: temporary replacements of a module's method or flag, visible to one thread only.

Other threads, such as those in the user's own `generate`, keep seeing the original. Several threads may have detours
on one module and end them in any order; the module is restored when the last one ends.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from copyspec.common.forks import fork_safe

_GUARD = fork_safe(threading.RLock())  # guards the detours in place
_ABSENT = object()


class _Detour:
    """Replaces the attribute, and forwards to the current thread's value or the original."""

    def __init__(self, owner: nn.Module, name: str) -> None:
        self.before: object = vars(owner).get(name, _ABSENT)
        self._original = getattr(owner, name)
        self.by_thread: dict[int, list[Any]] = {}

    def _here(self) -> Any:
        own = self.by_thread.get(threading.get_ident())
        return own[-1] if own else self._original

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._here()(*args, **kwargs)

    def __bool__(self) -> bool:
        return bool(self._here())


@contextmanager
def detour(owner: nn.Module, name: str, value: Callable[..., Any] | bool) -> Iterator[None]:
    """Replace `owner.name` by `value` in this thread while the context is active."""
    thread = threading.get_ident()
    with _GUARD:
        before = vars(owner).get(name)
        placed = before if isinstance(before, _Detour) else _Detour(owner, name)
        object.__setattr__(owner, name, placed)
        placed.by_thread.setdefault(thread, []).append(value)
    try:
        yield
    finally:
        with _GUARD:
            own = placed.by_thread[thread]
            own.pop()
            if not own:
                del placed.by_thread[thread]
            if not placed.by_thread and placed is vars(owner).get(name):
                _restore(owner, name, placed.before)


def end_detours(model: nn.Module) -> None:
    """End those that an interrupted pass left in place. No pass of the model may be running."""
    with _GUARD:
        for module in model.modules():
            for name, placed in list(vars(module).items()):
                if isinstance(placed, _Detour):
                    _restore(module, name, placed.before)


def original(owner: nn.Module, name: str) -> Any:
    """The attribute's value without detours."""
    with _GUARD:
        placed = vars(owner).get(name)
        return placed._original if isinstance(placed, _Detour) else getattr(owner, name)


def replacement(owner: nn.Module, name: str) -> object | None:
    """The value that other code has set on the module in place of its class's attribute; None if there is none."""
    placed = vars(owner).get(name)
    value = placed.before if isinstance(placed, _Detour) else placed
    return None if value is _ABSENT else value


def _restore(owner: nn.Module, name: str, before: object) -> None:
    if before is _ABSENT:
        object.__delattr__(owner, name)
    else:
        object.__setattr__(owner, name, before)
