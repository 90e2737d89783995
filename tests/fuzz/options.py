"""Tests wrong types and values for every keyword of `generate` and its relatives, `load` and `configure`.

python -m tests.fuzz.options

Each case gives one keyword one value, in this process, with a limit of time. Allowed outcomes: it works, or a
ValueError, TypeError or LoadError of copyspec that names the keyword or shows the value, within some lines. Everything
else is a fault, and is printed: other errors, messages that name neither, and calls that take too long.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fractions import Fraction
from types import FrameType
from typing import Any

import numpy as np
import torch

import copyspec
from copyspec.api import ModelKeywords
from copyspec.engine.asking.keywords import GenerateOptions

SECONDS = 60
LONGEST = 1000  # characters of a message; a value is shown cut, and a list of what is valid may be long

CALLED = ("drafter", "logits_processor", "stopping_criteria")
"""Keywords whose values are called."""

TEXT = "Correct the grammar: we has time."


class _Odd:
    """A value whose methods raise."""

    def __repr__(self) -> str:
        raise RuntimeError("no repr")

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("no comparison")

    __hash__ = object.__hash__


def values() -> dict[str, Any]:
    """Wrong and unusual values, by name."""
    recursive: list[Any] = []
    recursive.append(recursive)
    return {
        "nan": math.nan, "inf": math.inf, "-inf": -math.inf, "-1": -1, "0": 0, "1": 1, "-0.5": -0.5, "0.5": 0.5,
        "1.5": 1.5, "2**31": 2**31, "2**63": 2**63, "2**64": 2**64, "10**400": 10**400, "-10**400": -(10**400),
        "1e308": 1e308, "True": True, "False": False, "complex": 1j, "Fraction": Fraction(1, 2),
        "np.int64": np.int64(3), "np.float32": np.float32(0.5), "np.float64 nan": np.float64("nan"),
        "np.bool_": np.bool_(True), "np.str_": np.str_("x"), "np.array()": np.array(3), "np.array": np.array([1, 2]),
        "np.array empty": np.array([]), "np.array 3d": np.zeros((2, 2, 2)), "tensor()": torch.tensor(2),
        "tensor": torch.tensor([1.0, 2.0]), "tensor nan": torch.tensor(math.nan), "'': empty str": "", "str": "x",
        "str number": "3", "surrogate": "a\ud800b", "nul": "a\x00b", "1 MB": "a b" * 340_000, "bytes": b"x",
        "bytearray": bytearray(b"x"), "[]": [], "()": (), "{}": {}, "set": {1}, "[[]]": [[]], "[[[]]]": [[[]]],
        "[None]": [None], "['']": [""], "['x']": ["x"], "[1, 'x']": [1, "x"], "[nan]": [math.nan], "[-1]": [-1],
        "[True]": [True], "[10**400]": [10**400], "[surrogate]": ["\udfff"], "[b'x']": [b"x"], "{'x': 1}": {"x": 1},
        "{1: nan}": {1: math.nan}, "{-1: 1}": {-1: 1.0}, "{10**400: 1}": {10**400: 1.0}, "{None: None}": {None: None},
        "nested dict": {"a": {"b": [1]}}, "recursive": recursive, "object": object(), "type": int, "lambda": lambda: 1,
        "print": print, "range": range(3), "generator": (letter for letter in "ab"), "iter": iter([]), "module": sys,
        "odd": _Odd(), "Ellipsis": ..., "NotImplemented": NotImplemented, "exception": ValueError("x"),
    }  # fmt: skip


class _Late(BaseException):
    """The limit of time is over. No Exception, so that no handler takes it."""


@contextmanager
def limited(seconds: int) -> Iterator[None]:
    """Raise in the block when the time is over."""

    def late(number: int, frame: FrameType | None) -> None:
        raise _Late

    signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)


def fault(call: Callable[[], object], name: str, value: object) -> str | None:
    """What is wrong with the outcome of a call that was given `name=value`; None: nothing."""
    try:
        with limited(SECONDS):
            call()
    except (ValueError, TypeError, copyspec.LoadError, TimeoutError) as error:
        message = str(error)
        if len(message) > LONGEST:
            return f"a message of {len(message):,} characters: {message[:200]}"
        shown = [_begins(value), *map(_begins, value if isinstance(value, list) else ())]
        named = name in message or name.replace("_", " ") in message or any(text in message for text in shown)
        if callable(value) and name in CALLED:
            return None  # an error of the caller's own function
        return None if named else f"{type(error).__name__} that names neither: {message[:300]}"
    except RuntimeError as error:
        return None if isinstance(value, _Odd) else f"{type(error).__name__}: {str(error)[:300]}"
    except _Late:
        return f"no end after {SECONDS} s"
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:300]}"
    return None


def _begins(value: object) -> str:
    try:
        return repr(value)[:40]
    except Exception:
        return "\0"


def calls(engine: copyspec.Engine) -> dict[str, tuple[Callable[..., object], tuple[str, ...]]]:
    """By name: a function of keywords, and those it takes."""
    few = {"max_new_tokens": 3}

    def generate(**kwargs: Any) -> object:
        return engine.generate(**{"prompt": TEXT, **few, **kwargs})

    def stream(**kwargs: Any) -> object:
        return list(engine.stream(**{"prompt": TEXT, **few, **kwargs}))

    def compare(**kwargs: Any) -> object:
        return copyspec.compare(**{"prompt": TEXT, "model": engine, **few, **kwargs})

    def agenerate(**kwargs: Any) -> object:
        return asyncio.run(copyspec.agenerate(**{"prompt": TEXT, "model": engine, **few, **kwargs}))

    def load(**kwargs: Any) -> object:
        try:
            return copyspec.load(**{"model": "default", **kwargs})
        finally:
            copyspec.unload()

    def configure(**kwargs: Any) -> object:
        try:
            copyspec.configure(**kwargs)
            return copyspec.generate(TEXT, max_new_tokens=3)
        finally:
            copyspec.configure(model="default")

    own = ("prompt", "references", *sorted(GenerateOptions.__annotations__))
    of_model = ("model", *sorted(set(ModelKeywords.__annotations__) - {"model"}))
    return {
        "generate": (generate, own),
        "stream": (stream, own),
        "compare": (compare, own),
        "agenerate": (agenerate, own),
        "load": (load, of_model),
        "configure": (configure, of_model),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", help="names, with commas between them; default: all")
    parser.add_argument("--keywords", help="names, with commas between them; default: all")
    options = parser.parse_args()
    copyspec.configure(model="default")
    engine = copyspec.load("default", dtype="float32")
    engine.generate(TEXT, max_new_tokens=3)
    count = faults = 0
    for called, (call, names) in calls(engine).items():
        if options.calls and called not in options.calls.split(","):
            continue
        for name in names:
            if options.keywords and name not in options.keywords.split(","):
                continue
            for shown, value in values().items():
                count += 1
                wrong = fault(lambda call=call, name=name, value=value: call(**{name: value}), name, value)  # type: ignore[misc]
                if wrong is not None:
                    faults += 1
                    print(f"{called}({name}={shown}): {wrong}", flush=True)
    print(f"{count} cases, {faults} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
