"""copyspec: lossless speculative decoding by copying, for outputs that repeat text that is already there."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from copyspec.lazy import attach

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

__getattr__, __dir__ = attach(
    __name__,
    {
        "copyspec.api": "agenerate compare configure generate load references unload",
        "copyspec.budget": "Budget",
        "copyspec.drafters.base": "Drafter ScoredDraft",
        "copyspec.drafters.custom": "DraftContext",
        "copyspec.engine.call": "Call CancelledCallError",
        "copyspec.engine.engine": "Engine",
        "copyspec.engine.feed": "Input",
        "copyspec.engine.inputs": "PromptTooLongError",
        "copyspec.engine.output_cache": "OutputCache",
        "copyspec.engine.results": "Chunk Comparison Difference Place Result Span Stats",
        "copyspec.engine.scheduler": "QueueFullError",
        "copyspec.integrations.transformers.hf": "hf",
        "copyspec.literature.lookahead": "Jacobi Lookahead",
        "copyspec.models.loading": "LoadError",
        "copyspec.static_options": "StaticOptions",
        "copyspec.targets.base": "UnsupportedModelError",
        "copyspec.tree": "DraftTree",
    },
)

# In a checkout, retrievers/ and pipelines/ are beside copyspec/, not inside it (see pyproject.toml).
if not (Path(__file__).parent / "retrievers" / "__init__.py").exists():
    __path__.append(str(Path(__file__).parent.parent))
