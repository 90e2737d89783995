"""Iterative RAG: retrieval every few tokens, with the best document in front of the prompt.

The plain form (`speculation=None`) is iterative RaLM (Ram et al. 2023, arXiv:2302.00083), which waits for every
retrieval. The speculative form (RaLMSpec, Zhang et al. 2024, arXiv:2401.14021) guesses the documents from a cache and
verifies them later, in batches and in parallel with decoding. Both write the same tokens.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from time import perf_counter
from typing import TYPE_CHECKING

from copyspec.common.checks import check_retriever, check_type, shown
from copyspec.engine.asking.call_options import CallOptions, check_options
from copyspec.engine.running.streaming import Assembly
from copyspec.retrievers import Hit, Retriever, Scheduler, Search, SpeculationStats, SpeculativeRetriever
from copyspec.text.codec import Codec, Lead, encodable

from ..instructions import fill
from ..models import chat_option, engine_of
from .citing import Citation, citations
from .options import DEFAULT_SPECULATION, Layout, LayoutOptions, Speculation, check_call, check_layout
from .rounds import Rounds, plainly

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from copyspec import Chunk, Engine, Result
    from copyspec.engine.asking.keywords import GenerateOptions
    from copyspec.engine.running.jobs import Job
    from copyspec.engine.running.streaming import RewindableSequence, Stats

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
        speculation: Speculation | None = DEFAULT_SPECULATION,
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
        made = speculation or DEFAULT_SPECULATION
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
        rounds = Rounds(task, self._submit, self._search_here, self._scheduler)
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
        return [Hit(i, 0.0, texts[i]) for i in self.retriever.cached[-count:][::-1]] if count else []

    def _submit(self, queries: Sequence[str], then: Callable[[Sequence[Hit]], None]) -> Search[list[Hit]]:
        return self.retriever.submit(queries, _best, then)

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
        sent = 0
        try:
            for position in positions:
                tokens, sent = task.tokens[sent:position], position
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
        texts = {document.hit.id: document.hit.text for document in documents}
        self.answer = RAGAnswer(result, documents, citations(result.text, texts), stats, seconds)
        self._pipeline.retriever.count(replace(stats, searches=0, queries=0, search_seconds=0.0))


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


class Documents:
    """Truncates documents for the prompt and tokenises them for copying, with a cache of the last ones. Thread-safe."""

    KEPT = 1024

    def __init__(self, engine: Engine, most_tokens: int) -> None:
        # No methods: a cache of them would keep this object, and the model's tokenizer with it, in a cycle.
        self._shown = lru_cache(self.KEPT)(partial(_shown, engine.codec, most_tokens))
        self._copied = lru_cache(self.KEPT)(partial(_copied, engine.codec, most_tokens))
        self.lead: Lead = " "
        """Text between the last prompt and its output. If it is wrong, the first word of a copy is lost."""

    def shown(self, hit: Hit) -> str:
        """Return the first `most_tokens` tokens of the hit's text, as text."""
        return self._shown(hit.id, hit.text)

    def copied(self, hit: Hit) -> list[int]:
        """Return the first `most_tokens` tokens of the hit's text, tokenised as in an output; none of a text that no
        tokenizer reads, since it is not shown and the output must not depend on it."""
        return self._copied(hit.id, hit.text, self.lead)


def _shown(codec: Codec, most_tokens: int, number: int, text: str) -> str:
    encoded = codec.encode(encodable(text, f"document {number}"))
    if len(encoded.ids) <= most_tokens:
        return text
    if encoded.offsets is None:
        return codec.decode(encoded.ids[:most_tokens])
    return text[: encoded.offsets()[most_tokens - 1][1]]


def _copied(codec: Codec, most_tokens: int, number: int, text: str, lead: Lead) -> list[int]:
    try:
        encodable(text, f"document {number}")
    except ValueError:
        return []
    return codec.encode_copy(text, lead).ids[:most_tokens]


NO_DOCUMENT = Hit(-1, 0.0, "")
"""Stands for the document if nothing was found for a query."""


