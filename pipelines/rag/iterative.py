"""Iterative RAG: retrieval every few tokens, with the best document in front of the prompt.

The plain form (`speculation=None`) is iterative RaLM (Ram et al. 2023, arXiv:2302.00083), which waits for every
retrieval. The speculative form (RaLMSpec, Zhang et al. 2024, arXiv:2401.14021) guesses the documents from a cache and
verifies them later, in batches and in parallel with decoding. Both write the same tokens.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import TYPE_CHECKING

from copyspec.common.checks import check_retriever, check_type, shown
from copyspec.engine.asking.call_options import CallOptions, check_options
from copyspec.engine.running.streaming import Assembly
from copyspec.retrievers import Hit, Retriever, Scheduler, Search, SpeculationStats, SpeculativeRetriever

from ..models import chat_option, engine_of
from .citing import Citation, citations
from .options import ON, LayoutOptions, Speculation, check_call, check_layout
from .rounds import Rounds, plainly
from .strides import NO_DOCUMENT, Documents, Strides

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from copyspec import Chunk, Result
    from copyspec.engine.asking.keywords import GenerateOptions
    from copyspec.engine.running.jobs import Job

    from ..models import ModelLike

CONTEXTS = 4
"""Documents whose KV caches are kept, as retrieval alternates between few. A cache of 300 tokens is small."""


@dataclass(frozen=True, slots=True)
class ShownDocument:
    """The document that was in front of the prompt while output tokens start..end were written."""

    start: int
    end: int
    hit: Hit


@dataclass(frozen=True, slots=True)
class RAGAnswer:
    """One output."""

    result: Result
    """As returned by `generate` for the prompt without a document; its spans are in `citations` instead."""
    documents: tuple[ShownDocument, ...]
    citations: tuple[Citation, ...]
    """Parts of the text that occur word for word in the documents."""
    speculation: SpeculationStats
    seconds: float

    @property
    def text(self) -> str:
        """The output's text."""
        return self.result.text


class IterativeRAG:
    """Generates with the best document in front of the prompt, retrieved for the last tokens every `stride` tokens.

    `retriever`: any; a SpeculativeRetriever shares its cache with this pipeline, and `close` leaves it open.
    `speculation=None`: the plain form. Thread-safe.
    """

    def __init__(
        self,
        retriever: Retriever,
        *,
        model: ModelLike = None,
        speculation: Speculation | None = ON,
        **layout: Unpack[LayoutOptions],
    ) -> None:
        """Raises ValueError for numbers below one, and for an instruction without {document} or {prompt}; TypeError for
        arguments of another type."""
        self.layout = check_layout(layout)
        check_retriever("retriever", retriever)
        known = speculation is None or isinstance(speculation, Speculation)
        check_type(known, "speculation", speculation, "a Speculation, or None for the plain form")
        self.engine = engine_of(model)
        self.speculation = speculation
        self._owns = not isinstance(retriever, SpeculativeRetriever)
        made = speculation or ON
        self.retriever = (
            retriever
            if isinstance(retriever, SpeculativeRetriever)
            else SpeculativeRetriever(retriever, prefetch=made.prefetch, capacity=made.capacity)
        )
        self._documents = Documents(self.engine, self.layout.document_tokens)
        self._scheduler = Scheduler(overlaps=made.overlap, stride=made.stride)

    def __call__(self, prompt: str, **options: Unpack[GenerateOptions]) -> RAGAnswer:
        """Return the whole answer. `options`: as for `generate`, without n and rules that let drafts decide."""
        stream = self.stream(prompt, **options)
        for _ in stream:
            pass
        assert stream.answer is not None
        return stream.answer

    def stream(self, prompt: str, **options: Unpack[GenerateOptions]) -> RAGStream:
        """Return the answer in pieces, as they are verified. Closing the stream ends it and frees the KV caches."""
        if not isinstance(prompt, str):
            raise TypeError(f"prompt must be a str, got {shown(prompt)}")
        completed = self.engine.with_model_defaults(check_options({"chat": chat_option(self.engine), **options}))
        checked = completed.seeded(1)  # every round makes a new request, and all must use one seed
        check_call(checked)
        task = self._task(prompt, checked)
        return RAGStream(self, task, task.job())

    def close(self) -> None:
        """End the worker thread, unless the retriever was given as a SpeculativeRetriever."""
        if self._owns:
            self.retriever.close()

    def __enter__(self) -> IterativeRAG:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def positions(self, task: Strides) -> tuple[Iterator[int], Rounds[str, Hit] | None]:
        """Return an iterator over verified positions, which writes the output, and the rounds with their counters."""
        if self.speculation is None:
            return plainly(task, self._search), None
        rounds = Rounds(task, self._submit, self._scheduler, search=self._search_here)
        return rounds.run(), rounds

    def _task(self, prompt: str, options: CallOptions) -> Strides:
        copies, speculation = options.drafts, self.speculation
        if speculation is not None and speculation.reuse and not copies:
            options = replace(options, drafter="auto", max_draft_nodes=None)
        task = Strides(self.engine, prompt, options, self.layout, self._documents, self.retriever.guess)
        task.copies = copies
        if speculation is not None:
            task.reuses_text = speculation.reuse
            task.contexts = CONTEXTS if speculation.reuse else 1
            task.sources = lambda: self._sources(speculation.sources)
        return task

    def _sources(self, count: int) -> list[Hit]:
        """The documents that were found or guessed last."""
        texts = self.retriever.texts
        return [Hit(each, 0.0, texts[each]) for each in self.retriever.cached[-count:][::-1]] if count else []

    def _submit(self, queries: Sequence[str]) -> _BestHits:
        return _BestHits(self.retriever.submit(queries))

    def _search_here(self, queries: Sequence[str]) -> Search[list[Hit]]:
        return Search.here(lambda: [_best(hits) for hits in self.retriever.search_here(queries)])

    def _search(self, queries: Sequence[str]) -> Search[list[Hit]]:
        """Search in the caller's thread, for as many hits as the speculative form requests: with HNSW, the best hit may
        depend on that number."""
        base, count = self.retriever.base, self.retriever.prefetch
        return Search.here(lambda: [_best(hits) for hits in base.search_batch(queries, count)])


