"""A call: the ways to wait for its results (whole or streamed, thread or task), and its requests as the scheduler holds
them: a Ticket per caller, a Lane per running batch. Both are changed with the scheduler's lock held, except where a
comment says otherwise.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Iterator, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, replace
from itertools import chain
from time import monotonic
from typing import TYPE_CHECKING, NoReturn, Protocol

from copyspec.decoding.requests import Request, StepOutput
from copyspec.engine.running.streaming import ChunkMaker

if TYPE_CHECKING:
    import asyncio

    from copyspec.engine.results import Chunk, Result
    from copyspec.engine.running.jobs import Job


RECHECK_SECONDS = 1.0
"""How often waiting callers poll: an interrupt may have stopped the thread that was about to notify them."""


class CancelledCallError(RuntimeError):
    """Raised in a caller that waits for a cancelled call."""


class StepSource(Protocol):
    """What a call needs of its `CallScheduler`, which imports this module."""

    def steps(self, ticket: Ticket, timeout: float | None = None) -> Iterator[list[StepOutput]]: ...

    def asteps(self, ticket: Ticket, timeout: float | None = None) -> AsyncGenerator[list[StepOutput], None]: ...

    def cancel(self, ticket: Ticket, error: BaseException | None = None) -> None: ...


@dataclass(eq=False, repr=False)
class Call:
    """Prompts in an engine's queue, as returned by `Engine.submit`. Use one of the four ways to wait, once.

    Decoding advances only while somebody waits for this call or for another that shares its batch.
    """

    _scheduler: StepSource
    _ticket: Ticket
    jobs: Sequence[Job]
    is_single: bool  # a single prompt was given, not a list
    _timeout: float | None = None  # seconds after which waiting raises TimeoutError

    def results(self) -> list[Result]:
        """Wait for one result per prompt, each with its samples if there are several. Raises TimeoutError after the
        call's timeout and CancelledCallError if another thread cancelled the call."""
        self._ticket.is_whole = True
        for output in chain.from_iterable(self._scheduler.steps(self._ticket, self._timeout)):
            self.jobs[output.row].add(output)
        return self.ended()

    async def aresults(self) -> list[Result]:
        """`results` for asyncio. Cancelling the task ends decoding within one step."""
        self._ticket.is_whole = True
        async with aclosing(self._scheduler.asteps(self._ticket, self._timeout)) as steps:
            async for outputs in steps:
                for output in outputs:
                    self.jobs[output.row].add(output)
        return self.ended()

    def chunks(self) -> Chunks:
        """Stream the outputs: one chunk per row and step; the last chunk of a row carries its result."""
        return Chunks(self, self._scheduler.steps(self._ticket, self._timeout), ChunkMaker(self.jobs))

    async def achunks(self) -> AsyncGenerator[Chunk, None]:
        """`chunks` for asyncio. Cancelling the task ends decoding within one step."""
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

    def ended(self) -> list[Result]:
        """The results of a call whose outputs have all ended, in `results` or as a stream. Raises CancelledCallError if
        some have not."""
        results = [job.result for job in self.jobs if job.result is not None]
        if len(results) < len(self.jobs):
            raise CancelledCallError("the call was cancelled before it had ended")
        n = self.jobs[0].options.n if self.jobs else 1
        if n == 1:
            return results
        groups = [results[start : start + n] for start in range(0, len(results), n)]
        return [replace(group[0], samples=tuple(group)) for group in groups]


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


def poll_interval(seconds: float | None) -> float:
    """Seconds until a waiting caller polls again, if it may wait for `seconds` (None: without limit)."""
    return RECHECK_SECONDS if seconds is None else min(seconds, RECHECK_SECONDS)


@dataclass(eq=False, slots=True)
class Wakeups:
    """Wakes the threads that wait for a change of one ticket or lane. They wait without holding the scheduler's lock.

    A Condition reacquires the lock inside `wait`; an interrupt there leaves the lock free in a `with` block that will
    release it. Here each waiter has its own lock, created while the scheduler's lock is held, so no change made under
    that lock is missed.
    """

    _waiters: list[threading.Lock] = field(default_factory=list)

    def waiter(self) -> threading.Lock:
        """Create the lock to pass to `wait`. Call this with the scheduler's lock held, and `wait` without it."""
        waiter = threading.Lock()  # no fork waits for it: callers in the child make new waiters
        waiter.acquire()
        self._waiters.append(waiter)
        return waiter

    def wait(self, waiter: threading.Lock, seconds: float | None) -> None:
        """Wait for the next `notify_all`, at most `seconds` or RECHECK_SECONDS; the caller then checks again."""
        if not waiter.acquire(timeout=poll_interval(seconds)):
            with suppress(ValueError):  # notified at the last moment
                self._waiters.remove(waiter)

    def notify_all(self) -> None:
        """Wake all waiters. May run without the scheduler's lock and inside itself: the garbage collector may call
        it."""
        while self._waiters:
            try:
                self._waiters.pop().release()
            except IndexError:  # a nested or concurrent call took the last one
                return


