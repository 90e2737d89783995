"""The engine's queue: requests of many threads and tasks through one running batch.

`Engine.steps` decodes the requests of one caller. Here every caller's requests join the batch that is running, one
thread drives it, and each caller is handed what its own rows bring. A row that nobody waits for leaves within a step.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable, Generator, Iterator, Sequence
from dataclasses import replace
from queue import Empty, SimpleQueue
from time import monotonic
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary, WeakSet

from copyspec.decoding.requests import Request, StepOutput
from copyspec.forks import at_rest
from copyspec.options import DraftOptions

if TYPE_CHECKING:
    import torch
    from transformers import LogitsProcessor

    from copyspec.decoding.requests import StopCondition
    from copyspec.engine.call_options import CallOptions
    from copyspec.engine.engine import Engine

IDLE_SECONDS = 1.0
"""How long a worker sleeps without work before it ends. Starting another costs a tenth of a millisecond."""

CANCELLED = "cancelled"
"""The detail with which a row ends that nobody waits for any more."""

_LaneKey = tuple[DraftOptions, int, "int | None"]
_Delivery = list[StepOutput] | BaseException


class EngineQueue:
    """Lets callers share the batches of one engine.

    A batch is decoded under one set of draft options, one size and one number of threads: callers that agree in them
    share it. Callers take turns for free rows, however many requests each of them brought.
    """

    def __init__(self) -> None:
        self._lanes: dict[_LaneKey, _Lane] = {}
        self._changed = at_rest(threading.Condition())  # guards the lanes and what waits in them
        self._closing = False
        _ALL.add(self)

    def steps(
        self, engine: Engine, requests: Sequence[Request], options: CallOptions, *, timeout: float | None = None
    ) -> Generator[list[StepOutput], None, None]:
        """As `Engine.steps`, in the shared batch: what steps added to these requests, by their index.

        Closing it ends their rows within one step. What one of their processors, criteria or drafters raises is
        raised here, and nowhere else. Raises TimeoutError `timeout` seconds after the first call.
        """
        box: SimpleQueue[_Delivery] = SimpleQueue()
        ticket = _Ticket(requests, box.put)
        deadline = None if timeout is None else monotonic() + timeout
        self._submit(engine, ticket, options)
        try:
            while ticket.is_expecting:
                try:
                    item = box.get(timeout=None if deadline is None else max(0.0, deadline - monotonic()))
                except Empty:
                    raise _late(timeout) from None
                yield ticket.received(item)
        finally:
            ticket.is_cancelled = True

    async def asteps(
        self, engine: Engine, requests: Sequence[Request], options: CallOptions, *, timeout: float | None = None
    ) -> AsyncGenerator[list[StepOutput], None]:
        """`steps` for asyncio, without a thread per caller. Cancelling the task ends the rows within one step."""
        loop = asyncio.get_running_loop()
        box: asyncio.Queue[_Delivery] = asyncio.Queue()
        ticket = _Ticket(requests, lambda item: _put(loop, box, item))
        deadline = None if timeout is None else monotonic() + timeout
        self._submit(engine, ticket, options)
        try:
            while ticket.is_expecting:
                if deadline is None:
                    yield ticket.received(await box.get())  # before Python 3.12 wait_for may swallow a cancellation
                    continue
                try:
                    item = await asyncio.wait_for(box.get(), max(0.0, deadline - monotonic()))
                except asyncio.TimeoutError:
                    raise _late(timeout) from None
                yield ticket.received(item)
        finally:
            ticket.is_cancelled = True

    def close(self) -> None:
        """Ends the workers within one step each; callers that still wait get a RuntimeError."""
        with self._changed:
            self._closing = True
            workers = [lane.worker for lane in self._lanes.values()]
            self._changed.notify_all()
        for worker in workers:
            worker.join()

    def forget_workers(self) -> None:
        """In a process that was forked, where they do not run: calls that came along end, new ones start others."""
        error = RuntimeError(
            "this process was forked while the call waited for a worker, which is in the parent alone: ask again here, "
            'or start processes with multiprocessing.get_context("spawn")'
        )
        lanes, self._lanes = list(self._lanes.values()), {}
        for lane in lanes:
            for ticket in {*lane.waiting, *(ticket for ticket, _ in lane.running.values())}:
                ticket.fail(error)

    def _submit(self, engine: Engine, ticket: _Ticket, options: CallOptions) -> None:
        key = (options.draft, options.batch_size, options.threads)
        with self._changed:
            if self._closing:
                raise RuntimeError("the queue is closed: the program is ending")
            lane = self._lanes.get(key)
            if lane is None:
                # A daemon, so that no program waits for it to get bored; `_close_all` ends it in time.
                worker = threading.Thread(
                    target=self._work, args=(engine, key, options), name=f"copyspec {engine.name}", daemon=True
                )
                lane = self._lanes[key] = _Lane(worker)
                worker.start()
            lane.waiting.append(ticket)
            self._changed.notify_all()

    def _work(self, engine: Engine, key: _LaneKey, options: CallOptions) -> None:
        lane = self._lanes[key]
        while self._has_work(lane, key):
            try:
                steps = engine.steps(self._take(lane), options)
                try:
                    for outputs in steps:
                        lane.deliver(outputs)
                        if self._closing or (not lane.running and not self._has_work(lane, key)):
                            break
                finally:
                    steps.close()
            except BaseException as error:
                self._fail(lane, error)

    def _has_work(self, lane: _Lane, key: _LaneKey) -> bool:
        """Sleeps until something waits in the lane; False where nothing came, and the lane is gone."""
        with self._changed:
            self._changed.wait_for(lambda: lane.waiting or self._closing, IDLE_SECONDS)
            if lane.waiting and not self._closing:
                return True
            self._lanes.pop(key, None)
        self._fail(lane, RuntimeError("the queue was closed: the program is ending"))
        return False

    def _fail(self, lane: _Lane, error: BaseException) -> None:
        """Tells those whose rows ran: who waits goes on in another batch. Where none ran, no batch can start."""
        with self._changed:
            while lane.waiting and (self._closing or not lane.running):
                lane.waiting.popleft().fail(error)
        lane.fail(error)

    def _take(self, lane: _Lane) -> Iterator[Request | None]:
        """Requests for the batch, one from each caller in turn; None where nobody waits."""
        while True:
            with self._changed:
                request = lane.next_request()
            yield request


class _Lane:
    """A batch's worker, the callers who wait for it, and the rows that run in it."""

    def __init__(self, worker: threading.Thread) -> None:
        self.worker = worker
        self.waiting: deque[_Ticket] = deque()
        self.running: dict[int, tuple[_Ticket, int]] = {}  # row of the batch -> (whose, index of the request)
        self._rows = 0

    def next_request(self) -> Request | None:
        while self.waiting:
            ticket = self.waiting.popleft()
            if ticket.is_cancelled:
                continue
            index, request = ticket.waiting.popleft()
            if ticket.waiting:
                self.waiting.append(ticket)  # behind the others: a caller of many requests keeps nobody waiting
            self.running[self._rows] = ticket, index
            self._rows += 1
            return request
        return None

    def deliver(self, outputs: Sequence[StepOutput]) -> None:
        """Hands each caller what its rows did in one step."""
        parts: dict[_Ticket, list[StepOutput]] = {}
        for output in outputs:
            ticket, index = self.running[output.row]
            if output.finish is not None:
                del self.running[output.row]
            parts.setdefault(ticket, []).append(replace(output, row=index))
        for ticket, part in parts.items():
            if not ticket.is_cancelled:
                ticket.put(part)

    def fail(self, error: BaseException) -> None:
        """Hands the error to everybody whose row was running, and counts the next batch's rows from 0."""
        failed = {ticket for ticket, _ in self.running.values()}
        self.running.clear()
        self._rows = 0
        for ticket in failed:
            ticket.fail(error)


