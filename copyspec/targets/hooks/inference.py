"""torch's inference mode, in a form that an interrupt (Ctrl-C) cannot leave open."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import wraps
from typing import ParamSpec, TypeVar

import torch

P = ParamSpec("P")
T = TypeVar("T")


inference_mode: Callable[[bool], AbstractContextManager[None]] = torch._C._InferenceMode
"""Like `torch.inference_mode`, for one `with` statement.

`torch.inference_mode` enters and leaves in Python. A signal that arrives as its `__exit__` begins skips the rest, and
the mode then ends whenever the garbage collector frees it: possibly during a later pass, which fails. The class
underneath is written in C++, where no signal is handled. It is also faster: 0.7 in place of 1.7 us.
"""


def in_inference_mode(function: Callable[P, T]) -> Callable[P, T]:
    """Decorator for functions and methods that run in `inference_mode`."""

    @wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        with inference_mode(True):
            return function(*args, **kwargs)

    return run