@dataclass(eq=False, slots=True)
class Ticket:
    """The queued requests of one caller."""

    requests: Iterator[Request | None]
    """Read in the caller's own thread, as far as a batch has room; a None means that no request is available yet."""
    room: int  # of a batch
    loop: asyncio.AbstractEventLoop | None = None  # event loop to notify through `arrived`
    arrived: asyncio.Event | None = None
    lane: Lane = field(init=False)
    is_whole: bool = False
    """The caller wants complete results only; `deliver` wakes it when its last row ends."""
    is_cancelled: bool = False  # set without a lock by whoever stops waiting, which may be the garbage collector
    waiting: deque[tuple[int, Request]] = field(default_factory=deque)
    num_taken: int = 0  # requests taken so far
    is_exhausted: bool = False  # all requests are taken
    running: int = 0  # rows
    preparation_seconds: float = 0.0  # seconds that its requests took to make, which count towards a timeout
    outputs: deque[list[StepOutput]] = field(default_factory=deque)  # of steps, not yet taken
    wakeups: Wakeups = field(default_factory=Wakeups)  # of the threads that wait for it
    _error: BaseException | None = None

    @property
    def is_pending(self) -> bool:
        """Whether the caller has something to wait for."""
        to_come = not self.is_cancelled and bool(self.running or self.waiting or not self.is_exhausted)
        return bool(self.outputs or self._error) or to_come

    @property
    def is_active(self) -> bool:
        """Whether a forward pass would advance it."""
        return not self.is_cancelled and bool(self.running or self.waiting)

    @property
    def has_rows(self) -> bool:
        """Whether one of its rows is running or may still begin."""
        return bool(self.running) or not (self.is_cancelled or (self.is_exhausted and not self.waiting))

    def fill(self) -> None:
        """Take requests until a batch would be full."""
        while not (self.is_exhausted or self.is_cancelled) and len(self.waiting) + self.running < self.room:
            try:
                request = next(self.requests)
            except StopIteration:
                self.is_exhausted = True
                return
            if request is None:
                return
            self.waiting.append((self.num_taken, replace(request, owner=self)))
            self.num_taken += 1

    def take(self) -> list[StepOutput] | None:
        """The oldest outputs not yet taken; None if there are none. Raises the error that ended the ticket."""
        if self.outputs:
            return self.outputs.popleft()
        if self._error is not None:
            error, self._error = self._error, None
            self.is_exhausted = True
            raise error
        # An empty list tells the caller to supply more requests: nothing else is pending.
        return [] if not (self.running or self.waiting or self.is_exhausted) else None

    def fail(self, error: BaseException) -> None:
        """End all rows with an error, which is raised in the caller."""
        if isinstance(error, (StopIteration, StopAsyncIteration)):  # they would end the generators that raise them
            wrapped = RuntimeError(f"a drafter, processor or criterion raised {error!r}")
            wrapped.__cause__ = error
            error = wrapped
        if self._error is None and not self.is_cancelled:
            self._error = error
        self.is_cancelled = True
        self.waiting.clear()
        self.wake()

    def wake(self) -> None:
        """Wake the threads and the event loop that wait for the ticket."""
        self.wakeups.notify_all()
        if self.loop is not None and self.arrived is not None:
            with suppress(RuntimeError):  # the loop is closed, and so nobody waits
                self.loop.call_soon_threadsafe(self.arrived.set)


