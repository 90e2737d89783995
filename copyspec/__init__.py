"""copyspec: the same output several times faster, where it repeats text that is already there."""

from __future__ import annotations

import importlib
from pathlib import Path

__version__ = "0.1.0"

# Imported where first used: `import copyspec` loads neither torch nor transformers.
_EXPORTS = {
    "generate": "copyspec.api",
    "agenerate": "copyspec.api",
    "compare": "copyspec.api",
    "load": "copyspec.api",
    "unload": "copyspec.api",
    "configure": "copyspec.api",
    "references": "copyspec.api",
    "Engine": "copyspec.engine",
    "Result": "copyspec.results",
    "Chunk": "copyspec.results",
    "Span": "copyspec.results",
    "Stats": "copyspec.results",
}


def __getattr__(name: str) -> object:
    if name not in _EXPORTS:
        raise AttributeError(f"module 'copyspec' has no attribute {name!r}")
    value: object = getattr(importlib.import_module(_EXPORTS[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_EXPORTS})


# In a checkout retrievers/ and pipelines/ stand beside copyspec/, not inside it (see pyproject.toml).
if not (Path(__file__).parent / "retrievers" / "__init__.py").exists():
    __path__.append(str(Path(__file__).parent.parent))
