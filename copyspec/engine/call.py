"""A call: prompts that an engine has taken, and their results, whole or in pieces, for a thread or a task."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING

from copyspec.engine.streaming import ChunkMaker

if TYPE_CHECKING:
    from copyspec.decoding.requests import StepOutput
    from copyspec.engine.jobs import Job
    from copyspec.engine.results import Chunk, Result
    from copyspec.engine.scheduler import CallScheduler
    from copyspec.engine.tickets import Ticket


class CancelledCallError(RuntimeError):
    """Raised where somebody waits for a call that was cancelled."""


class Call:
    """Prompts in an engine's queue, as `Engine.submit` returns them. One of the four ways to wait is used, once.

    They are decoded while somebody waits for them, or for other calls that share their passes.
    """

    def __init__(
        self,
        scheduler: CallScheduler,
        ticket: Ticket,
        jobs: Sequence[Job],
        *,
        single: bool,
        timeout: float | None = None,
    ) -> None:
        """`single`: there was one prompt alone, no list of them; `timeout`: seconds after which waiting ends."""
        self.jobs = jobs
        self.is_single = single
        self._scheduler, self._ticket, self._timeout = scheduler, ticket, timeout

    def results(self) -> list[Result]:
        """A result per prompt, with its samples where there are several. Raises TimeoutError after the call's timeout,
        CancelledCallError where another thread cancelled it."""
        for outputs in self._scheduler.steps(self._ticket, self._timeout):
            self._add(outputs)
        return self._results()

    def answer(self) -> Result | list[Result]:
        """The result of one prompt alone, or the results of a list."""
        results = self.results()
        return results[0] if self.is_single else results

    async def aresults(self) -> list[Result]:
        """As `results`, for asyncio. Cancelling the task ends the decoding within one step."""
        async with aclosing(self._scheduler.asteps(self._ticket, self._timeout)) as steps:
            async for outputs in steps:
                self._add(outputs)
        return self._results()

    def chunks(self) -> Chunks:
        """The outputs in pieces: one per row and step, and the row's result with its last one."""
        self.check_stream()
        return Chunks(self, self._scheduler.steps(self._ticket, self._timeout), ChunkMaker(self.jobs))

    async def achunks(self) -> AsyncGenerator[Chunk, None]:
        """As `chunks`, for asyncio. Cancelling the task ends the decoding within one step."""
        self.check_stream()
        maker = ChunkMaker(self.jobs)
        async with aclosing(self._scheduler.asteps(self._ticket, self._timeout)) as steps:
            async for outputs in steps:
                for chunk in maker.push(outputs):
                    yield chunk

    def cancel(self) -> None:
        """Ends the decoding, within one step where a pass runs. Whoever waits gets a CancelledCallError."""
        self._scheduler.cancel(self._ticket, CancelledCallError("the call was cancelled"))

    def drop(self) -> None:
        """As `cancel`, without an error: nobody waits."""
        self._scheduler.cancel(self._ticket)

    def __del__(self) -> None:
        self.drop()

    def _add(self, outputs: Sequence[StepOutput]) -> None:
        for output in outputs:
            self.jobs[output.row].add(output)

    def _results(self) -> list[Result]:
        results = [job.result for job in self.jobs if job.result is not None]
        assert len(results) == len(self.jobs), "decoding ended before its rows did"
        n = self.jobs[0].options.n if self.jobs else 1
        if n == 1:
            return results
        groups = [results[start : start + n] for start in range(0, len(results), n)]
        return [replace(group[0], samples=tuple(group)) for group in groups]

    def check_stream(self) -> None:
        """Raises ValueError where the outputs cannot come in pieces."""
        n = self.jobs[0].options.n if self.jobs else 1
        if n > 1:
            raise ValueError(f"n={n} cannot be streamed; leave stream out, or stream once per seed")


class Chunks(Iterator["Chunk"]):
    """The pieces of a call's outputs. Closing them, or dropping them, ends the decoding."""

    def __init__(self, call: Call, steps: Iterator[list[StepOutput]], maker: ChunkMaker) -> None:
        self._call = call
        self._chunks: Iterator[Chunk] = (chunk for outputs in steps for chunk in maker.push(outputs))

    def __next__(self) -> Chunk:
        return next(self._chunks)

    def close(self) -> None:
        """Ends the decoding; there are no more chunks."""
        self._chunks = iter(())
        self._call.drop()
