"""Streaming: turns decoding steps into chunks of text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from copyspec.decoding.requests import StepOutput
from copyspec.engine.jobs import Job
from copyspec.engine.results import Chunk
from copyspec.sources import OUTPUT
from copyspec.text.stops import held_back


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
            text = self._texts[output.row].push(output.tokens)
            sources = _sources(job, output)
            first = next((source for source in sources if source is not None), None)
            logprobs = tuple(job.logprobs[-len(output.tokens) :]) if output.tokens else ()
            spans = partial(job.settled_spans, len(job.tokens))
            yield Chunk(
                text,
                tuple(output.tokens),
                first,
                job.index,
                job.result,
                sources=sources,
                skipped=job.skipped,
                logprobs=logprobs,
                _spans=spans,
            )


class _TextStream:
    """The text of one output, holding back characters that may still become a stop string."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._detokenizer = job.codec.detokenizer()
        self._held = ""
        self._given = 0
        self._is_first = True

    def push(self, tokens: Sequence[int]) -> str:
        result = self._job.result
        if result is not None:
            return result.text[self._given :]
        text = self._held + self._detokenizer.push(tokens)
        strings = self._job.stop_strings
        keep = held_back(text, strings.strings) if strings is not None else 0
        piece = text[: len(text) - keep]
        self._held = text[len(text) - keep :]
        if piece and self._is_first:
            self._is_first, whole = False, piece
            piece = self._job.without_leading_space(whole)
            self._job.skipped = len(whole) - len(piece)
        self._given += len(piece)
        return piece


def _sources(job: Job, output: StepOutput) -> tuple[str | None, ...]:
    """The source name of each token; None for the model's own."""
    names: list[str | None] = []
    for found in output.origins:
        origin = job.source_origin(found)
        name = None if origin is None else "output" if origin.source == OUTPUT else job.sources[origin.source].name
        names.append(name)
    return tuple(names)
