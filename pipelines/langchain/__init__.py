"""LangChain: a chat model and a language model over the engine, retrievers, and answers that name their sources."""

from __future__ import annotations

try:
    import langchain_core  # noqa: F401
except ImportError as error:
    raise ImportError(
        "copyspec.pipelines.langchain needs langchain-core: pip install 'langchain-core>=1.0,<2'"
    ) from error

from .chat import ChatCopySpec

__all__ = ["ChatCopySpec"]
