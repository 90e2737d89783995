"""File operations for folders shared with other programs: open only regular files, replace atomically, lock."""

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
"""Do not follow links, and do not block on opening a pipe."""

_PAUSE = 0.02  # seconds between attempts to take a lock
_BUSY = (errno.EAGAIN, errno.EACCES, errno.EDEADLK)  # errors for a lock that is held by another process


class NotRegularError(OSError):
    """The path is not a regular file but a link, a folder, a pipe or a device."""


def open_regular(path: Path, flags: int = os.O_RDONLY) -> int:
    """Open a regular file and return its descriptor. Raises NotRegularError for anything else, without opening it."""
    with contextlib.suppress(FileNotFoundError):
        _check_regular(os.lstat(path), path)
    handle = os.open(path, flags | _FLAGS, 0o666)
    try:
        _check_regular(os.fstat(handle), path)  # again, since the file may have been replaced meanwhile
    except BaseException:
        os.close(handle)
        raise
    return handle


@contextlib.contextmanager
def replacing(path: Path, *, mode: int = 0o666, lasts: bool = True) -> Iterator[BinaryIO]:
    """Write a binary file that replaces `path` when the block succeeds, and is removed when it fails.

    The caller must hold a lock: the temporary file has a fixed name, so that the next writer replaces one left by a
    killed process. `mode`: permissions of a new file, before the umask. `lasts`: flush the folder too, so that the new
    name survives a power cut; the content always does.
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
    """Name of the temporary file for `name`."""
    return f".{name}.part"


def flush_folder(folder: Path) -> None:
    """Make a rename durable, on systems that can open folders."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


@contextlib.contextmanager
def locked(path: Path, what: str, *, wait: float = 0.0) -> Iterator[None]:
    """Hold the lock file `path` during the block, and remove it afterwards. `what` names the locked thing in messages.

    The operating system releases the lock when a process ends in any way, so the file of a killed process blocks
    nobody. Raises BlockingIOError if another process or thread still holds it after `wait` seconds.
    """
    handle = _acquired(path, what, monotonic() + wait)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # Windows cannot remove an open file
            if _stands(handle, path):
                path.unlink()  # still held; a waiter checks that its file is still the one at this path
        os.close(handle)


def try_lock(handle: int) -> bool:
    """Try to lock an open file; return whether that succeeded. Closing the file releases the lock."""
    try:
        if sys.platform == "win32":
            import msvcrt

            os.lseek(handle, 1 << 30, os.SEEK_SET)  # a byte far behind the end, because locked bytes cannot be read
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
    """Whether an open file is still the one at `path`; its last holder may have removed it."""
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