class Strides:
    """One output; each stride is written with one document in front of the prompt (see `rounds.Task`).

    A stride depends only on the document and the tokens before it. The sequences of the last `contexts` documents stay
    open with their KV caches, so that a document is read again only if it returns after `contexts` others. None of the
    settable attributes changes the output.
    """

    def __init__(
        self,
        engine: Engine,
        prompt: str,
        options: CallOptions,
        layout: Layout,
        documents: Documents,
        guess: Callable[[str], Hit | None],
    ) -> None:
        """`documents`: of this engine and layout, shared between outputs. `guess`: answers queries without the
        knowledge base."""
        self._engine, self._prompt, self._options, self._layout, self._guess = engine, prompt, options, layout, guess
        self._ids = engine.codec.encode(prompt).ids
        self._documents = documents
        self.contexts = 1
        self.copies = True  # draft by copying from the prompt, its document and `sources`
        self.reuses_text = False  # draft discarded tokens again
        self.sources: Callable[[], Sequence[Hit]] = tuple
        self.tokens: list[int] = []
        self.shown: list[tuple[int, Hit]] = []  # position and document of each stride
        self._hit = NO_DOCUMENT
        self._earlier: list[int] = []  # a discarded output, whose tokens may be right after all
        self._open: OrderedDict[int, RewindableSequence] = OrderedDict()
        self._closed_stats: list[Stats] = []
        self._last: RewindableSequence | None = None  # the sequence that ended the output; None: not ended

    @property
    def position(self) -> int:
        """Number of output tokens so far."""
        return len(self.tokens)

    def push(self, assembly: Assembly, tokens: Sequence[int], *, is_last: bool) -> Iterator[Chunk]:
        """Return the chunks of the next verified tokens. `is_last`: they end the output, and carry its counters."""
        if not is_last or self._last is None:
            return assembly.push(tokens)
        stats = [*self._closed_stats, *(stride.stats for stride in self._open.values())]
        return assembly.push(tokens, self._last.finish, stats)

    @property
    def is_finished(self) -> bool:
        """Whether the output ends with its last token."""
        return self._last is not None

    def query(self) -> str:
        """Return the last tokens of prompt and output, as text."""
        wanted = self._layout.query_tokens
        return self._engine.codec.decode([*self._ids, *self.tokens[-wanted:]][-wanted:])

    def guess(self, query: str) -> Hit | None:
        """Guess a document without the knowledge base."""
        return self._guess(query)

    def same(self, guess: Hit, truth: Hit) -> bool:
        """Whether both are the same document."""
        return guess.id == truth.id

    def reads(self, answer: Hit) -> bool:
        """Whether the document needs a prefill."""
        return answer.id not in self._open

    def take(self, answer: Hit) -> None:
        """Use this document for the next stride."""
        self._hit = answer
        self.shown.append((self.position, answer))

    def advance(self, abandon: Callable[[], bool]) -> bool:
        """Write the next stride. Returns whether the output ends with it."""
        context = self._context()
        context.go_to(self.tokens, self._expected())
        end = len(self.tokens) + self._layout.stride
        while len(context.output) < end and context.finish is None and not abandon():
            context.step()
        self.tokens = list(context.output[:end])
        self._last = context if context.finish is not None and len(context.output) <= end else None
        if self.reuses_text and len(context.output) > end:
            self._earlier = list(context.output)
        return self.is_finished

    def back(self, position: int) -> None:
        """Discard the tokens after `position`."""
        if self.reuses_text and self._earlier[: len(self.tokens)] != self.tokens:
            self._earlier = self.tokens
        self.tokens = self.tokens[:position]
        self._last = None
        while self.shown and self.shown[-1][0] >= position:
            self.shown.pop()

    def close(self) -> None:
        """Free the KV caches."""
        while self._open:
            self._leave(self._open.popitem()[1])

    def job(self) -> Job:
        """Return the job that makes a result of the output, for the prompt without a document."""
        jobs, _ = self._engine.jobs(self._prompt, None, self._options)
        return jobs[0]

    def _context(self) -> RewindableSequence:
        """The sequence of document, prompt and output so far."""
        context = self._open.get(self._hit.id)
        if context is None:
            while len(self._open) >= self.contexts:
                self._leave(self._open.popitem(last=False)[1])
            hit = self._hit
            context = self._open[hit.id] = self._engine.rewindable(lambda: self._job(hit), self._options)
        self._open.move_to_end(self._hit.id)
        return context

    def _leave(self, context: RewindableSequence) -> None:
        self._closed_stats.append(context.stats)
        context.close()

    def _job(self, hit: Hit) -> Job:
        documents = self._documents
        prompt = fill(self._layout.instruction, document=documents.shown(hit), prompt=self._prompt)
        others = [documents.copied(other) for other in self.sources() if other.id != hit.id] if self.copies else []
        jobs, _ = self._engine.jobs(prompt, None, self._options, earlier=others)
        (job,) = jobs
        if not self.copies:
            job.request = replace(job.request, drafter=None)
            return job
        starts_text = bool(self._engine.model.config.is_encoder_decoder)
        documents.lead = self._engine.codec.lead(job.request.prompt, starts_text=starts_text)
        return job

    def _expected(self) -> list[int]:
        """The tokens that were written here with another document."""
        count = len(self.tokens)
        return self._earlier[count:] if self._earlier[:count] == self.tokens else []
