"""copyspec: the same output several times faster, where it repeats text that is already there."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from copyspec.api import agenerate, compare, configure, generate, load, references, unload
    from copyspec.engine import Engine
    from copyspec.loading import LoadError
    from copyspec.results import Chunk, Comparison, Difference, Place, Result, Span, Stats
    from copyspec.target.base import UnsupportedModelError

__all__ = [
    "Chunk",
    "Comparison",
    "Difference",
    "Engine",
    "LoadError",
    "Place",
    "Result",
    "Span",
    "Stats",
    "UnsupportedModelError",
    "agenerate",
    "compare",
    "configure",
    "generate",
    "load",
    "references",
    "unload",
]
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from copyspec.api import agenerate as agenerate
    from copyspec.api import compare as compare
    from copyspec.api import configure as configure
    from copyspec.api import generate as generate
    from copyspec.api import load as load
    from copyspec.api import references as references
    from copyspec.api import unload as unload
    from copyspec.engine import Engine as Engine
    from copyspec.results import Chunk as Chunk
    from copyspec.results import Comparison as Comparison
    from copyspec.results import Result as Result
    from copyspec.results import Span as Span
    from copyspec.results import Stats as Stats

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
    "Comparison": "copyspec.results",
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
