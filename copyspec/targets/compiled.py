"""The compiled module `_linear` (`native/linear.c`), or None: without a compiler at installation, for example."""

from __future__ import annotations

__all__ = ["VERSION", "_linear"]

VERSION = 15
"""Version of `_linear` that fits this package; one compiled from an older source is not used."""

try:
    import copyspec.targets._linear as _linear

    if _linear.VERSION != VERSION:
        raise ImportError
except ImportError:
    _linear = None  # type: ignore[assignment]
