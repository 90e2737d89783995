"""Ends the command on SIGTERM and SIGHUP as on Ctrl-C: temporary files are deleted, and journals are kept."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_NAMES = ("SIGTERM", "SIGHUP")  # from `timeout`, service managers and closed terminals; Windows lacks the second


class Ended(BaseException):
    """A signal ends the process. Not a KeyboardInterrupt, after which `chat` would go on."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Raise Ended in the block when such a signal comes, and then end the process by the signal, which its parent sees.

    A second signal ends it at once. Signals that are ignored, as under `nohup`, or that have a handler stay so.
    """
    taken: list[signal.Signals] = []

    def end(number: int, frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_DFL)
        raise Ended(number)

    if threading.current_thread() is threading.main_thread():
        for number in (getattr(signal, name) for name in _NAMES if hasattr(signal, name)):
            if signal.getsignal(number) is signal.SIG_DFL:
                signal.signal(number, end)
                taken.append(number)
    try:
        yield
    except Ended as error:
        signal.signal(error.number, signal.SIG_DFL)
        os.kill(os.getpid(), error.number)
    finally:
        for number in taken:
            if signal.getsignal(number) is end:
                signal.signal(number, signal.SIG_DFL)
