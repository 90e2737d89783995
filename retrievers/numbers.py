"""Numbers on disk, read where they are asked for."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal, Protocol

Code = Literal["B", "I", "Q"]
"""The kind of a file's numbers, as in struct: unsigned, of 8, 32 or 64 bits."""

_BYTES: dict[Code, int] = {"B": 1, "I": 4, "Q": 8}


class Numbers(Protocol):
    """Unsigned numbers in a file."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> int: ...

    def part(self, start: int, end: int) -> memoryview[int]:
        """Those from `start` to before `end`; fewer where the file ends."""
        ...


class _ReadNumbers:
    """By a system call each. A mapped file would be in this process's memory soon: a system maps a whole block of its
    cache, of up to two megabytes, around each byte that is looked at. Reading at a place moves no file position:
    threads and forked processes share the file."""

    _close = staticmethod(os.close)  # held here: a module is emptied before what is left at the end of a program

    def __init__(self, path: Path, code: Code) -> None:
        self._code, self._bytes = code, _BYTES[code]
        self._file = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
        self._count = os.fstat(self._file).st_size // self._bytes
        if hasattr(os, "posix_fadvise"):  # a search jumps: what stands beside is not needed next
            os.posix_fadvise(self._file, 0, 0, os.POSIX_FADV_RANDOM)

    def __del__(self) -> None:
        if hasattr(self, "_file"):
            self._close(self._file)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> int:
        return memoryview(os.pread(self._file, self._bytes, index * self._bytes)).cast(self._code)[0]

    def part(self, start: int, end: int) -> memoryview[int]:
        size = self._bytes
        return memoryview(os.pread(self._file, (end - start) * size, start * size)).cast(self._code)


class _MappedNumbers:
    """Where a system cannot read at a place."""

    def __init__(self, path: Path, code: Code) -> None:
        self._numbers = mapped(path, code)

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, index: int) -> int:
        return self._numbers[index]

    def part(self, start: int, end: int) -> memoryview[int]:
        return self._numbers[start:end]


def numbers_of(path: Path, code: Code = "I") -> Numbers:
    """The numbers of a file, none of it read yet."""
    return _ReadNumbers(path, code) if hasattr(os, "pread") else _MappedNumbers(path, code)


def mapped(path: Path, code: Code = "I") -> memoryview[int]:
    """The numbers of a file mapped into memory: for small ones, which may stay there."""
    import mmap

    if path.stat().st_size == 0:
        return memoryview(b"").cast(code)
    with path.open("rb") as file:
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)).cast(code)
