"""Generation from asyncio: prompts are prepared in a worker thread, and share passes with those of other callers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from copyspec.engine.call import Call
from copyspec.engine.call_options import CallOptions
from copyspec.engine.engine import Engine


async def submit(load: Callable[[], Engine], prompt: object, references: object, options: CallOptions) -> Call:
    """`Engine.start` in a worker thread; `load` is called there too. Wrong arguments raise when this is awaited."""
    loop = asyncio.get_running_loop()
    preparing = asyncio.ensure_future(asyncio.to_thread(lambda: load().start(prompt, references, options, loop)))
    try:
        return await asyncio.shield(preparing)
    except asyncio.CancelledError:
        preparing.add_done_callback(_drop)
        raise


def _drop(preparing: asyncio.Future[Call]) -> None:
    """Nobody waits for the call any more."""
    if not preparing.cancelled() and preparing.exception() is None:
        preparing.result().drop()
