"""Numbers on disk, read one by one where they are asked for."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Protocol

_BYTES = 4


class Numbers(Protocol):
    """Unsigned numbers of 32 bits in a file."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> int: ...

    def part(self, start: int, end: int) -> memoryview[int]:
        """Those from `start` to before `end`; fewer where the file ends."""
        ...


class _ReadNumbers:
    """By a system call each. A mapped file would be in this process's memory soon: a system maps a whole block of its
    cache, of up to two megabytes, around each byte that is looked at."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
        self._count = os.fstat(self._file).st_size // _BYTES
        if hasattr(os, "posix_fadvise"):  # a search jumps: what stands beside is not needed next
            os.posix_fadvise(self._file, 0, 0, os.POSIX_FADV_RANDOM)

    def __del__(self) -> None:
        if hasattr(self, "_file"):
            os.close(self._file)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> int:
        return memoryview(os.pread(self._file, _BYTES, index * _BYTES)).cast("I")[0]

    def part(self, start: int, end: int) -> memoryview[int]:
        return memoryview(os.pread(self._file, (end - start) * _BYTES, start * _BYTES)).cast("I")


class _MappedNumbers:
    """Where a system cannot read at a place."""

    def __init__(self, path: Path) -> None:
        import mmap

        with path.open("rb") as file:
            mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if path.stat().st_size else b""
        self._numbers = memoryview(mapping).cast("I")

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, index: int) -> int:
        return self._numbers[index]

    def part(self, start: int, end: int) -> memoryview[int]:
        return self._numbers[start:end]


def numbers_of(path: Path) -> Numbers:
    """The numbers of a file, none of it read yet."""
    return _ReadNumbers(path) if hasattr(os, "pread") else _MappedNumbers(path)