class RAGStream:
    """The chunks of one answer as they are verified; `answer` is set after the last one."""

    def __init__(self, pipeline: IterativeRAG, task: Strides, job: Job) -> None:
        self.answer: RAGAnswer | None = None
        self._pipeline, self._task, self._assembly = pipeline, task, Assembly(job)
        self._chunks = self._run()

    def __iter__(self) -> Iterator[Chunk]:
        return self

    def __next__(self) -> Chunk:
        return next(self._chunks)

    def close(self) -> None:
        """Stop the answer."""
        self._chunks.close()

    def _run(self) -> Generator[Chunk, None, None]:
        task, assembly, started = self._task, self._assembly, perf_counter()
        positions, rounds = self._pipeline.positions(task)
        given = 0
        try:
            for position in positions:
                tokens, given = task.tokens[given:position], position
                is_last = task.is_finished and position == task.position
                if is_last:
                    task.close()
                if tokens or is_last:
                    yield from task.push(assembly, tokens, is_last=is_last)
                if is_last:
                    self._finish(rounds.stats if rounds else SpeculationStats(), perf_counter() - started)
                    return
        finally:
            task.close()

    def _finish(self, stats: SpeculationStats, seconds: float) -> None:
        result = self._assembly.job.result
        assert result is not None
        documents = _merged(self._task)
        texts = {each.hit.id: each.hit.text for each in documents}
        self.answer = RAGAnswer(result, documents, citations(result.text, texts), stats, seconds)
        self._pipeline.retriever.count(replace(stats, searches=0, queries=0, search_seconds=0.0))


class _BestHits:
    """The best hit of each query of a search."""

    def __init__(self, search: Search[list[list[Hit]]]) -> None:
        self._search = search

    def done(self) -> bool:
        return self._search.done()

    def result(self) -> list[Hit]:
        return [_best(hits) for hits in self._search.result()]

    @property
    def seconds(self) -> float:
        return self._search.seconds

    def cancel(self) -> None:
        self._search.cancel()


def _best(hits: Sequence[Hit]) -> Hit:
    return hits[0] if hits else NO_DOCUMENT


def _merged(task: Strides) -> tuple[ShownDocument, ...]:
    """The documents with the output spans that they were shown for; adjacent spans of one document are merged."""
    merged: list[ShownDocument] = []
    ends = [position for position, _ in task.shown[1:]] + [task.position]
    for (start, hit), end in zip(task.shown, ends, strict=True):
        if merged and merged[-1].hit.id == hit.id:
            merged[-1] = replace(merged[-1], end=end)
        elif start < end:
            merged.append(ShownDocument(start, end, hit))
    return tuple(merged)