class _Ticket:
    """One caller's requests in the queue."""

    def __init__(self, requests: Sequence[Request], put: Callable[[_Delivery], None]) -> None:
        self.put = put
        self.is_cancelled = False  # set by whoever stops waiting, without a lock: the garbage collector may be it
        self.waiting = deque((index, self._guarded(request)) for index, request in enumerate(requests))
        self._left = len(requests)

    @property
    def is_expecting(self) -> bool:
        """Whether some row has not ended."""
        return self._left > 0

    def received(self, item: _Delivery) -> list[StepOutput]:
        """What came, counted; raises where it is an error."""
        if isinstance(item, BaseException):
            raise item
        self._left -= sum(output.finish is not None for output in item)
        return item

    def fail(self, error: BaseException) -> None:
        """Ends all its rows with an error."""
        self.is_cancelled = True
        self.put(error)

    def _guarded(self, request: Request) -> Request:
        # The cancellation comes last: plain decoding is asked first why an output ends.
        stops: list[StopCondition] = [_GuardedStop(stop, self) for stop in request.stops]
        processors = [_GuardedProcessor(processor, self) for processor in request.processors]
        return replace(request, stops=[*stops, _Cancellation(self)], processors=processors)  # type: ignore[arg-type]


class _Cancellation:
    """Ends a row that nobody waits for with its next token."""

    def __init__(self, ticket: _Ticket) -> None:
        self._ticket = ticket

    def push(self, token: int) -> str | None:
        return CANCELLED if self._ticket.is_cancelled else None


class _GuardedStop:
    """A caller's stop condition, whose errors are the caller's alone."""

    def __init__(self, stop: StopCondition, ticket: _Ticket) -> None:
        self._stop = stop
        self._ticket = ticket

    def push(self, token: int) -> str | None:
        try:
            return self._stop.push(token)
        except Exception as error:
            self._ticket.fail(error)
            return CANCELLED


class _GuardedProcessor:
    """A caller's logits processor, whose errors are the caller's alone."""

    def __init__(self, processor: LogitsProcessor, ticket: _Ticket) -> None:
        self._processor = processor
        self._ticket = ticket

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        try:
            return self._processor(input_ids, scores)  # type: ignore[no-any-return]
        except Exception as error:
            self._ticket.fail(error)
            return scores


_ALL: WeakSet[EngineQueue] = WeakSet()
_QUEUES: WeakKeyDictionary[Engine, EngineQueue] = WeakKeyDictionary()
_QUEUES_LOCK = at_rest(threading.Lock())


def queue_of(engine: Engine) -> EngineQueue:
    """The one queue of an engine."""
    with _QUEUES_LOCK:
        return _QUEUES.setdefault(engine, EngineQueue())


@atexit.register
def _close_all() -> None:
    for queue in list(_QUEUES.values()):
        queue.close()


def _forget_workers() -> None:
    for queue in list(_ALL):
        queue.forget_workers()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_workers)


def _put(loop: asyncio.AbstractEventLoop, box: asyncio.Queue[_Delivery], item: _Delivery) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(box.put_nowait, item)


def _late(timeout: float | None) -> TimeoutError:
    return TimeoutError(f"no complete answer within timeout={timeout!r} seconds; give it more, or fewer new tokens")
