"""Cited answers: the answer of a chain, with the parts that were copied from documents."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar, cast

from langchain_core.messages import BaseMessage
from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.runnables.base import coerce_to_runnable

from .calls import ANSWERED, Answered
from .documents import MIN_CHARACTERS, copied_parts

if TYPE_CHECKING:
    from langchain_core.callbacks import AsyncCallbackManagerForChainRun, CallbackManagerForChainRun

_Piece = TypeVar("_Piece")


@dataclass(frozen=True, slots=True)
class DocumentCitation:
    """A part of an answer that was copied from a document."""

    text: str
    start: int  # characters of the answer
    end: int
    document: object  # as it was retrieved or passed
    document_start: int | None  # characters of the document's text; None if it was given as token ids
    document_end: int | None


@dataclass(frozen=True, slots=True)
class CitedAnswer:
    """An answer with its citations, in its order."""

    text: str
    citations: tuple[DocumentCitation, ...]

    @property
    def documents(self) -> tuple[object, ...]:
        """Return the documents that were copied from, each once, in the order of the answer."""
        documents: list[object] = []
        for citation in self.citations:
            if not any(citation.document is document for document in documents):
                documents.append(citation.document)
        return tuple(documents)

    def __str__(self) -> str:
        return self.text

    def __add__(self, later: CitedAnswer) -> CitedAnswer:
        """Join pieces of a stream. Citations count characters from the beginning of the answer."""
        return CitedAnswer(self.text + later.text, self.citations + later.citations)


def with_citations(
    chain: Runnable[object, object] | Callable[[object], object], *, min_characters: int = MIN_CHARACTERS
) -> Runnable[object, CitedAnswer]:
    """Wrap `chain` so that it returns a `CitedAnswer`, with the citations of the last copyspec model that it calls.

    A citation is a fact about the texts, not a claim of the model: the document has these words at that place.
    Copies of fewer than `min_characters` characters are left out. A stream yields pieces with the citations that have
    become final: they end in the text so far, and no later word can extend them. The sum of all pieces is the result of
    `invoke`. Options of a call or of `bind` go to the chain. Raises TypeError for anything but a chain.
    """
    return _Citing(coerce_to_runnable(chain), min_characters)


class _Citing(Runnable[object, CitedAnswer]):
    """A chain and the citations of its answers."""

    def __init__(self, chain: Runnable[object, object], min_characters: int) -> None:
        self.name = "with_citations"
        self._chain, self._min_characters = chain, min_characters

    def invoke(self, input: object, config: RunnableConfig | None = None, **kwargs: object) -> CitedAnswer:
        return self._call_with_config(self._invoke, input, config, **kwargs)  # type: ignore[arg-type]

    async def ainvoke(self, input: object, config: RunnableConfig | None = None, **kwargs: object) -> CitedAnswer:
        return await self._acall_with_config(self._ainvoke, input, config, **kwargs)  # type: ignore[arg-type]

    def stream(self, input: object, config: RunnableConfig | None = None, **kwargs: object) -> Iterator[CitedAnswer]:
        yield from self.transform(iter([input]), config, **kwargs)

    async def astream(
        self, input: object, config: RunnableConfig | None = None, **kwargs: object
    ) -> AsyncIterator[CitedAnswer]:
        async def alone() -> AsyncIterator[object]:
            yield input

        async with aclosing(_generator(self.atransform(alone(), config, **kwargs))) as pieces:
            async for piece in pieces:
                yield piece

    def transform(
        self, input: Iterator[object], config: RunnableConfig | None = None, **kwargs: object
    ) -> Iterator[CitedAnswer]:
        yield from self._transform_stream_with_config(input, self._transform, config, **kwargs)  # type: ignore[arg-type]

    async def atransform(
        self, input: AsyncIterator[object], config: RunnableConfig | None = None, **kwargs: object
    ) -> AsyncIterator[CitedAnswer]:
        pieces = self._atransform_stream_with_config(input, self._atransform, config, **kwargs)  # type: ignore[arg-type]
        async with aclosing(_generator(pieces)) as cited:
            async for piece in cited:
                yield piece

    def _invoke(
        self, input_: object, run_manager: CallbackManagerForChainRun, config: RunnableConfig, **options: object
    ) -> CitedAnswer:
        with _collected() as answered:
            output = self._chain.invoke(input_, config, **options)
        return CitedAnswer(text := _shown(output), _cited(text, answered, self._min_characters))

    async def _ainvoke(
        self, input_: object, run_manager: AsyncCallbackManagerForChainRun, config: RunnableConfig, **options: object
    ) -> CitedAnswer:
        with _collected() as answered:
            output = await self._chain.ainvoke(input_, config, **options)
        return CitedAnswer(text := _shown(output), _cited(text, answered, self._min_characters))

    def _transform(
        self,
        inputs: Iterator[object],
        run_manager: CallbackManagerForChainRun,
        config: RunnableConfig,
        **options: object,
    ) -> Iterator[CitedAnswer]:
        with _collected() as answered:
            pieces = _Pieces(answered, self._min_characters)
            for output in self._chain.transform(inputs, config, **options):
                yield from pieces.push(output)
            yield pieces.finish()

    async def _atransform(
        self,
        inputs: AsyncIterator[object],
        run_manager: AsyncCallbackManagerForChainRun,
        config: RunnableConfig,
        **options: object,
    ) -> AsyncIterator[CitedAnswer]:
        with _collected() as answered:
            pieces = _Pieces(answered, self._min_characters)
            async with aclosing(_generator(self._chain.atransform(inputs, config, **options))) as outputs:
                async for output in outputs:
                    for piece in pieces.push(output):
                        yield piece
            yield pieces.finish()


class _Pieces:
    """Turns the stream of a chain into cited pieces."""

    def __init__(self, answered: Sequence[Answered], min_characters: int) -> None:
        self._answered, self._min_characters = answered, min_characters
        self._text = ""
        self._given: list[DocumentCitation] = []
        self._other: object = None  # sum of the pieces that are not text

    def push(self, output: object) -> Iterator[CitedAnswer]:
        if not isinstance(output, (str, BaseMessage)):
            try:
                self._other = output if self._other is None else self._other + output  # type: ignore[operator]
            except TypeError:
                self._other = output
            return
        piece = _shown(output)
        self._text += piece
        if piece:
            yield CitedAnswer(piece, self._new(is_whole=False))

    def finish(self) -> CitedAnswer:
        """Return the rest: citations settled by the end of the answer, and an answer that is not text."""
        piece = "" if self._other is None else _shown(self._other)
        self._text += piece
        return CitedAnswer(piece, self._new(is_whole=True))

    def _new(self, *, is_whole: bool) -> tuple[DocumentCitation, ...]:
        citations = _cited(self._text, self._answered, self._min_characters, is_whole=is_whole)
        new = tuple(citation for citation in citations if citation not in self._given)
        self._given += new
        return new


@contextmanager
def _collected() -> Iterator[list[Answered]]:
    answered: list[Answered] = []
    token = ANSWERED.set(answered)
    try:
        yield answered
    finally:
        with suppress(ValueError):  # an abandoned stream may end in another context
            ANSWERED.reset(token)


def _generator(pieces: AsyncIterator[_Piece]) -> AsyncGenerator[_Piece, None]:
    return cast("AsyncGenerator[_Piece, None]", pieces)


def _shown(output: object) -> str:
    return output.text if isinstance(output, BaseMessage) else str(output)


def _cited(
    text: str, answered: Sequence[Answered], min_characters: int, *, is_whole: bool = True
) -> tuple[DocumentCitation, ...]:
    """The citations of a text, in order. Unless the text `is_whole`, only those that end in it."""
    if not answered:
        return ()
    last = answered[-1]
    # A parser may have stripped the answer, so its offsets are shifted.
    before = last.text.rfind(text)  # the same words may stand in a thought
    if before < 0:
        return ()
    after = before + len(text)
    citations: list[DocumentCitation] = []
    for part in copied_parts(last.text, last.spans, last.references, min_characters=min_characters):
        start, end = max(part.start, before), min(part.end, after)
        if part.reference is None or (not is_whole and part.end > after) or end - start < min_characters:
            continue
        place: tuple[int | None, int | None] = (None, None)
        if part.document_start is not None:
            place = part.document_start + start - part.start, part.document_start + end - part.start
        citations.append(
            DocumentCitation(text[start - before : end - before], start - before, end - before, part.reference, *place)
        )
    return tuple(citations)
