"""Progress bars of libraries, which belong on terminals only: in a pipe or a log file each step would be a line."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def hidden_bars(hidden: bool | None = None) -> Iterator[None]:
    """Hide the bars of transformers and of the hub's client. None: unless stderr is a terminal."""
    from transformers.utils import logging

    if hidden is None:
        hidden = sys.stderr is None or not sys.stderr.isatty()
    if not hidden or not logging.is_progress_bar_enabled():
        yield
        return
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        logging.enable_progress_bar()  # type: ignore[no-untyped-call]


@contextmanager
def hidden_gguf_bar() -> Iterator[None]:
    """Show the bar over a GGUF file's tensors, which transformers has no switch for, on a terminal only."""
    from transformers import modeling_gguf_pytorch_utils as reader

    bar = getattr(reader, "tqdm", None)
    if bar is None:
        yield
        return
    reader.tqdm = functools.partial(bar, disable=None)  # type: ignore[attr-defined]  # None: unless it is a terminal
    try:
        yield
    finally:
        reader.tqdm = bar  # type: ignore[attr-defined]
