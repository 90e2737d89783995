"""The scheduler: runs the requests of all callers of an engine through shared batches.

Callers with equal draft options, batch size and threads share one running batch, called a lane. A caller who is alone
drives its lane in its own thread: there is no hand-over between threads, and Ctrl-C works as usual. As soon as somebody
else waits, a worker thread drives the lane and hands each caller the outputs of its own rows.
"""

from __future__ import annotations

import _thread
import asyncio
import atexit
import os
import threading
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from threading import get_ident
from typing import TYPE_CHECKING, Protocol

from copyspec.common.checks import shown
from copyspec.common.forks import fork_safe
from copyspec.common.lockless import LiveSet
from copyspec.decoding.requests import Request, StepOutput
from copyspec.engine.running.call import Lane, Ticket, TimeLimit, poll_interval

if TYPE_CHECKING:
    from copyspec.engine.asking.call_options import CallOptions

IDLE_SECONDS = 1.0
"""How long an idle worker sleeps before it exits. Starting another costs a tenth of a millisecond."""

CLOSE_SECONDS = 0.2
"""How long a caller waits for its batch to be closed, which takes less unless a forward pass is running."""

ARRIVAL_SECONDS = 0.01
"""How long a new batch waits for callers that are still preparing their requests, so that they share its passes."""


class Decode(Protocol):
    """Decodes requests step by step; the signature of `Engine.steps`."""

    def __call__(
        self, requests: Iterable[Request | None], options: CallOptions
    ) -> Generator[list[StepOutput], None, None]: ...


class QueueFullError(RuntimeError):
    """Raised when more requests wait than the engine's `max_waiting` allows."""


