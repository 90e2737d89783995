"""Checks of what callers give: the error names the argument, its value and what it may be."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from numbers import Integral, Real


def shown(value: object) -> str:
    """A bad value in an error message: its type, and as much of it as fits a line."""
    text = repr(value)
    return f"{type(value).__name__}: {text if len(text) <= 80 else text[:77] + '...'}"


def plain_list(value: object) -> object:
    """Arrays and tensors as nested lists; anything else as it is."""
    if isinstance(value, (str, bytes, Mapping, list, tuple)):
        return value
    tolist = getattr(value, "tolist", None)
    return tolist() if callable(tolist) else value


def plain_number(value: object) -> object:
    """Numbers of numpy and the like as int and float; anything else as it is."""
    if isinstance(value, bool):
        return value
    if isinstance(value, Integral):
        return int(value)
    return float(value) if isinstance(value, Real) else value


def check_strings(name: str, value: str | Sequence[str] | None) -> tuple[str, ...]:
    """`value` as a tuple of strings: one string stands for itself, never for its characters."""
    if value is None:
        return ()
    strings = (value,) if isinstance(value, str) else tuple(value)
    for string in strings:
        if not isinstance(string, str) or not string:
            raise ValueError(f"{name} must be a non-empty string or a list of them, got {string!r}")
    return strings


def check_type(fits: bool, name: str, value: object, what: str) -> None:
    """Raises TypeError where `value` does not fit, with `what` it must be."""
    if not fits:
        raise TypeError(f"{name} must be {what}; got {shown(value)}")


def check_flag(name: str, value: object) -> bool:
    """`value`; raises TypeError where it is no bool."""
    check_type(isinstance(value, bool), name, value, "True or False")
    return bool(value)


def check_number(
    name: str,
    value: float,
    *,
    low: float,
    high: float = math.inf,
    open_low: bool = False,
    why: str = "",
) -> None:
    """Raises ValueError where `value` is no number within the bounds; `why`: what an odd value in them means."""
    fits = isinstance(value, (int, float)) and not isinstance(value, bool) and low <= value <= high
    if not fits or (open_low and value == low):
        bounds = f"{'above' if open_low else 'at least'} {low:g}"
        bounds += f" and at most {high:g}" if high < math.inf else ""
        raise ValueError(f"{name} must be a number {bounds}{f' ({why})' if why else ''}, got {value!r}")


def check_whole(name: str, value: int, *, low: int, high: int | None = None, why: str = "") -> None:
    """Raises ValueError where `value` is no whole number within the bounds."""
    if not isinstance(value, int) or isinstance(value, bool) or value < low or (high is not None and value > high):
        bounds = f"at least {low}" if high is None else f"from {low} to {high}"
        raise ValueError(f"{name} must be a whole number {bounds}{f' ({why})' if why else ''}, got {value!r}")


def is_panic(error: BaseException) -> bool:
    """Whether an error is a panic of Rust code (tokenizers, safetensors), which is no `Exception`."""
    return type(error).__name__ == "PanicException"
