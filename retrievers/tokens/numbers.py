"""Numbers on disk, read where they are asked for."""

from __future__ import annotations

import os
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

    def __init__(self, handle: int, code: Code) -> None:
        self._code, self._bytes = code, _BYTES[code]
        self._file = handle
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

    def __init__(self, handle: int, code: Code) -> None:
        import mmap

        empty = not os.fstat(handle).st_size
        self._numbers = memoryview(b"" if empty else mmap.mmap(handle, 0, access=mmap.ACCESS_READ)).cast(code)
        os.close(handle)

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, index: int) -> int:
        return self._numbers[index]

    def part(self, start: int, end: int) -> memoryview[int]:
        return self._numbers[start:end]


def numbers_of(handle: int, code: Code = "I") -> Numbers:
    """The numbers of an open file, none of it read yet. The descriptor is closed with them."""
    return _ReadNumbers(handle, code) if hasattr(os, "pread") else _MappedNumbers(handle, code)


def in_memory(handle: int, code: Code = "I") -> memoryview[int]:
    """All numbers of an open file, which is closed: for small ones."""
    with os.fdopen(handle, "rb") as file:
        file.seek(0)
        content = file.read()
    return memoryview(content[: len(content) // _BYTES[code] * _BYTES[code]]).cast(code)
