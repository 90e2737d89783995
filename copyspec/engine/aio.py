"""asyncio support: prompts are prepared in a worker thread and share forward passes with other callers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import torch

from copyspec.engine.asking.call_options import CallOptions
from copyspec.engine.engine import CASTING, Engine
from copyspec.engine.running.call import Call

if TYPE_CHECKING:
    from copyspec.engine.results import Chunk


async def submit(load: Callable[[], Engine], prompt: object, references: object, options: CallOptions) -> Call:
    """Call `load` and `Engine.start` in a worker thread. Invalid arguments raise when this is awaited."""
    loop = asyncio.get_running_loop()
    # torch.autocast is a state of this thread, which the worker does not have.
    casts = [(device, torch.get_autocast_dtype(device)) for device in CASTING if torch.is_autocast_enabled(device)]

    def start() -> Call:
        with ExitStack() as stack:
            for device, dtype in casts:
                stack.enter_context(torch.autocast(device, dtype))
            return load().start(prompt, references, options, loop)

    preparing = asyncio.ensure_future(asyncio.to_thread(start))
    try:
        return await asyncio.shield(preparing)
    except asyncio.CancelledError:
        preparing.add_done_callback(_drop)
        raise


def _drop(preparing: asyncio.Future[Call]) -> None:
    """Drop a call whose caller was cancelled while it was being prepared."""
    if not preparing.cancelled() and preparing.exception() is None:
        preparing.result().drop()


class AsyncChunks:
    """Asynchronous iterator over the chunks of a call. The call is submitted on the first `__anext__` or when this
    object is awaited, and invalid arguments raise there."""

    def __init__(self, submit: Callable[[], Coroutine[Any, Any, Call]]) -> None:
        self._submit = submit
        self._call: Call | None = None
        self._chunks: AsyncGenerator[Chunk, None] | None = None
        self._is_closed = False

    def __await__(self) -> Generator[Any, None, AsyncChunks]:
        yield from self._begin().__await__()
        return self

    def __aiter__(self) -> AsyncChunks:
        return self

    async def __anext__(self) -> Chunk:
        await self._begin()
        if self._is_closed or self._chunks is None:
            raise StopAsyncIteration
        return await self._chunks.__anext__()

    async def aclose(self) -> None:
        """End decoding within one step, also while another task waits for a chunk; that task gets no more."""
        self._is_closed = True
        if self._call is not None:
            self._call.drop()
        if self._chunks is not None:
            try:
                await self._chunks.aclose()
            except RuntimeError as error:
                if "already running" not in str(error):  # that one ends by itself
                    raise

    async def _begin(self) -> None:
        if self._chunks is None and not self._is_closed:
            self._call = await self._submit()
            self._chunks = self._call.achunks()
            if self._is_closed:  # meanwhile
                self._call.drop()
