"""copyspec: lossless speculative decoding by copying, for outputs that repeat text that is already there."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from copyspec.api import agenerate, compare, configure, generate, load, references, unload
    from copyspec.budget import Budget
    from copyspec.drafters.base import Drafter, ScoredDraft
    from copyspec.drafters.custom import DraftContext
    from copyspec.engine.call import Call, CancelledCallError
    from copyspec.engine.engine import Engine
    from copyspec.engine.feed import Input
    from copyspec.engine.inputs import PromptTooLongError
    from copyspec.engine.output_cache import OutputCache
    from copyspec.engine.results import Chunk, Comparison, Difference, Place, Result, Span, Stats
    from copyspec.engine.scheduler import QueueFullError
    from copyspec.integrations.transformers.hf import hf
    from copyspec.literature.lookahead import Jacobi, Lookahead
    from copyspec.models.loading import LoadError
    from copyspec.static_options import StaticOptions
    from copyspec.targets.base import UnsupportedModelError
    from copyspec.tree import DraftTree

__all__ = [
    "Budget",
    "Call",
    "CancelledCallError",
    "Chunk",
    "Comparison",
    "Difference",
    "DraftContext",
    "DraftTree",
    "Drafter",
    "Engine",
    "Input",
    "Jacobi",
    "LoadError",
    "Lookahead",
    "OutputCache",
    "Place",
    "PromptTooLongError",
    "QueueFullError",
    "Result",
    "ScoredDraft",
    "Span",
    "StaticOptions",
    "Stats",
    "UnsupportedModelError",
    "agenerate",
    "compare",
    "configure",
    "generate",
    "hf",
    "load",
    "references",
    "unload",
]

__version__ = "0.1.0"

# Imported on first use, so that `import copyspec` loads neither torch nor transformers.
_EXPORTS = {
    "agenerate": "copyspec.api",
    "compare": "copyspec.api",
    "configure": "copyspec.api",
    "generate": "copyspec.api",
    "hf": "copyspec.integrations.transformers.hf",
    "load": "copyspec.api",
    "references": "copyspec.api",
    "unload": "copyspec.api",
    "Budget": "copyspec.budget",
    "Call": "copyspec.engine.call",
    "CancelledCallError": "copyspec.engine.call",
    "Drafter": "copyspec.drafters.base",
    "ScoredDraft": "copyspec.drafters.base",
    "DraftContext": "copyspec.drafters.custom",
    "Jacobi": "copyspec.literature.lookahead",
    "Lookahead": "copyspec.literature.lookahead",
    "DraftTree": "copyspec.tree",
    "Engine": "copyspec.engine.engine",
    "Input": "copyspec.engine.feed",
    "LoadError": "copyspec.models.loading",
    "PromptTooLongError": "copyspec.engine.inputs",
    "OutputCache": "copyspec.engine.output_cache",
    "Chunk": "copyspec.engine.results",
    "Comparison": "copyspec.engine.results",
    "Difference": "copyspec.engine.results",
    "Place": "copyspec.engine.results",
    "Result": "copyspec.engine.results",
    "Span": "copyspec.engine.results",
    "QueueFullError": "copyspec.engine.scheduler",
    "StaticOptions": "copyspec.static_options",
    "Stats": "copyspec.engine.results",
    "UnsupportedModelError": "copyspec.targets.base",
}


def __getattr__(name: str) -> object:
    if name not in _EXPORTS:
        raise AttributeError(f"module 'copyspec' has no attribute {name!r}")
    value: object = getattr(importlib.import_module(_EXPORTS[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})


# In a checkout, retrievers/ and pipelines/ are beside copyspec/, not inside it (see pyproject.toml).
if not (Path(__file__).parent / "retrievers" / "__init__.py").exists():
    __path__.append(str(Path(__file__).parent.parent))
