"""The module that is compiled from native/, where a compiler was found at installation."""

from __future__ import annotations

try:
    import copyspec.drafters.copying._growth as _growth
except ImportError:
    _growth = None  # type: ignore[assignment]

VERSION = 15
"""Required version of the compiled module; one built from older sources is not used."""

COMPILED = _growth if _growth is not None and _growth.VERSION == VERSION else None