class CallScheduler:
    """Lets callers share the batches of one engine. Callers take turns for free rows, however many requests each
    has."""

    def __init__(self, name: str, holds_model: Callable[[], bool]) -> None:
        """`holds_model`: whether this thread holds the model's lock."""
        self.name = name
        self._holds_model = holds_model
        self.max_waiting: int | None = None
        """How many requests may wait for a row; one more raises QueueFullError. None: no limit."""
        self._lanes: dict[object, Lane] = {}
        # A plain lock, entered directly: an interrupt inside a Condition's own __enter__ would leave it held.
        self._lock = fork_safe(threading.Lock())
        self._arriving: set[object] = set()  # callers that prepare requests; changed without the lock
        self._is_delayed = False  # since the last wake-up, a batch has waited for them
        self._closing = False
        _ALL.add(self)

    @property
    def running(self) -> int:
        """Number of rows being decoded."""
        with self._lock:
            return sum(lane.running for lane in self._lanes.values())

    @property
    def waiting(self) -> int:
        """Number of requests waiting for a row."""
        with self._lock:
            return self._waiting()

    def _waiting(self) -> int:
        tickets = [ticket for lane in self._lanes.values() for ticket in lane.tickets]
        return sum(len(ticket.waiting) for ticket in tickets if not ticket.is_cancelled)

    @contextmanager
    def arriving(self) -> Iterator[None]:
        """Context for preparing requests: a new batch waits for them, at most ARRIVAL_SECONDS."""
        caller = object()
        self._arriving.add(caller)
        try:
            yield
        finally:
            self._arriving.discard(caller)  # an interrupt may end the waiting for the lock
            with self._lock:
                if self._is_delayed and not self._arriving:
                    self._is_delayed = False
                    for lane in self._lanes.values():
                        lane.wake()

    def submit(
        self,
        decode: Decode,
        requests: Iterable[Request | None],
        options: CallOptions,
        *,
        version: object = None,
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> Ticket:
        """Queue requests. They are decoded while somebody iterates over `steps` or `asteps`.

        version: requests of different versions never share a batch.
        loop: the event loop that waits with `asteps`.
        """
        if not (loop is None or isinstance(loop, asyncio.AbstractEventLoop)):
            raise TypeError(f"loop must be the running event loop (asyncio.get_running_loop()), got {shown(loop)}")
        ticket = Ticket(iter(requests), options.batch_size, loop, None if loop is None else asyncio.Event())
        if isinstance(requests, Sequence):  # all wait at once
            ticket.waiting.extend(
                enumerate([replace(request, owner=ticket) for request in requests if request is not None])
            )
            ticket.is_exhausted = True
        key: tuple[object, ...] = (options.draft, options.batch_size, options.threads, version)
        with self._lock:
            if self._closing:
                raise RuntimeError("the engine accepts no more requests: the program is exiting")
            waiting = 0 if self.max_waiting is None else self._waiting()
            # An idle engine takes a call of any size, which could never be made otherwise.
            is_busy = waiting > 0 or any([lane.running for lane in self._lanes.values()])
            if self.max_waiting is not None and is_busy and waiting + len(ticket.waiting) > self.max_waiting:
                raise QueueFullError(
                    f"{waiting} requests wait for {self.name!r} already, and max_waiting={self.max_waiting}: "
                    "try again later, or raise engine.scheduler.max_waiting"
                )
            live = [scheduler for ref in _ALL.refs() if (scheduler := ref()) is not None]
            lanes = [lane for scheduler in live for lane in list(scheduler._lanes.values())]
            if any([lane.driver == get_ident() for lane in lanes]):
                # Submitted inside a pass, of this or another engine, by a criterion for example: it cannot wait for a
                # lane whose driver may be waiting for the model that this thread holds.
                key = (*key, ticket)
            lane = self._lanes.get(key)
            if lane is None:
                lane = self._lanes[key] = Lane(lambda taken: decode(taken, options), self._lock)
            ticket.lane = lane
            lane.tickets.append(ticket)
            if lane.worker is not None:
                lane.wakeups.notify_all()
        return ticket

    def steps(self, ticket: Ticket, timeout: float | None = None) -> Iterator[list[StepOutput]]:
        """Yield the outputs of the ticket's requests step by step, with the index of the request as row.

        Closing the iterator ends the rows within one step. An error of the ticket's own processors, criteria or
        drafters is raised here and nowhere else. Raises TimeoutError when the time that making the requests took and
        the time since the first call exceed `timeout` seconds together.
        """
        limit = None if timeout is None else TimeLimit(timeout, ticket.preparation_seconds)
        if ticket.lane.driver == get_ident():
            raise RuntimeError(
                "deadlock: a drafter, logits processor or stopping criterion waits for the call that it runs in"
            )
        try:
            while (outputs := self._next(ticket, limit)) is not None:
                yield outputs
        finally:
            self.cancel(ticket)

    async def asteps(self, ticket: Ticket, timeout: float | None = None) -> AsyncGenerator[list[StepOutput], None]:
        """`steps` for asyncio, without a thread per caller. Cancelling the task ends the rows within one step."""
        limit = TimeLimit(timeout, ticket.preparation_seconds)
        arrived = ticket.arrived
        if arrived is None:
            raise RuntimeError("the call was submitted without loop=; give submit the running event loop to await it")
        try:
            while ticket.is_pending:
                with self._lock:
                    outputs = ticket.take()
                    if outputs is None:
                        arrived.clear()
                        self._call_worker(ticket.lane)
                if outputs is not None:
                    yield outputs
                    continue
                seconds = limit.left()
                if seconds == 0.0:
                    raise limit.error()
                # Before Python 3.12 wait_for may swallow a cancellation.
                poll = asyncio.get_running_loop().call_later(poll_interval(seconds), arrived.set)
                try:
                    await arrived.wait()
                finally:
                    poll.cancel()
        finally:
            self.cancel(ticket)

    def cancel(self, ticket: Ticket, error: BaseException | None = None) -> None:
        """End the ticket's rows: at once if no other caller shares the batch, else within one step. A caller waiting
        for the ticket gets `error`.

        Without an error, this may be called by the garbage collector at any point, even while this thread holds the
        lock. The next driver of the lane then finds the ticket cancelled.
        """
        had_rows = ticket.has_rows
        if error is None:
            ticket.is_cancelled = True
            ticket.wake()
            if self._lock.locked():  # not `acquire(blocking=False)`: an interrupt after it would leave the lock held
                if ticket.lane.worker is None and ticket.lane.driver is None:  # nobody would close the batch
                    with suppress(RuntimeError):  # there are too many threads, or the program is exiting
                        _thread.start_new_thread(self._drop, (ticket.lane,))
                return
        with self._lock:
            if error is not None:
                ticket.fail(error)
            abandoned = self._abandoned(ticket.lane)
            if had_rows:  # else none of its rows was left, and nothing changes for the others
                ticket.lane.wake()
        if abandoned is not None:
            self._close(abandoned)

    def _drop(self, lane: Lane) -> None:
        """Close the lane's batch if nobody waits for it, in a thread of its own."""
        with self._lock:
            abandoned = self._abandoned(lane)
        if abandoned is not None:
            abandoned.close()

    def _close(self, steps: Generator[list[StepOutput], None, None]) -> None:
        """Close an abandoned batch. The garbage collector may call this while the current thread holds a lock that the
        model's holder waits for, so closing here could deadlock; another thread closes it, and this one waits at most
        CLOSE_SECONDS."""
        if not _thread._count() or self._holds_model():  # there is no other thread, or none can hold the model
            steps.close()
            return
        closed = _thread.allocate_lock()
        closed.acquire()

        def close() -> None:
            try:
                steps.close()
            finally:
                closed.release()

        try:
            _thread.start_new_thread(close, ())
        except RuntimeError:  # the interpreter exits
            steps.close()
            return
        closed.acquire(timeout=CLOSE_SECONDS)

    def close(self) -> None:
        """Stop the workers within one step each; callers that still wait get a RuntimeError."""
        with self._lock:
            self._closing = True
            workers = [lane.worker for lane in self._lanes.values() if lane.worker is not None]
            for lane in self._lanes.values():
                lane.wake()
        for worker in workers:
            worker.join()

    def forget_workers(self) -> None:
        """After a fork, drop the workers, which run only in the parent: inherited calls fail, new ones start new
        workers."""
        error = RuntimeError(
            "this process was forked while the call waited for a worker, which exists only in the parent: call again, "
            'or start processes with multiprocessing.get_context("spawn")'
        )
        lanes, self._lanes = self._lanes, {}
        self._arriving, self._is_delayed = set(), False
        for key, lane in lanes.items():
            if lane.worker is None and lane.driver is None and len(lane.tickets) <= 1:
                self._lanes[key] = lane  # a single caller's stream, which can continue in the child
            else:
                lane.fail_all(error)

    def _next(self, ticket: Ticket, limit: TimeLimit | None) -> list[StepOutput] | None:
        """The outputs of the ticket's next step; None once all its rows have ended. Drives the lane if nobody else
        does."""
        lane = ticket.lane
        outputs: list[StepOutput] | None = None
        if not ticket.is_exhausted:
            ticket.fill()
        begins: TimeLimit | None = None
        claims = False
        try:
            while outputs is None:
                waiter, seconds = None, None if limit is None else limit.left()
                with self._lock:
                    # Read before `take`: `Ticket.fail` needs no lock, and sets the error before it cancels the ticket.
                    is_last = ticket.is_cancelled or not (ticket.running or ticket.waiting)
                    if (outputs := ticket.take()) is not None:
                        return outputs
                    if is_last:
                        return None
                    if self._closing:
                        raise RuntimeError("the call was ended: the program is exiting")
                    if limit is not None and seconds == 0.0:
                        raise limit.error()
                    if lane.driver is not None:
                        waiter = ticket.wakeups.waiter()
                    elif self._arriving and (begins := self._arrivals(lane, begins)) is not None and begins.left():
                        waiter, seconds = ticket.wakeups.waiter(), begins.left()
                    elif ticket.arrived is None and all(
                        [other is ticket or other.is_cancelled for other in lane.tickets]
                    ):
                        # Alone in its lane, the caller drives it.
                        claims, lane.driver = True, get_ident()
                    else:
                        self._call_worker(lane)
                        waiter = ticket.wakeups.waiter()
                if waiter is None:
                    outputs = self._drive(lane, ticket)
                elif not ticket.is_cancelled:  # without the lock, so perhaps before there was a waiter
                    ticket.wakeups.wait(waiter, seconds)
        except BaseException:
            if claims:
                with self._lock:
                    if lane.driver == get_ident():  # interrupted before or after the step
                        lane.driver = None
                    lane.wake()  # the interrupted step may have woken nobody
            raise
        return outputs

    def _drive(self, lane: Lane, only: Ticket | None) -> list[StepOutput] | None:
        """Run one step of a lane. `only`: the only ticket whose requests may join, whose outputs are returned; None:
        all."""
        outputs: list[StepOutput] = []
        failed: BaseException | None = None
        try:
            lane.only = only
            if lane.steps is None:
                lane.steps, lane.num_rows = lane.decode(lane.take()), 0
            outputs = next(lane.steps)
        except BaseException as error:
            failed = error
            raise
        finally:
            with self._lock:
                lane.driver = None
                dropped, abandoned, came = None, None, None
                if failed is None:
                    lane.deliver(outputs, only)
                else:
                    dropped = lane.fail(failed, only)
                if len(lane.tickets) == 1 and lane.tickets[0] is only and not only.is_cancelled:
                    came = only.take()  # nobody else waits for this lane
                else:
                    abandoned = self._abandoned(lane)
                    if only is not None:  # others may wait for it to end; after a worker's step, see `_has_work`
                        lane.wake()
            for steps in (dropped, abandoned):
                if steps is not None:
                    steps.close()
        return came

    def _abandoned(self, lane: Lane) -> Generator[list[StepOutput], None, None] | None:
        """The step generator of a batch that nobody waits for, to be closed without the lock; else None. Also drops the
        lane if it has neither tickets nor a worker."""
        steps = lane.abandoned()
        if not lane.tickets and lane.worker is None:
            self._lanes = {key: other for key, other in self._lanes.items() if other is not lane}
        return steps

    def _arrivals(self, lane: Lane, begins: TimeLimit | None) -> TimeLimit | None:
        """How long a batch about to begin waits for callers that are preparing requests; None if there is no reason to
        wait. `begins` is the previous answer. The lock is held."""
        if lane.running or self._closing:
            return None
        self._is_delayed = True
        return begins or TimeLimit(ARRIVAL_SECONDS)

    def _call_worker(self, lane: Lane) -> None:
        """Let a worker drive the lane from now on. The lock is held."""
        if lane.worker is None:
            # A daemon, so that the program's exit does not wait IDLE_SECONDS for it; `_close_all` stops it in time.
            worker = threading.Thread(target=self._work, args=(lane,), name=f"copyspec {self.name}", daemon=True)
            worker.start()  # raises where there are too many threads
            lane.worker = worker
        lane.wakeups.notify_all()

    def _work(self, lane: Lane) -> None:
        while self._has_work(lane):
            try:
                self._drive(lane, None)
            except BaseException:  # already delivered to the callers whose rows ran; `sys.exit` in a criterion as well
                continue

    def _has_work(self, lane: Lane) -> bool:
        """Sleep until the worker should run a step; return False if it should exit."""
        idle = TimeLimit(IDLE_SECONDS)
        begins: TimeLimit | None = None
        while True:
            with self._lock:
                if not lane.needs_worker and lane.driver is None:
                    lane.wake()  # a caller that is alone now drives the lane itself
                if self._closing or (not lane.needs_worker and idle.left() == 0.0):
                    lane.worker = None
                    dropped = [self._abandoned(lane)]
                    if self._closing:
                        error = RuntimeError("the engine's queue was closed: the program is exiting")
                        dropped.append(lane.fail_all(error))
                    break
                if not lane.needs_worker:
                    seconds = idle.left()
                elif self._arriving and (begins := self._arrivals(lane, begins)) is not None and begins.left():
                    seconds = begins.left()
                else:
                    lane.driver = get_ident()
                    return True
                waiter = lane.wakeups.waiter()
            lane.wakeups.wait(waiter, seconds)
        for steps in dropped:
            if steps is not None:
                steps.close()
        return False


_ALL: LiveSet[CallScheduler] = LiveSet()


@atexit.register
def _close_all() -> None:
    for scheduler in list(_ALL):
        scheduler.close()


def _forget_workers() -> None:
    for scheduler in list(_ALL):
        scheduler.forget_workers()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_workers)
