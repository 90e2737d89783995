"""Outputs that somebody else puts together: written on demand, taken back, and made into chunks and a result."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import reduce
from operator import add
from typing import TYPE_CHECKING

from copyspec.decoding.requests import Finish, StepOutput
from copyspec.decoding.sequence import RewindableSequence
from copyspec.decoding.stats import Stats
from copyspec.engine.streaming import ChunkMaker

if TYPE_CHECKING:
    from copyspec.engine.jobs import Job
    from copyspec.engine.results import Chunk

__all__ = ["Assembly", "RewindableSequence", "Stats"]


class Assembly:
    """Chunks and the result of one output, of tokens that are certain by now."""

    def __init__(self, job: Job) -> None:
        """`job`: of the prompt that the result is for."""
        self.job = job
        self._maker = ChunkMaker([job])

    def push(self, tokens: Sequence[int], finish: Finish | None = None, stats: Iterable[Stats] = ()) -> Iterator[Chunk]:
        """The next tokens as chunks; with `finish`, and the counters of all that wrote the output, `job.result`."""
        strings = self.job.stop_strings
        for token in tokens if strings is not None else ():
            assert strings is not None
            strings.push(token)
        total: Stats | None = None
        if finish is not None:
            count = len(self.job.tokens) + len(tokens)
            total = replace(reduce(add, stats, Stats()), num_output_tokens=count)
        return self._maker.push([StepOutput(0, tokens, [None] * len(tokens), finish, total)])
