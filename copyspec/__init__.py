"""copyspec: lossless speculative decoding by copying, for outputs that repeat text that is already there."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from copyspec.common.lazy import attach

if TYPE_CHECKING:
    from copyspec.api import agenerate as agenerate, compare as compare, configure as configure, generate as generate
    from copyspec.api import load as load, references as references, unload as unload
    from copyspec.budget import Budget as Budget
    from copyspec.client.remote import remote as remote, Remote as Remote
    from copyspec.client.sending import ServerError as ServerError
    from copyspec.drafters.base import Drafter as Drafter, ScoredDraft as ScoredDraft
    from copyspec.drafters.custom import DraftContext as DraftContext
    from copyspec.engine.running.call import Call as Call, CancelledCallError as CancelledCallError
    from copyspec.engine.engine import Engine as Engine
    from copyspec.engine.asking.inputs import Input as Input, PromptTooLongError as PromptTooLongError
    from copyspec.engine.drafting.output_cache import OutputCache as OutputCache
    from copyspec.engine.results import Chunk as Chunk, Comparison as Comparison, Difference as Difference
    from copyspec.engine.results import Place as Place, Result as Result, Span as Span, Stats as Stats
    from copyspec.engine.running.scheduler import QueueFullError as QueueFullError
    from copyspec.integrations.transformers.hf import hf as hf
    from copyspec.literature.lookahead import Jacobi as Jacobi, Lookahead as Lookahead
    from copyspec.models.loading import LoadError as LoadError
    from copyspec.options import StaticOptions as StaticOptions
    from copyspec.targets.base import UnsupportedModelError as UnsupportedModelError
    from copyspec.tree import DraftTree as DraftTree
else:
    __getattr__, __dir__, __all__ = attach(__name__)


__version__ = "0.1.0"

# In a checkout, retrievers/ and pipelines/ are beside copyspec/, not inside it (see pyproject.toml).
if not (Path(__file__).parent / "retrievers" / "__init__.py").exists():
    __path__.append(str(Path(__file__).parent.parent))
