"""Safe file access in folders that other processes write to: regular files only, atomic replacement, lock files."""

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
"""Flags that do not follow a symbolic link, and do not block on a pipe."""

_PIPES = ("/dev/fd/", "/dev/stdin", "/proc/")
"""Where a shell's pipes stand: their writer is there already."""

_PAUSE = 0.02  # seconds between two attempts to lock
_FULL = tuple(getattr(errno, name) for name in ("ENOSPC", "EFBIG", "EDQUOT") if hasattr(errno, name))
_BUSY = (errno.EAGAIN, errno.EACCES, errno.EDEADLK)  # errors that mean that the lock is held by another process


class NotRegularError(OSError):
    """The path is not a regular file but a link, a folder, a pipe or a device."""


def open_regular(path: Path, flags: int = os.O_RDONLY) -> int:
    """Open a regular file and return its descriptor. Raises NotRegularError for anything else, without opening it."""
    with contextlib.suppress(FileNotFoundError):
        _check_regular(os.lstat(path), path)
    handle = os.open(path, flags | _FLAGS, 0o666)
    try:
        _check_regular(os.fstat(handle), path)  # again, since the file may have been exchanged in between
    except BaseException:
        os.close(handle)
        raise
    return handle


def open_input(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a file that the user named, to be read as bytes. Links are followed.

    Raises NotRegularError for devices and named pipes, which may never end or begin. The pipes of a shell's `<(...)`
    are read.
    """
    name = os.fspath(path)
    _check_input(os.stat(name), name)
    file = open(name, "rb")  # noqa: SIM115  the caller's
    try:
        _check_input(os.fstat(file.fileno()), name)  # again, since the file may have been exchanged in between
    except BaseException:
        file.close()
        raise
    return file


def read_input(path: str | os.PathLike[str]) -> bytes:
    """The bytes of a file that the user named; raises as `open_input` does."""
    with open_input(path) as file:
        return file.read()


@contextlib.contextmanager
def replacing(path: Path, *, mode: int = 0o666, lasts: bool = True) -> Iterator[BinaryIO]:
    """Open a binary file that replaces `path` when the block succeeds, and is deleted when it fails.

    The caller must hold a lock, since the temporary file has a fixed name; one left by a killed process is
    overwritten. `mode`: permissions of a new file, before the umask. `lasts`: whether the new name must survive a
    power cut; the content always does. Raises NotRegularError for a link, a folder, a pipe or a device at `path`.
    """
    part = path.with_name(part_name(path.name))
    for target in (path, part):
        if target.is_dir() and not target.is_symlink():
            raise NotRegularError(f"{os.fspath(target)!r} is a folder, where a file is to be written: remove it")
    with contextlib.suppress(FileNotFoundError):
        _check_regular(os.lstat(path), path)
    with contextlib.suppress(FileNotFoundError):
        part.unlink()
    handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _FLAGS, mode)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            part.unlink()
        name_full(error, path)
        raise
    if lasts:
        flush_folder(path.parent)


def link_target(path: Path) -> Path:
    """The file that a link leads to, or `path` itself. Raises OSError for links in a circle or to nothing."""
    try:
        return Path(os.path.realpath(path, strict=path.is_symlink()))
    except OSError as error:
        message = f"the symbolic link leads to no file ({error.strerror}): remove it, or name another file"
        raise OSError(error.errno, message, os.fspath(path)) from error


def name_full(error: BaseException, path: Path) -> None:
    """Name the file in the error of a full disk, which names none."""
    if isinstance(error, OSError) and error.filename is None and error.errno in _FULL:
        error.filename = os.fspath(path)


def part_name(name: str) -> str:
    """The temporary name of a file while it is written."""
    return f".{name}.part"


def flush_folder(folder: Path) -> None:
    """Make a rename durable, on systems where a folder can be opened."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def umask() -> int:
    """The permissions that new files of this process do not get."""
    mask = os.umask(0o077)  # it can only be read by setting it; files of other threads stay private meanwhile
    os.umask(mask)
    return mask


@contextlib.contextmanager
def locked(path: Path, what: str, *, wait: float = 0.0) -> Iterator[None]:
    """Hold the lock file `path` during the block, then remove it. `what` is locked, and named in the error message.

    The operating system releases the lock when a process ends for any reason, so a file left by a killed process
    blocks nobody. Raises BlockingIOError if another process or thread holds the lock for `wait` seconds.
    """
    handle = _acquired(path, what, monotonic() + wait)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # Windows cannot remove an open file
            if _stands(handle, path):
                path.unlink()  # still locked: whoever waits for it checks that it is still the file at `path`
        os.close(handle)


def try_lock(handle: int) -> bool:
    """Try to lock an open file; return whether it succeeded. Closing the file releases the lock."""
    try:
        if sys.platform == "win32":
            import msvcrt

            os.lseek(handle, 1 << 30, os.SEEK_SET)  # beyond the end, since Windows makes a locked byte unreadable
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
                raise NotRegularError(f"{os.fspath(path)!r} is a hard link to another file, not a lock: remove it")
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
    """Whether an open file is still the one at `path`, which its last holder may have removed."""
    try:
        return os.path.samestat(os.fstat(handle), os.lstat(path))
    except FileNotFoundError:
        return False


def _holder(handle: int) -> str:
    with contextlib.suppress(OSError):
        os.lseek(handle, 0, os.SEEK_SET)
        content = os.read(handle, 20).strip()
        if content.isdigit():
            return f"process {int(content)}" if int(content) != os.getpid() else "another thread of this process"
    return "another process"


def _check_input(status: os.stat_result, name: str) -> None:
    if stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode):  # opening a folder has an error of its own
        return
    if stat.S_ISFIFO(status.st_mode) and name.startswith(_PIPES):
        return
    kind = "a named pipe" if stat.S_ISFIFO(status.st_mode) else "a device"
    raise NotRegularError(f"{name!r} is {kind}, which may never end: copy its content into a file, or give it as stdin")


def _check_regular(status: os.stat_result, path: Path) -> None:
    if stat.S_ISREG(status.st_mode):
        return
    if stat.S_ISLNK(status.st_mode):
        raise NotRegularError(
            f"{os.fspath(path)!r} is a symbolic link, which could point anywhere: put the file itself there"
        )
    raise NotRegularError(f"{os.fspath(path)!r} is not a regular file, and only those are read and replaced")
