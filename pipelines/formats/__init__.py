"""File formats: what is text in a file, and how it is written back."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import PurePath

from ..documents import Format, FormatError
from .text import TextFormat

__all__ = ["FormatOptions", "TextFormat", "format_of"]

_SUFFIXES = {
    "": "txt",
    ".txt": "txt",
    ".text": "txt",
}
NAMES = ("txt", "lines", "parallel")


@dataclass(frozen=True, slots=True)
class FormatOptions:
    """What a format may be told; each reads what concerns it."""

    encoding: str = "utf-8"
    by_line: bool = False  # txt: one segment a line


def format_of(path: str | os.PathLike[str], name: str | None = None, *, options: FormatOptions | None = None) -> Format:
    """The format called `name`, or the one of the path's suffix; `-` (standard input) and no suffix are plain text.

    Raises FormatError where the suffix is unknown, ValueError for an unknown name.
    """
    if name is None:
        suffix = PurePath(path).suffix.lower()
        if suffix not in _SUFFIXES:
            known = ", ".join(sorted(filter(None, _SUFFIXES)))
            raise FormatError(
                f"{os.fspath(path)!r}: no format for {suffix!r}; known are {known}, or name one of {NAMES}"
            )
        name = _SUFFIXES[suffix]
    return _made(name, options or FormatOptions())


def _made(name: str, options: FormatOptions) -> Format:
    if name == "txt":
        return TextFormat(by_line=options.by_line, encoding=options.encoding)
    if name in ("lines", "parallel"):
        return TextFormat(by_line=True, is_tokenized=name == "parallel", encoding=options.encoding)
    raise ValueError(f"unknown format {name!r}: name one of {NAMES}")
