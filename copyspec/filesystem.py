"""Files in folders that others fill, too: opened only where they are regular, replaced whole, held by one process."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from time import monotonic, sleep
from typing import BinaryIO

_FLAGS = sum(getattr(os, name, 0) for name in ("O_CLOEXEC", "O_NOFOLLOW", "O_NONBLOCK", "O_BINARY"))
"""A link is not followed, and a pipe that stands there is opened without waiting for its other end."""

_PAUSE = 0.02  # seconds between two looks at a lock
_BUSY = (errno.EAGAIN, errno.EACCES, errno.EDEADLK)  # what a system says of a lock that another one holds


class NotRegularError(OSError):
    """What stands there is no file of its own: a link, a folder, a pipe, a device."""


def open_regular(path: Path, flags: int = os.O_RDONLY) -> int:
    """A descriptor of a regular file. Raises NotRegularError for anything else, which is not opened."""
    with contextlib.suppress(FileNotFoundError):
        _check_regular(os.lstat(path), path)
    handle = os.open(path, flags | _FLAGS, 0o666)
    try:
        _check_regular(os.fstat(handle), path)  # once more: another file may have taken its place
    except BaseException:
        os.close(handle)
        raise
    return handle


@contextlib.contextmanager
def replacing(path: Path, *, mode: int = 0o666, lasts: bool = True) -> Iterator[BinaryIO]:
    """A binary file that takes the place of `path` when the block ends well, and vanishes when it does not.

    For the holder of a lock: what is written has one name, which the next one to write takes over from one that was
    killed. `mode`: of a new file, less what the process's umask takes away. `lasts`:
    its name outlasts a power cut; its content always does.
    """
    part = path.with_name(part_name(path.name))
    for each in (path, part):
        if each.is_dir() and not each.is_symlink():
            raise NotRegularError(f"{os.fspath(each)!r} is a folder, where a file is to be written: remove it")
    with contextlib.suppress(FileNotFoundError):
        part.unlink()
    handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _FLAGS, mode)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except BaseException:
        with contextlib.suppress(OSError):
            part.unlink()
        raise
    if lasts:
        flush_folder(path.parent)


def part_name(name: str) -> str:
    """The name that a file has while it is written."""
    return f".{name}.part"


def flush_folder(folder: Path) -> None:
    """Makes a rename last; not every system lets a folder be opened."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


@contextlib.contextmanager
def locked(path: Path, what: str, *, wait: float = 0.0) -> Iterator[None]:
    """Holds the lock file `path` for the block, and removes it behind. `what` is locked by it, for the message.

    The system lets go of the lock when a process ends, however it ends: a file that a killed one left holds nobody
    back. Raises BlockingIOError where another process or thread has held it for `wait` seconds.
    """
    handle = _acquired(path, what, monotonic() + wait)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # of a file that is open, on Windows
            if _stands(handle, path):
                path.unlink()  # while it is held: whoever waits for this file looks whether it is still the one there
        os.close(handle)


def try_lock(handle: int) -> bool:
    """Whether the lock of an open file could be had. Closing the file gives it back."""
    try:
        if sys.platform == "win32":
            import msvcrt

            os.lseek(handle, 1 << 30, os.SEEK_SET)  # a byte behind the end: what is locked there cannot be read
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _BUSY:
            return False
        raise
    return True


def _acquired(path: Path, what: str, until: float) -> int:
    while True:
        handle = open_regular(path, os.O_RDWR | os.O_CREAT)
        try:
            if os.fstat(handle).st_nlink > 1:
                raise NotRegularError(f"{os.fspath(path)!r} is a second name of another file, no lock: remove it")
            if not try_lock(handle):
                if monotonic() >= until:
                    raise BlockingIOError(
                        f"{what} is being written by {_holder(handle)}: wait until that has ended, and try again"
                    )
                sleep(_PAUSE)
            elif _stands(handle, path):
                os.ftruncate(handle, 0)
                os.lseek(handle, 0, os.SEEK_SET)
                os.write(handle, b"%d\n" % os.getpid())
                return handle
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)


def _stands(handle: int, path: Path) -> bool:
    """Whether an open file is the one of this name still: its last holder has removed it otherwise."""
    try:
        return os.path.samestat(os.fstat(handle), os.lstat(path))
    except FileNotFoundError:
        return False


def _holder(handle: int) -> str:
    with contextlib.suppress(OSError):
        os.lseek(handle, 0, os.SEEK_SET)
        said = os.read(handle, 20).strip()
        if said.isdigit():
            return f"process {int(said)}" if int(said) != os.getpid() else "another thread of this process"
    return "another process"


def _check_regular(found: os.stat_result, path: Path) -> None:
    if stat.S_ISREG(found.st_mode):
        return
    if stat.S_ISLNK(found.st_mode):
        raise NotRegularError(
            f"{os.fspath(path)!r} is a symbolic link, which may lead anywhere: put the file itself there"
        )
    raise NotRegularError(f"{os.fspath(path)!r} is no regular file")
