"""Arrays of unsigned integers on disk, read on demand."""

from __future__ import annotations

import os
from typing import Literal, Protocol

Code = Literal["B", "I", "Q"]
"""Item type of a file, as in struct: unsigned integers of 8, 32 or 64 bits."""

_BYTES: dict[Code, int] = {"B": 1, "I": 4, "Q": 8}


class Numbers(Protocol):
    """Unsigned integers in a file."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> int: ...

    def part(self, start: int, end: int) -> memoryview[int]:
        """Return the numbers `start` to `end` - 1; fewer if the file ends."""


class _ReadNumbers:
    """Reads with one `pread` per access.

    A mapped file would soon fill this process's memory, because the system maps up to two megabytes around each access.
    `pread` moves no file position, so threads and forked processes can share the file."""

    _close = staticmethod(os.close)  # kept here, because at exit modules are cleared before the last objects

    def __init__(self, handle: int, code: Code) -> None:
        self._code, self._bytes = code, _BYTES[code]
        self._file = handle
        self._count = os.fstat(self._file).st_size // self._bytes
        if hasattr(os, "posix_fadvise"):  # searches jump, so read-ahead is of no use
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
    """A mapped file, for systems without `pread`."""

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
    """Return the numbers of an open file without reading them. They own the descriptor."""
    return _ReadNumbers(handle, code) if hasattr(os, "pread") else _MappedNumbers(handle, code)


def in_memory(handle: int, code: Code = "I") -> memoryview[int]:
    """Read all numbers of a small open file, and close it."""
    with os.fdopen(handle, "rb") as file:
        file.seek(0)
        content = file.read()
    return memoryview(content[: len(content) // _BYTES[code] * _BYTES[code]]).cast(code)
