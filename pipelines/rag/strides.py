"""Iterative RAG as a `guesses.Task` for the rounds of speculation: one step writes one stride of tokens."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING

from copyspec.retrievers import Hit
from copyspec.text.codec import Codec, Lead, encodable

from ..instructions import fill
from .options import Layout

if TYPE_CHECKING:
    from copyspec import Chunk, Engine
    from copyspec.engine.asking.call_options import CallOptions
    from copyspec.engine.running.jobs import Job
    from copyspec.engine.running.streaming import Assembly, RewindableSequence, Stats


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
    """One output; each stride is written with one document in front of the prompt (see `guesses.Task`).

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
        stats = [*self._closed_stats, *(each.stats for each in self._open.values())]
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
