"""Options of iterative RAG: the layout of the model's input, and speculation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypedDict

from copyspec.common.checks import check_whole
from copyspec.engine.asking.call_options import CallOptions
from copyspec.engine.asking.unknown import reject_unknown

from ..instructions import check_template

INSTRUCTION = "{document}\n\n{prompt}"
"""The document in front of the prompt, as in RaLMSpec."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The model's input, and when its document is exchanged. All of these options affect the output."""

    stride: int = 4  # output tokens between two retrievals
    query_tokens: int = 32  # last tokens of prompt and output that form the query
    document_tokens: int = 256  # first tokens of a document that the model is shown
    instruction: str = INSTRUCTION  # template with {document} and {prompt}

    def __post_init__(self) -> None:
        check_template(self.instruction, "document", "prompt")
        for name in ("stride", "query_tokens", "document_tokens"):
            check_whole(name, getattr(self, name), low=1)


class LayoutOptions(TypedDict, total=False):
    """The fields of `Layout` as keyword arguments."""

    stride: int
    query_tokens: int
    document_tokens: int
    instruction: str


@dataclass(frozen=True, slots=True)
class Speculation:
    """How retrievals are guessed. None of these options changes the output."""

    prefetch: int = 20  # hits of each search that enter the cache
    capacity: int = 1024  # texts in the cache
    overlap: bool = True  # continue while a worker thread verifies
    stride: int | None = None  # guesses per round; None: chosen by measured costs (OS3), no guesses if they do not pay
    reuse: bool = True  # draft discarded tokens again, and keep the KV caches of the last documents
    sources: int = 8  # cached documents that drafts are copied from


DEFAULT_SPECULATION = Speculation()


def check_layout(options: LayoutOptions) -> Layout:
    """Return the layout with defaults filled in. Raises TypeError or ValueError, which name the option and value."""
    reject_unknown(options, LayoutOptions.__annotations__)
    return Layout(**options)


def check_call(options: CallOptions) -> None:
    """Raise ValueError for options that iterative RAG does not support."""
    if options.n > 1:
        raise ValueError(f"n={options.n} is not supported by iterative RAG; ask once per seed")
    if options.edit_source is not None:
        raise ValueError("edit_source is not supported by iterative RAG: drafts come from the documents")
    # Tokens are decoded in many requests, some of which are rolled back: none of them has the whole output.
    for name in ("logprobs", "trace", "max_time"):
        if (value := getattr(options, name)) not in (None, False):
            raise ValueError(f"{name}={value!r} is not supported by iterative RAG; leave it out")
    if options.acceptance_rule is not None:
        raise ValueError(
            f"rule={options.rule!r} makes the output depend on drafts, and drafts depend on guesses; "
            "leave rule out: outputs then equal those without speculation"
        )
