"""Errors for unknown option names, with the option that was probably meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

from copyspec.common.checks import brief

MAX_NAME = 64  # characters compared with the names: time grows with the square of them


@cache
def elsewhere() -> dict[str, str]:
    """Option names of other libraries, and their equivalents here. In a line of the file stand the names that one text
    is for, and * stands for each of them in it."""
    lines = Path(__file__).with_name("elsewhere.txt").read_text(encoding="utf-8").splitlines()
    pairs = (line.split(": ", 1) for line in lines)
    return {name: text.replace("*'", f"{name}'") for names, text in pairs for name in names.split()}


def reject_unknown(options: Mapping[str, object], known: Iterable[str]) -> None:
    """Raise TypeError for the first unknown name in `options`, suggesting the option that was probably meant."""
    names = sorted(known)
    for name in options:
        if name in names:
            continue
        if name in elsewhere():
            raise TypeError(f"unknown option {name!r}; here it is {elsewhere()[name]}")
        close = difflib.get_close_matches(str(name)[:MAX_NAME], names, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"options are {', '.join(names)}"
        raise TypeError(f"unknown option {brief(name)}; {hint}")
