"""One thread that searches while its caller does something else."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from time import perf_counter
from typing import Generic, TypeVar

Found = TypeVar("Found")


class Search(Generic[Found]):
    """A search in the worker thread."""

    def __init__(self, future: Future[tuple[Found, float]]) -> None:
        self._future = future

    def done(self) -> bool:
        """Whether `result` returns, or raises, at once."""
        return self._future.done()

    def result(self) -> Found:
        """What was found; waits for it. Raises what the search raised."""
        return self._future.result()[0]

    @property
    def seconds(self) -> float:
        """Of the search itself; waits for it."""
        return self._future.result()[1]

    def cancel(self) -> None:
        """Nobody will ask for the result: a search that has not begun never does."""
        self._future.cancel()


class Worker:
    """Runs searches one after the other. The thread starts with the first one and ends with `close`."""

    def __init__(self) -> None:
        self._threads: ThreadPoolExecutor | None = None
        self._lock = threading.Lock()
        self._closed = False

    def submit(self, search: Callable[[], Found]) -> Search[Found]:
        """Starts `search`. Raises RuntimeError after `close`."""

        def timed() -> tuple[Found, float]:
            started = perf_counter()
            found = search()
            return found, perf_counter() - started

        with self._lock:
            if self._closed:
                raise RuntimeError("this retriever was closed: make another one, or do not close it before its end")
            if self._threads is None:
                self._threads = ThreadPoolExecutor(1, thread_name_prefix="copyspec-search")
            return Search(self._threads.submit(timed))

    def close(self) -> None:
        """Waits for the running search; those that have not begun are cancelled. Safe to call twice."""
        with self._lock:
            self._closed, threads, self._threads = True, self._threads, None
        if threads is not None:
            threads.shutdown(wait=True, cancel_futures=True)
