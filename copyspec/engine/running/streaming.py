"""Streaming: turns decoding steps into chunks of text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial, reduce
from operator import add

from copyspec.decoding.requests import Finish, StepOutput
from copyspec.decoding.rewindable import RewindableSequence
from copyspec.decoding.stats import Stats
from copyspec.engine.results import Chunk
from copyspec.engine.running.jobs import Job
from copyspec.sources import OUTPUT
from copyspec.text.replies.marks import split, unmarked, without_first
from copyspec.text.replies.reader import KINDS
from copyspec.text.stops import held_back

__all__ = ["Assembly", "ChunkMaker", "RewindableSequence", "Stats"]  # the last two for users of `Assembly`


class ChunkMaker:
    """Turns steps into chunks. The texts of a prompt's chunks concatenate to the text of its result."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self._jobs = jobs
        self._texts = [_TextStream(job) for job in jobs]

    def push(self, outputs: Sequence[StepOutput]) -> Iterator[Chunk]:
        """One chunk per row of the step."""
        for output in outputs:
            job = self._jobs[output.row]
            job.add(output)
            text, reasoning, content = self._texts[output.row].push(output.tokens)
            sources = _sources(job, output)
            first = next((source for source in sources if source is not None), None)
            logprobs = tuple(job.logprobs[-len(output.tokens) :]) if output.tokens else ()
            spans = partial(job.final_spans, len(job.tokens))
            yield Chunk(
                text,
                tuple(output.tokens),
                first,
                job.index,
                job.result,
                sources=sources,
                skipped=job.skipped,
                logprobs=logprobs,
                sample=job.request.sampling.sample,
                reasoning=reasoning,
                content=content,
                _spans=spans,
                _before=tuple(job.before),
            )


class _TextStream:
    """The text of one output, holding back characters that may still become a stop string."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._reader = None if job.reply is None else job.reply.reader()
        codec, before = job.codec, job.before
        self._detokenizer = codec.detokenizer(before) if self._reader is None else codec.marked_detokenizer(before)
        self._held = ""  # marked text, if the output has parts
        self._yielded = 0
        self._parts = {kind: 0 for kind in KINDS}  # characters of each that were yielded
        self._is_first = True

    def push(self, tokens: Sequence[int]) -> tuple[str, str, str]:
        """The text that these tokens complete, and the thought and the answer in it."""
        result = self._job.result
        if result is not None:
            reasoning, content = result.reasoning, result.content
            return (
                result.text[self._yielded :],
                reasoning[self._parts["reasoning"] :],
                content[self._parts["content"] :],
            )
        pending = self._held + self._detokenizer.push(tokens)
        text = pending if self._reader is None else unmarked(pending)
        strings = self._job.stop_strings
        keep = held_back(text, strings.strings) if strings is not None else 0
        if self._reader is None:
            piece, self._held = text[: len(text) - keep], text[len(text) - keep :]
        else:
            piece, self._held = split(pending, len(text) - keep)
        new_text = text[: len(text) - keep]
        if new_text and self._is_first:
            self._is_first, whole = False, new_text
            new_text = self._job.without_leading_space(whole)
            self._job.skipped = len(whole) - len(new_text)
            piece = piece if self._reader is None else without_first(piece, self._job.skipped)
        self._yielded += len(new_text)
        if self._reader is None:
            self._parts["content"] += len(new_text)
            return new_text, "", new_text
        pieces = list(self._reader.push(piece))
        reasoning, content = ("".join(part.text for part in pieces if part.kind == kind) for kind in KINDS)
        self._parts["reasoning"] += len(reasoning)
        self._parts["content"] += len(content)
        return new_text, reasoning, content


def _sources(job: Job, output: StepOutput) -> tuple[str | None, ...]:
    """The source name of each token; None for the model's own."""
    names: list[str | None] = []
    for origin in output.origins:
        mapped = job.source_origin(origin)
        name = None if mapped is None else "output" if mapped.source == OUTPUT else job.sources[mapped.source].name
        names.append(name)
    return tuple(names)


class Assembly:
    """Builds the chunks and the result of one output from tokens that are already final."""

    def __init__(self, job: Job) -> None:
        """`job`: the prompt's, which gets the result."""
        self.job = job
        self._maker = ChunkMaker([job])

    def push(self, tokens: Sequence[int], finish: Finish | None = None, stats: Iterable[Stats] = ()) -> Iterator[Chunk]:
        """Add final tokens and yield chunks. `finish` ends the output; `stats` are then the counters of everything that
        was decoded for it, and `job.result` is set."""
        if self.job.stop_strings is not None:
            for token in tokens:
                self.job.stop_strings.push(token)
        total: Stats | None = None
        if finish is not None:
            count = len(self.job.tokens) + len(tokens)
            total = replace(reduce(add, stats, Stats()), num_output_tokens=count)
        return self._maker.push([StepOutput(0, tokens, [None] * len(tokens), finish, total)])
