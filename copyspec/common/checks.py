"""Checks of arguments. Errors name the argument, its value and the valid values."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import field
from numbers import Integral, Real
from typing import Any, TypeGuard


def option(default: Any, help: str, *names: str, **settings: Any) -> Any:
    """A field of a dataclass of options, with what the command line shows and takes: its help text, its names if they
    are not the field's, and settings of the parser (`copyspec.cli.options`)."""
    return field(default=default, metadata={"help": help, "names": names, **settings})


def brief(value: object) -> str:
    """The repr of a bad value for an error message, cut to what fits a line. Never raises."""
    try:
        text = repr(value)
    except Exception as error:  # a caller's own class
        return f"<a value whose repr raises {type(error).__name__}>"
    return text if len(text) <= 80 else text[:77] + "..."


def cut(message: str) -> str:
    """A library's message without its middle if it is long: it may repeat what it was given, and says why at an end."""
    return message if len(message) <= 500 else f"{message[:300]} ... {message[-150:]}"


def shown(value: object) -> str:
    """Format a bad value for an error message: its type, and as much of it as fits a line."""
    return f"{type(value).__name__}: {brief(value)}"


def plain_value(value: object) -> object:
    """Convert numbers of numpy and the like to int and float, and arrays and tensors to nested lists; return anything
    else unchanged, tensors without data of their own (on meta, sparse) too."""
    if isinstance(value, (bool, str, bytes, Mapping, list, tuple)):
        return value
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value)
    tolist = getattr(value, "tolist", None)
    if not callable(tolist):
        return value
    try:
        return tolist()
    except Exception:  # the caller's check of the type says what is wrong with it
        return value


def check_strings(name: str, value: str | Sequence[str] | None) -> tuple[str, ...]:
    """Convert to a tuple of strings; a single string counts as one element, never as its characters."""
    if value is None:
        return ()
    strings = (value,) if isinstance(value, str) else tuple(value)
    for string in strings:
        if not isinstance(string, str) or not string:
            raise ValueError(f"{name} must be a non-empty string or a list of them, got {brief(string)}")
    return strings


def check_type(fits: bool, name: str, value: object, what: str) -> None:
    """Raise TypeError unless `fits`; `what` describes a valid `value`."""
    if not fits:
        raise TypeError(f"{name} must be {what}; got {shown(value)}")


def check_retriever(name: str, value: object) -> None:
    """Raise TypeError unless `value` can be searched as a `copyspec.retrievers.Retriever`."""
    searches = callable(getattr(value, "search", None)) and callable(getattr(value, "search_batch", None))
    check_type(
        searches and not isinstance(value, type),
        name,
        value,
        "a retriever, for example copyspec.retrievers.BM25Retriever",
    )


def check_flag(name: str, value: object) -> bool:
    """Return `value`. Raises TypeError if it is not a bool."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False; got {shown(value)}")
    return value


def check_flag_or_count(name: str, value: object) -> None:
    """Raise TypeError or ValueError if `value` is neither a bool nor an integer >= 1."""
    if isinstance(value, int) and not isinstance(value, bool):
        check_count(name, value)
    elif not isinstance(value, bool):
        raise TypeError(f"{name} must be True, False or a number of tokens; got {shown(value)}")


def check_number(
    name: str,
    value: float,
    *,
    low: float,
    high: float = math.inf,
    open_low: bool = False,
    why: str = "",
) -> None:
    """Raise ValueError if `value` is not a number within the bounds, or an int that no float holds; `why` explains the
    meaning of a special value."""
    fits = isinstance(value, (int, float)) and not isinstance(value, bool) and low <= value <= high
    huge = isinstance(value, int) and abs(value) > sys.float_info.max
    if not fits or (open_low and value == low) or huge:
        bounds = f"{'above' if open_low else 'at least'} {low:g}"
        bounds += f" and at most {high:g}" if high < math.inf else " that a float can hold" if huge else ""
        raise ValueError(f"{name} must be a number {bounds}{f' ({why})' if why else ''}, got {brief(value)}")


def check_whole(name: str, value: int, *, low: int, high: int | None = None, why: str = "") -> None:
    """Raise ValueError if `value` is not an integer within the bounds."""
    if not isinstance(value, int) or isinstance(value, bool) or value < low or (high is not None and value > high):
        bounds = f">= {low}" if high is None else f"from {low} to {high}"
        raise ValueError(f"{name} must be an integer {bounds}{f' ({why})' if why else ''}, got {brief(value)}")


def check_count(name: str, value: object) -> int:
    """Return `value`. Raises ValueError if it is not an integer >= 1 that a list could have as its length."""
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= sys.maxsize:
        bounds = f"from 1 to {sys.maxsize}" if isinstance(value, int) and value > sys.maxsize else ">= 1"
        raise ValueError(f"{name} must be an integer {bounds}, got {brief(value)}")
    return value


def is_ids(value: Sequence[object]) -> TypeGuard[Sequence[int]]:
    """Whether a sequence starts with an integer, that is, holds token ids, valid or not."""
    return len(value) > 0 and isinstance(value[0], Integral) and not isinstance(value[0], bool)


def check_ids(ids: Sequence[object], where: str) -> list[int]:
    """Return token ids as a list. Raises ValueError that names the first invalid one."""
    result: list[int] = []
    for i, token in enumerate(ids):
        if not isinstance(token, Integral) or isinstance(token, bool) or int(token) < 0:
            raise ValueError(f"{where}[{i}] is not a token id: {brief(token)}; token ids are integers from 0")
        result.append(int(token))
    return result


def is_panic(error: BaseException) -> bool:
    """Whether an error is a panic of Rust code (tokenizers, safetensors), which is not an `Exception`."""
    return type(error).__name__ == "PanicException"
