"""copyspec builds or loads one model at a time, in the whole process.

transformers replaces torch's initialisers and default dtype and its own `tie_weights` meanwhile, for all threads. Where
two models overlap, either gets weights that are untied, not drawn, or of the other's dtype, and the replacements may
stay for good.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from copyspec.common.forks import check_forked, fork_safe

# Reentrant: code of a model that is being loaded may build another one.
_BUILDING = fork_safe(threading.RLock())


@contextmanager
def building() -> Iterator[None]:
    """Wait until no other thread builds a model. Raises RuntimeError in a process that was forked while one did."""
    check_forked(_BUILDING, "loading a model")
    with _BUILDING:
        yield
