"""One thread that searches while its caller does something else."""

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

from copyspec.forks import at_rest

Found = TypeVar("Found", covariant=True)


class Search(Generic[Found]):
    """A search in the worker thread.

    Handing it over is part of every step that is made while it runs: a lock that stays locked until the end takes a
    fraction of the time of a `concurrent.futures.Future`.
    """

    def __init__(self, search: Callable[[], Found]) -> None:
        self._search: Callable[[], Found] | None = search
        self._is_done = False
        self._running = threading.Lock()  # until it is done; no fork waits for that
        self._running.acquire()
        self._claim = threading.Lock()  # by the worker, or by who cancels; no fork waits for it
        self._found: Found
        self._error: BaseException | None = None
        self._seconds = 0.0

    def done(self) -> bool:
        """Whether `result` returns, or raises, at once."""
        return self._is_done

    def result(self) -> Found:
        """What was found; waits for it. Raises what the search raised, and CancelledError where it never began."""
        self._wait()
        if self._error is not None:
            raise self._error
        return self._found

    @property
    def seconds(self) -> float:
        """Of the search itself; waits for it."""
        self._wait()
        return self._seconds

    def cancel(self) -> None:
        """Nobody will ask for the result: a search that has not begun never does."""
        if self._claim.acquire(blocking=False):
            self._error, self._search = CancelledError(), None
            self._end()

    def run(self) -> None:
        """Searches, in this thread, unless it was cancelled. Never raises."""
        if not self._claim.acquire(blocking=False):
            return
        search, self._search = self._search, None  # and with it all that it holds
        started = perf_counter()
        try:
            assert search is not None
            self._found = search()
        except BaseException as error:
            self._error = error
        self._seconds = perf_counter() - started
        self._end()

    def lose(self) -> None:
        """The thread that it runs in is not there any more: whoever waits for it is told."""
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
    """Runs searches one after the other. The thread starts with the first one and ends with `close`, or when nobody
    has the worker any more."""

    def __init__(self) -> None:
        self._queue: _Queue = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lock = at_rest(threading.Lock())
        self._closed = False
        _WORKERS.add(self)

    def submit(self, search: Callable[[], Found]) -> Search[Found]:
        """Starts `search`. Raises RuntimeError after `close`."""
        submitted = Search(search)
        with self._lock:
            if self._closed:
                raise RuntimeError("this retriever was closed: make another one, or do not close it before its end")
            self._queue.put(submitted)
            if self._thread is None:
                self._thread = _started(self._queue)
                weakref.finalize(self, self._queue.put, None).atexit = False
        return submitted

    def forget_thread(self) -> None:
        """In a process that was forked, where it does not run: what waits for it is cancelled, the next search starts
        another."""
        if self._thread is not None:
            _cancel(self._queue)
            self._thread, self._queue = None, SimpleQueue()

    def close(self) -> None:
        """Waits for the running search; those that have not begun are cancelled. Safe to call twice."""
        with self._lock:
            self._closed, thread, self._thread = True, self._thread, None
        if thread is None:
            return
        _end(self._queue)
        if thread is not threading.current_thread():
            thread.join()


_WORKERS: weakref.WeakSet[Worker] = weakref.WeakSet()
_SEARCHING: dict[int, Search[object]] = {}  # what each worker's thread is at
_Queue = SimpleQueue[Search[object] | None]  # None ends the thread
_RUNNING: weakref.WeakKeyDictionary[threading.Thread, _Queue] = weakref.WeakKeyDictionary()


def _started(queue: _Queue) -> threading.Thread:
    # A daemon, else the interpreter waits for it before it tells anybody that it ends.
    thread = threading.Thread(target=_run, args=(queue,), name="copyspec-search", daemon=True)
    thread.start()
    _RUNNING[thread] = queue
    return thread


def _run(queue: _Queue) -> None:
    me = threading.get_ident()
    while (search := queue.get()) is not None:
        _SEARCHING[me] = search
        search.run()
        del search, _SEARCHING[me]  # not kept until the next one comes


@atexit.register
def _end_all() -> None:
    """A search that runs when the interpreter ends would run on in what is left of it."""
    for thread, queue in list(_RUNNING.items()):
        _end(queue)
        thread.join()


def _end(queue: _Queue) -> None:
    """Cancels what waits; the thread ends after what it is at."""
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
