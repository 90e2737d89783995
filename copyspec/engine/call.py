"""A call: the prompts an engine has accepted, and the ways to wait for their results (whole or streamed, thread or
task)."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, NoReturn

from copyspec.engine.streaming import ChunkMaker

if TYPE_CHECKING:
    from copyspec.decoding.requests import StepOutput
    from copyspec.engine.jobs import Job
    from copyspec.engine.results import Chunk, Result
    from copyspec.engine.scheduler import CallScheduler
    from copyspec.engine.tickets import Ticket


class CancelledCallError(RuntimeError):
    """Raised in a caller that waits for a cancelled call."""


@dataclass(eq=False, repr=False)
class Call:
    """Prompts in an engine's queue, as returned by `Engine.submit`. Use one of the four ways to wait, once.

    Decoding advances only while somebody waits for this call or for another that shares its batch.
    """

    _scheduler: CallScheduler
    _ticket: Ticket
    jobs: Sequence[Job]
    is_single: bool  # a single prompt was given, not a list
    _timeout: float | None = None  # seconds after which waiting raises TimeoutError

    def results(self) -> list[Result]:
        """Wait for one result per prompt, each with its samples if there are several. Raises TimeoutError after the
        call's timeout and CancelledCallError if another thread cancelled the call."""
        for output in chain.from_iterable(self._scheduler.steps(self._ticket, self._timeout)):
            self.jobs[output.row].add(output)
        return self._results()

    async def aresults(self) -> list[Result]:
        """`results` for asyncio. Cancelling the task ends decoding within one step."""
        async with aclosing(self._scheduler.asteps(self._ticket, self._timeout)) as steps:
            async for outputs in steps:
                for output in outputs:
                    self.jobs[output.row].add(output)
        return self._results()

    def chunks(self) -> Chunks:
        """Stream the outputs: one chunk per row and step; the last chunk of a row carries its result."""
        self.check_stream()
        return Chunks(self, self._scheduler.steps(self._ticket, self._timeout), ChunkMaker(self.jobs))

    async def achunks(self) -> AsyncGenerator[Chunk, None]:
        """`chunks` for asyncio. Cancelling the task ends decoding within one step."""
        self.check_stream()
        maker = ChunkMaker(self.jobs)
        async with aclosing(self._scheduler.asteps(self._ticket, self._timeout)) as steps:
            async for outputs in steps:
                for chunk in maker.push(outputs):
                    yield chunk

    def cancel(self) -> None:
        """End decoding, within one step if a forward pass is running. A waiting caller gets CancelledCallError."""
        self._scheduler.cancel(self._ticket, CancelledCallError("the call was cancelled"))

    def drop(self) -> None:
        """`cancel` without an error, for when nobody waits."""
        self._scheduler.cancel(self._ticket)

    def __del__(self) -> None:
        self.drop()

    def __getstate__(self) -> NoReturn:
        raise TypeError("a running call cannot be copied or pickled; its results can: list(chunks), or call.results()")

    def _results(self) -> list[Result]:
        results = [job.result for job in self.jobs if job.result is not None]
        assert len(results) == len(self.jobs), "decoding ended before its rows did"
        n = self.jobs[0].options.n if self.jobs else 1
        if n == 1:
            return results
        groups = [results[start : start + n] for start in range(0, len(results), n)]
        return [replace(group[0], samples=tuple(group)) for group in groups]

    def check_stream(self) -> None:
        """Raise ValueError if the outputs cannot be streamed."""
        n = self.jobs[0].options.n if self.jobs else 1
        if n > 1:
            raise ValueError(f"n={n} cannot be streamed; leave stream out, or stream once per seed")


class Chunks(Iterator["Chunk"]):
    """Iterator over the chunks of a call. Closing or garbage-collecting it ends decoding."""

    def __init__(self, call: Call, steps: Iterator[list[StepOutput]], maker: ChunkMaker) -> None:
        self._call = call
        self._chunks: Iterator[Chunk] = (chunk for outputs in steps for chunk in maker.push(outputs))

    def __next__(self) -> Chunk:
        return next(self._chunks)

    def close(self) -> None:
        """End decoding; the iterator yields no more chunks."""
        self._chunks = iter(())
        self._call.drop()
