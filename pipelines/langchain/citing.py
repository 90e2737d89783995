"""Cited answers: what a chain answered, and which of its words stand in which document."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from langchain_core.messages import BaseMessage
from langchain_core.runnables import Runnable, RunnableConfig, RunnableLambda
from langchain_core.runnables.base import coerce_to_runnable

from .calls import ANSWERED, Answered
from .documents import copied_parts, text_of

MIN_CHARACTERS = 12
"""Shorter copies are words that any text holds, not quotes."""


@dataclass(frozen=True, slots=True)
class Citation:
    """A stretch of an answer that was copied from a document."""

    text: str
    start: int  # characters of the answer
    end: int
    document: object  # as it was retrieved or handed over
    document_start: int | None  # characters of the document's text; None where it was given as token ids
    document_end: int | None


@dataclass(frozen=True, slots=True)
class CitedAnswer:
    """An answer with its citations, in its order."""

    text: str
    citations: tuple[Citation, ...]

    @property
    def documents(self) -> tuple[object, ...]:
        """The documents that were copied from, each once, in the order of the answer."""
        found: list[object] = []
        for citation in self.citations:
            if not any(citation.document is each for each in found):
                found.append(citation.document)
        return tuple(found)

    def __str__(self) -> str:
        return self.text


def with_citations(
    chain: Runnable[object, object] | Callable[[object], object], *, min_characters: int = MIN_CHARACTERS
) -> Runnable[object, CitedAnswer]:
    """`chain`, whose answer comes as a `CitedAnswer`; the last copyspec model that it asks is the one cited.

    A citation is a fact about the texts, not a claim of the model: the words stand in the document at that place.
    Copies of fewer than `min_characters` characters are left out. Raises TypeError for what is no chain.
    """
    asked = coerce_to_runnable(chain)

    def invoke(given: object, config: RunnableConfig) -> CitedAnswer:
        with _collected() as answered:
            output = asked.invoke(given, config)
        return _cited(output, answered, min_characters)

    async def ainvoke(given: object, config: RunnableConfig) -> CitedAnswer:
        with _collected() as answered:
            output = await asked.ainvoke(given, config)
        return _cited(output, answered, min_characters)

    return RunnableLambda(invoke, ainvoke, name="with_citations")


@contextmanager
def _collected() -> Iterator[list[Answered]]:
    answered: list[Answered] = []
    token = ANSWERED.set(answered)
    try:
        yield answered
    finally:
        ANSWERED.reset(token)


def _cited(output: object, answered: Sequence[Answered], min_characters: int) -> CitedAnswer:
    text = output.text if isinstance(output, BaseMessage) else str(output)
    if not answered:
        return CitedAnswer(text, ())
    last = answered[-1]
    # A parser may have stripped the answer: its offsets are moved along.
    before = last.result.text.find(text)
    if before < 0:
        return CitedAnswer(text, ())
    citations: list[Citation] = []
    for part in copied_parts(last.result, last.references):
        if part.reference is None:
            continue
        copied = text[max(part.start - before, 0) : max(part.end - before, 0)]
        quote = copied.strip()  # the first token may hold the space before its word
        if len(quote) < min_characters:
            continue
        start = text.index(quote, max(part.start - before, 0))
        place = _exact(quote, part.reference, part.place.start_char)
        citations.append(Citation(quote, start, start + len(quote), part.reference, *place))
    return CitedAnswer(text, tuple(citations))


def _exact(quote: str, reference: object, near: int | None) -> tuple[int | None, int | None]:
    """Where the quote stands in the reference."""
    text = text_of(reference)
    if text is None or near is None:
        return None, None
    at = text.find(quote, max(0, near - 1))
    return (at, at + len(quote)) if at >= 0 else (None, None)
