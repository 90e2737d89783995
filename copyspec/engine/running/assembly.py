"""Outputs assembled by a caller that decodes step by step and may roll back, as chunks and a result."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import reduce
from operator import add
from typing import TYPE_CHECKING

from copyspec.decoding.requests import Finish, StepOutput
from copyspec.decoding.rewindable import RewindableSequence
from copyspec.decoding.stats import Stats
from copyspec.engine.running.streaming import ChunkMaker

if TYPE_CHECKING:
    from copyspec.engine.results import Chunk
    from copyspec.engine.running.jobs import Job

__all__ = ["Assembly", "RewindableSequence", "Stats"]


class Assembly:
    """Builds the chunks and the result of one output from tokens that are already final."""

    def __init__(self, job: Job) -> None:
        """`job`: of the prompt that the result is for."""
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
