"""LangChain integration: a chat model and a language model over the engine, and answers with citations.

The retrievers are in `copyspec.retrievers.langchain`.
"""

from __future__ import annotations

try:
    import langchain_core  # noqa: F401
except ImportError as error:
    raise ImportError(
        "copyspec.pipelines.langchain needs langchain-core: pip install 'langchain-core>=1.0,<2'"
    ) from error

from .chat import ChatCopySpec
from .citing import CitedAnswer, DocumentCitation, with_citations
from .edit_tool import apply_edit_tool
from .llm import CopySpecLLM
from .wiring import with_references

__all__ = [
    "ChatCopySpec",
    "CitedAnswer",
    "CopySpecLLM",
    "DocumentCitation",
    "apply_edit_tool",
    "with_citations",
    "with_references",
]
