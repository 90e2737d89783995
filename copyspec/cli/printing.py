"""Prints for the commands. Text may be somebody else's, so a terminal gets no control characters of it; pipes and files
get every byte as it is."""

from __future__ import annotations

import io
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, TextIO

from copyspec.views.escaping import visible

if TYPE_CHECKING:
    from rich.console import Console


class StdoutError(OSError):
    """Results could not be written on stdout, for example because the disk is full."""


@contextmanager
def _writing(stream: TextIO) -> Iterator[None]:
    """Raise StdoutError if stdout cannot be written in the block. A reader that has gone stays a BrokenPipeError."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        if stream is not sys.stdout:
            raise
        raise StdoutError(f"stdout cannot be written: {error.strerror or error}") from error


def echo(text: object = "", end: str = "\n", *, err: bool = False, flush: bool = False, is_safe: bool = False) -> None:
    """Print on stdout, or on stderr with `err`. `is_safe`: the text holds no escape sequences but our own."""
    stream = sys.stderr if err else sys.stdout
    shown = str(text) if is_safe else _shown(str(text), stream)
    with _writing(stream):
        try:
            print(shown, end=end, file=stream, flush=flush)
        except UnicodeEncodeError:  # a stream with an encoding that lacks the character, as stdout often has on Windows
            encoding = stream.encoding or "ascii"
            print(shown.encode(encoding, "backslashreplace").decode(encoding), end=end, file=stream, flush=flush)


def echo_bytes(data: bytes) -> None:
    """Write encoded text on stdout, behind what was printed before."""
    if is_terminal(sys.stdout):
        echo(data.decode("utf-8", "replace"), end="")
        return
    with _writing(sys.stdout):
        sys.stdout.flush()
        sys.stdout.buffer.write(data)


def flush_stdout() -> None:
    """Write out what was printed. Raises StdoutError if stdout does not take it."""
    with _writing(sys.stdout):
        sys.stdout.flush()


def console(*, err: bool = False, soft_wrap: bool = False) -> Console:
    """A rich console on stdout or stderr. Of the texts in what it prints, control characters are replaced, and
    characters that the stream's encoding lacks are escaped, as `echo` does."""
    from copyspec.views.terminal import SafeConsole

    stream = sys.stderr if err else sys.stdout
    if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
        stream.reconfigure(errors="backslashreplace")
    made = SafeConsole(stderr=err, highlight=False, soft_wrap=soft_wrap)
    made.writing = partial(_writing, stream)
    return made


def is_terminal(stream: object) -> bool:
    return bool(getattr(stream, "isatty", bool)())


class LogFormatter(logging.Formatter):
    """Formats records for stderr."""

    def format(self, record: logging.LogRecord) -> str:
        return _shown(super().format(record), sys.stderr)


def _shown(text: str, stream: TextIO) -> str:
    return visible(text.replace("\r\n", "\n")) if is_terminal(stream) else text
