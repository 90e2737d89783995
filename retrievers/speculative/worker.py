"""A worker thread for searches, with results as light-weight futures."""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import CancelledError
from contextlib import suppress
from queue import Empty, SimpleQueue
from time import perf_counter
from typing import Generic, TypeVar

from copyspec.common.forks import fork_safe
from copyspec.common.lockless import LiveSet

Found = TypeVar("Found", covariant=True)


class Search(Generic[Found]):
    """The future of a search, usually in the worker thread.

    Every step of generation submits one, so it must be cheap: a lock that is held until the search has ended takes a
    fraction of the time of a `concurrent.futures.Future`.
    """

    def __init__(self, search: Callable[[], Found], then: Callable[[Found], None] | None = None) -> None:
        """`then`: called with the result, in the same thread and before `done`; the search raises what it raises."""
        self._search: Callable[[], Found] | None = search
        self._then = then
        self._is_done = False
        self._running = threading.Lock()  # held until the search is done; no fork waits for it
        self._running.acquire()
        self._claim = threading.Lock()  # taken once, by the worker or by `cancel`; no fork waits for it
        self._found: Found
        self._error: BaseException | None = None
        self._seconds = 0.0

    @staticmethod
    def here(search: Callable[[], Found]) -> Search[Found]:
        """Run the search in the caller's thread, and return it, finished."""
        made = Search(search)
        made.run()
        return made

    def done(self) -> bool:
        """Whether `result` returns or raises without waiting."""
        return self._is_done

    def result(self) -> Found:
        """Wait for the result. Raises what the search raised, or CancelledError if it was cancelled."""
        self._wait()
        if self._error is not None:
            raise self._error
        return self._found

    @property
    def seconds(self) -> float:
        """Duration of the search itself; waits for its end."""
        self._wait()
        return self._seconds

    def cancel(self) -> None:
        """Cancel the search if it has not begun."""
        if self._claim.acquire(blocking=False):
            self._error, self._search = CancelledError(), None
            self._end()

    def run(self) -> None:
        """Run the search in this thread, unless it was cancelled. Never raises."""
        if not self._claim.acquire(blocking=False):
            return
        search, self._search = self._search, None  # so that all it refers to can be freed
        then, self._then = self._then, None
        started = perf_counter()
        try:
            assert search is not None
            self._found = search()
            self._seconds = perf_counter() - started
            if then is not None:
                then(self._found)
        except BaseException as error:
            self._error = error
            self._seconds = perf_counter() - started
        self._end()

    def lose(self) -> None:
        """Fail the search after a fork: its thread does not exist in this process."""
        if self._is_done:
            return
        self._error = RuntimeError(
            "this process was forked while a search ran, which only the parent will end: search again, or start "
            'processes with multiprocessing.get_context("spawn")'
        )
        self._end()

    def _end(self) -> None:
        self._is_done = True
        self._running.release()

    def _wait(self) -> None:
        if not self._is_done:
            with self._running:
                pass


class Worker:
    """Runs searches one after the other. The thread starts with the first one, and ends with `close` or when the worker
    is garbage-collected."""

    def __init__(self) -> None:
        self._queue: _Queue = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lock = fork_safe(threading.Lock())
        self._closed = False
        _WORKERS.add(self)

    def submit(self, search: Callable[[], Found], then: Callable[[Found], None] | None = None) -> Search[Found]:
        """Queue `search`. Raises RuntimeError after `close`."""
        submitted = Search(search, then)
        with self._lock:
            if self._closed:
                raise RuntimeError("this retriever was closed: make another one, or do not close it before its end")
            self._queue.put(submitted)
            if self._thread is None:
                self._thread = _started(self._queue)
                weakref.finalize(self, self._queue.put, None).atexit = False
        return submitted

    def forget_thread(self) -> None:
        """After a fork, in the child, where the thread does not exist: cancel the queue; the next search starts a new
        thread."""
        if self._thread is not None:
            _cancel(self._queue)
            self._thread, self._queue = None, SimpleQueue()

    def close(self) -> None:
        """Wait for the running search, and cancel those that have not begun. Safe to call twice."""
        with self._lock:
            self._closed, thread, self._thread = True, self._thread, None
        if thread is None:
            return
        _end(self._queue)
        if thread is not threading.current_thread():
            thread.join()


_WORKERS: LiveSet[Worker] = LiveSet()
_SEARCHING: dict[int, Search[object]] = {}  # the running search of each worker thread
_Queue = SimpleQueue[Search[object] | None]  # None ends the thread
_RUNNING: dict[threading.Thread, _Queue] = {}


def _started(queue: _Queue) -> threading.Thread:
    # A daemon thread: else the interpreter would wait for it before it runs the atexit handlers.
    thread = threading.Thread(target=_run, args=(queue,), name="copyspec-search", daemon=True)
    _RUNNING[thread] = queue  # until it ends
    thread.start()
    return thread


def _run(queue: _Queue) -> None:
    me = threading.get_ident()
    while (search := queue.get()) is not None:
        _SEARCHING[me] = search
        search.run()
        del search, _SEARCHING[me]  # free it now, not when the next search comes
    _RUNNING.pop(threading.current_thread(), None)


@atexit.register
def _end_all() -> None:
    """End all threads at exit: a running search would continue in a half-destroyed interpreter."""
    for thread, queue in list(_RUNNING.items()):
        _end(queue)
        thread.join()


def _end(queue: _Queue) -> None:
    """Cancel the waiting searches; the thread ends after the running one."""
    _cancel(queue)
    queue.put(None)


def _cancel(queue: _Queue) -> None:
    with suppress(Empty):
        while True:
            waiting = queue.get_nowait()
            if waiting is not None:
                waiting.cancel()


def _forget_threads() -> None:
    for search in list(_SEARCHING.values()):
        search.lose()
    _SEARCHING.clear()
    _RUNNING.clear()
    for worker in list(_WORKERS):
        worker.forget_thread()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_threads)
