"""Generation from asyncio: decoding in a worker thread, ended within one step by cancellation."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from typing import TypeVar, cast

from copyspec.decoding.requests import StepOutput
from copyspec.engine.call_options import check_options
from copyspec.engine.engine import Engine, finish
from copyspec.engine.results import Chunk, Result

T = TypeVar("T")


class _Cancelled(Exception):
    """Ends a worker whose task was cancelled. Nobody waits for it any more."""


async def agenerate(
    load: Callable[[], Engine], prompt: object, references: object, options: dict[str, object]
) -> Result | list[Result]:
    """`Engine.generate` in a worker thread; `load` is called there too. Cancelling the task ends the decoding."""
    cancelled = threading.Event()

    def work() -> Result | list[Result]:
        checked = check_options(options)
        engine = load()
        jobs, single = engine.jobs(prompt, references, checked)
        results = finish(jobs, _until(cancelled, engine.steps([job.request for job in jobs], checked)), checked.n)
        return results[0] if single else results

    try:
        return await asyncio.to_thread(work)
    except asyncio.CancelledError:
        cancelled.set()
        raise


async def astream(
    load: Callable[[], Engine], prompt: object, references: object, options: dict[str, object]
) -> AsyncIterator[Chunk]:
    """`Engine.stream` as an asynchronous iterator. Wrong arguments raise when this is awaited."""

    def start() -> Iterator[Chunk]:
        return load().stream(prompt, references, **options)  # type: ignore[arg-type]

    return _drain(await asyncio.to_thread(start))


async def _drain(chunks: Iterator[Chunk]) -> AsyncIterator[Chunk]:
    try:
        while (chunk := await _finished(lambda: next(chunks, None))) is not None:
            yield chunk
    finally:
        await _finished(cast("Generator[Chunk, None, None]", chunks).close)


async def _finished(work: Callable[[], T]) -> T:
    """Runs `work` in a thread and never leaves it behind: a task that is cancelled, however often, waits for it."""
    step = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(step)
    except asyncio.CancelledError:
        while not step.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([step])
        if not step.cancelled():
            step.exception()  # nobody else will ask for it
        raise


def _until(
    cancelled: threading.Event, steps: Generator[list[StepOutput], None, None]
) -> Generator[list[StepOutput], None, None]:
    try:
        for outputs in steps:
            if cancelled.is_set():
                raise _Cancelled
            yield outputs
    finally:
        steps.close()
