"""Keeps a number of requests under way, and gives their answers in the order in which they end."""

from __future__ import annotations

import logging
import queue
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from typing import TypeVar

logger = logging.getLogger(__name__)

Question = TypeVar("Question")
Answer = TypeVar("Answer")


def as_ended(
    inputs: Iterable[Question | None], start: Callable[[Question], Future[Answer]], most: int
) -> Iterator[tuple[int, Answer]]:
    """Yield (index of the input, its answer), with at most that many under way. A None among the inputs means that none
    is available until an answer has come.

    The first Ctrl-C only ends the taking of inputs: answers that are under way may have been paid for.
    """
    ended: queue.SimpleQueue[int | None] = queue.SimpleQueue()  # None: Ctrl-C
    running: dict[int, Future[Answer]] = {}
    waiting, count, has_more, is_stopped = iter(inputs), 0, True, False

    def stop() -> None:
        nonlocal is_stopped
        is_stopped = True
        ended.put(None)  # wakes the wait
        logger.warning("stopping: %d answers are under way and will be kept (Ctrl-C again drops them)", len(running))

    with _held_interrupts(stop):
        try:
            while True:
                while has_more and not is_stopped and len(running) < most:
                    try:
                        each = next(waiting)
                    except StopIteration:
                        has_more = False
                        break
                    if each is None:
                        break
                    running[count] = start(each)
                    running[count].add_done_callback(partial(_put, ended, count))
                    count += 1
                if not running and is_stopped:
                    raise KeyboardInterrupt
                if not running and not has_more:
                    return
                number = ended.get() if running else None
                if number is not None:
                    yield number, running.pop(number).result()
        finally:
            for future in running.values():
                future.cancel()


def _put(ended: queue.SimpleQueue[int | None], index: int, _: object) -> None:
    ended.put(index)


@contextmanager
def _held_interrupts(stop: Callable[[], object]) -> Iterator[None]:
    """Call `stop` at the first Ctrl-C in the block, in place of an interrupt; the second one interrupts."""
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or before is not signal.default_int_handler:
        yield
        return

    def hold(number: int, frame: object) -> None:
        signal.signal(signal.SIGINT, before)
        stop()

    signal.signal(signal.SIGINT, hold)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
