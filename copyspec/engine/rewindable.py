"""Outputs that somebody else puts together: written on demand, taken back, and made into chunks and a result."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import reduce
from operator import add
from typing import TYPE_CHECKING

from copyspec.decoding.requests import Finish, RowStats, StepOutput
from copyspec.engine.streaming import ChunkMaker

if TYPE_CHECKING:
    from copyspec.decoding.resumable import Resumable
    from copyspec.engine.jobs import Job
    from copyspec.engine.results import Chunk


Counters = RowStats
"""Of what was decoded; they add up."""


class Rewindable:
    """One prompt's output, which may be taken back to any earlier token and is written from there: `go_to` any
    prefix, `step` until `output` is as long as is wanted. Made by `Engine.rewindable`."""

    def __init__(self, inner: Resumable) -> None:
        self._inner = inner
        self.go_to = inner.go_to
        self.step = inner.step
        self.close = inner.close

    @property
    def output(self) -> Sequence[int]:
        """Token ids: the prefix that was gone to, and what is known behind it."""
        return self._inner.output

    @property
    def finish(self) -> Finish | None:
        """Why the output ends with its last token, for `Assembly.push`; None where it goes on."""
        return self._inner.finish

    @property
    def stats(self) -> Counters:
        """Counters of all that was decoded here, what was taken back included."""
        return self._inner.stats


class Assembly:
    """Chunks and the result of one output, of tokens that are certain by now."""

    def __init__(self, job: Job) -> None:
        """`job`: of the prompt that the result is for."""
        self.job = job
        self._maker = ChunkMaker([job])

    def push(
        self, tokens: Sequence[int], finish: Finish | None = None, stats: Iterable[Counters] = ()
    ) -> Iterator[Chunk]:
        """The next tokens as chunks; with `finish`, and the counters of all that wrote the output, `job.result`."""
        strings = self.job.stop_strings
        for token in tokens if strings is not None else ():
            assert strings is not None
            strings.push(token)
        total: RowStats | None = None
        if finish is not None:
            count = len(self.job.tokens) + len(tokens)
            total = replace(reduce(add, stats, RowStats()), output_tokens=count)
        return self._maker.push([StepOutput(0, tokens, [None] * len(tokens), finish, total)])