@dataclass(eq=False, slots=True)
class Lane:
    """One running batch and the callers whose requests run in it or wait for a row.

    Between steps it is idle, without a `driver`. Its only caller drives it in the caller's own thread: `only` is then
    its ticket, and no other requests join the batch. Once others wait too, the worker drives it, for all of them.
    """

    decode: Callable[[Iterable[Request | None]], Generator[list[StepOutput], None, None]]
    lock: threading.Lock  # the scheduler's, which is held around every method except `take`
    tickets: deque[Ticket] = field(default_factory=deque)
    """Live callers; they take turns for free rows, the first one next."""
    worker: threading.Thread | None = None
    driver: int | None = None  # ident of the thread that runs a step
    steps: Generator[list[StepOutput], None, None] | None = None  # of the batch; None: the next step starts one
    only: Ticket | None = None  # whose requests alone may join the batch; None: those of all callers
    rows: dict[int, tuple[Ticket, int]] = field(default_factory=dict)
    """Row of the batch -> its ticket and the index of the request."""
    num_rows: int = 0  # rows of the batch so far
    wakeups: Wakeups = field(default_factory=Wakeups)  # of the worker

    @property
    def running(self) -> int:
        """Number of running rows."""
        return len(self.rows)

    @property
    def needs_worker(self) -> bool:
        """Whether there is work that no caller drives itself."""
        live = [ticket for ticket in self.tickets if not ticket.is_cancelled]  # once: others cancel without the lock
        if self.driver is not None or not any(ticket.is_active for ticket in live):
            return False
        return len(live) > 1 or live[0].arrived is not None

    def wake(self) -> None:
        """Wake all callers of the lane, after changes that concern all of them. Called at every step, it would cost 200
        callers a quarter of their throughput."""
        self.wakeups.notify_all()
        for ticket in self.tickets:
            ticket.wake()

    def deliver(self, outputs: Sequence[StepOutput], only: Ticket | None = None) -> None:
        """Hand each caller the outputs of its rows from one step. `only`: the caller that ran the step itself, and is
        not woken; None: a worker ran it."""
        parts: dict[Ticket, list[StepOutput]] = {}
        ended = False
        for output in outputs:
            ticket, index = self.rows[output.row]
            if output.finish is not None:
                ended = True
                del self.rows[output.row]
                ticket.running -= 1
            output.row = index
            parts.setdefault(ticket, []).append(output)
        for ticket, part in parts.items():
            if not ticket.is_cancelled:
                ticket.outputs.append(part)
            if ticket is not only and not (ticket.is_whole and ticket.running):
                ticket.wake()
        if ended:
            self._prune()

    def fail(self, error: BaseException, only: Ticket | None = None) -> Generator[list[StepOutput], None, None] | None:
        """Drop the batch after an error and pass the error to the callers whose rows ran. Waiting requests run in a new
        batch. If no row ran, no request can start and all callers get the error, except that an interrupt goes to
        `only`, the caller that was driving.

        Returns the step generator, to be closed by the caller without the lock: an interrupt may have come before or
        after the step, and closing takes the model's lock, whose holder may be waiting for this one.
        """
        failed = {ticket for ticket, _ in self.rows.values()} or (
            {only} if only is not None and not isinstance(error, Exception) else set(self.tickets)
        )
        self.rows.clear()
        steps, self.steps = self.steps, None
        for ticket in failed:
            ticket.running = 0
            ticket.fail(error)
        self._prune()
        return steps

    def fail_all(self, error: BaseException) -> Generator[list[StepOutput], None, None] | None:
        """Pass the error to all callers. Returns what `fail` does."""
        steps = self.fail(error)
        for ticket in tuple(self.tickets):
            ticket.fail(error)
        self._prune()
        return steps

    def abandoned(self) -> Generator[list[StepOutput], None, None] | None:
        """The step generator of a batch that nobody waits for, to be closed by the caller without the lock; else
        None."""
        if self.driver is not None or not all([ticket.is_cancelled for ticket in self.tickets]):
            return None
        steps, self.steps = self.steps, None
        for ticket, _ in self.rows.values():
            ticket.running = 0
        self.rows.clear()
        self.tickets.clear()
        return steps

    def take(self) -> Iterator[Request | None]:
        """Yield requests for the batch, one from each caller in turn; None if nobody waits."""
        while True:
            request = None
            with self.lock:
                for _ in range(len(self.tickets)):
                    ticket = self.tickets[0]
                    self.tickets.rotate(-1)  # to the back, so that a caller with many requests does not delay others
                    if ticket.waiting and not ticket.is_cancelled and self.only in (None, ticket):
                        index, request = ticket.waiting.popleft()
                        ticket.running += 1
                        self.rows[self.num_rows] = ticket, index
                        self.num_rows += 1
                        break
            yield request

    def _prune(self) -> None:
        self.tickets = deque(ticket for ticket in self.tickets if ticket.has_rows)


class TimeLimit:
    """A deadline for a caller's waiting."""

    def __init__(self, seconds: float | None, spent: float = 0.0) -> None:
        """`spent`: seconds of it that have passed."""
        self._seconds = seconds
        self._deadline = None if seconds is None else monotonic() + seconds - spent

    def left(self) -> float | None:
        """Remaining seconds, at least 0; None: no limit."""
        return None if self._deadline is None else max(0.0, self._deadline - monotonic())

    def error(self) -> TimeoutError:
        return TimeoutError(
            f"no complete answer within timeout={self._seconds!r} seconds; give it more time, fewer new tokens or "
            "shorter texts"
        )
