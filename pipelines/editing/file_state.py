"""Detects and replaces files safely: a file that another program has saved in the meantime is never overwritten."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import stat
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from filecmp import cmp
from pathlib import Path

RESULT = ".copyspec-result"
"""Suffix of a result that could not replace its file."""

_AT_HERE, _EXCHANGE = -100, 2  # arguments of renameat2(2)
_NAME_BYTES = 255  # maximum length of a file name, on every system in use
_COPY_LISTS, _COPY_ATTRIBUTES = 1 << 0, 1 << 2  # COPYFILE_ACL and COPYFILE_XATTR of macOS's copyfile(3)
_SYSTEM_ATTRIBUTES = ("security.",)
"""Extended attributes that the system's policy sets on every new file; the others belong to the user."""


class ChangedFileError(OSError):
    """A file was changed while it was being worked on."""


@dataclass(frozen=True, slots=True)
class FileState:
    """The state of a path: a file's location on the disk, size and time of the last change; all 0 if there is none."""

    kind: int = 0
    device: int = 0
    inode: int = 0
    size: int = 0
    changed: int = 0  # nanoseconds

    @classmethod
    def of(cls, path: Path) -> FileState:
        try:
            status = os.lstat(path)
        except (FileNotFoundError, NotADirectoryError):
            return cls()
        return cls(stat.S_IFMT(status.st_mode), status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)

    @property
    def is_file(self) -> bool:
        return stat.S_ISREG(self.kind)


def check_replaceable(path: Path) -> None:
    """Raise OSError for a file that cannot be replaced without a loss: read-only, with several hard links, or another
    user's in a shared folder such as /tmp."""
    with contextlib.suppress(FileNotFoundError):
        status = os.stat(path)
        if not os.access(path, os.R_OK):
            raise PermissionError(f"{os.fspath(path)!r} may not be read: change its permissions")
        if not os.access(path, os.W_OK):
            raise PermissionError(f"{os.fspath(path)!r} is read-only: change its permissions, or write elsewhere")
        if status.st_nlink > 1:
            raise OSError(
                f"{os.fspath(path)!r} has {status.st_nlink} hard links, and a new file would replace only one of "
                "them. Write elsewhere, or copy it first"
            )
        folder = os.stat(path.parent)
        is_shared = folder.st_mode & stat.S_ISVTX and hasattr(os, "geteuid")  # only owners may replace files there
        if is_shared and os.geteuid() not in (0, status.st_uid, folder.st_uid):
            raise not_replaceable(path, "its folder is shared, and the file is another user's")


def not_replaceable(path: Path, why: str) -> PermissionError:
    """The error for a file that the system lets nobody else replace; it stays as it is."""
    return PermissionError(f"{os.fspath(path)!r} cannot be replaced ({why}): write elsewhere")


def keep_attributes(old: Path, new: Path) -> None:
    """Give `new` the owner, permissions and extended attributes (which include access control lists) of `old`.

    Raises OSError for an attribute that cannot be kept. The owner is kept as far as the system permits: only root can
    give files away. On Windows nothing is kept: Python has no functions for it.
    """
    status = os.stat(old)
    if hasattr(os, "chown"):
        for owner in (status.st_uid, -1):
            with contextlib.suppress(OSError):
                os.chown(new, owner, status.st_gid)
                break
    names = _attributes(old)
    for name in set(_attributes(new)).difference(names):  # a new file inherits an access control list of its folder
        if not name.startswith(_SYSTEM_ATTRIBUTES):
            with contextlib.suppress(OSError):  # of the file system, not of the user
                os.removexattr(new, name)
    if sys.platform == "darwin":  # Python has no functions for them there
        _copy_attributes(old, new)
    os.chmod(new, stat.S_IMODE(status.st_mode))
    for name in names:
        try:
            os.setxattr(new, name, os.getxattr(old, name))
        except OSError as error:
            if not name.startswith(_SYSTEM_ATTRIBUTES):
                raise OSError(
                    f"the extended attribute {name!r} of {os.fspath(old)!r} cannot be kept ({error.strerror}): "
                    "remove it, or write elsewhere"
                ) from error


def _attributes(path: Path) -> list[str]:
    """The names of a file's extended attributes; none where the system or the file system has none."""
    try:
        return os.listxattr(path) if hasattr(os, "listxattr") else []
    except OSError:
        return []


def _copy_attributes(old: Path, new: Path) -> None:
    """Copy the extended attributes and the access control list of a file, on macOS."""
    copy = ctypes.CDLL(None, use_errno=True).copyfile
    if copy(os.fsencode(old), os.fsencode(new), None, _COPY_LISTS | _COPY_ATTRIBUTES) < 0:
        raise OSError(
            f"the extended attributes and access control list of {os.fspath(old)!r} cannot be kept "
            f"({os.strerror(ctypes.get_errno())}): remove them, or write elsewhere"
        )


def exchanged(left: Path, right: Path) -> bool:
    """Exchange two files atomically, so that neither is lost, whatever is there now; False if the system cannot."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError):
        return False
    return bool(rename(_AT_HERE, os.fsencode(left), _AT_HERE, os.fsencode(right), _EXCHANGE) == 0)


def keep_as_sibling(temporary: Path, path: Path) -> Path:
    """Give a finished file a permanent name beside the file it was made for; never overwrites a file."""
    return _named(temporary, (sibling_path(path, RESULT if n == 1 else f"{RESULT}-{n}") for n in itertools.count(1)))


def backup_names(path: Path, suffix: str) -> Iterator[Path]:
    """Possible names of a backup: the file's name with `suffix`, then with `.1`, `.2` ... appended."""
    name = path.name + suffix
    return (path.with_name(name if number == 0 else f"{name}.{number}") for number in itertools.count())


def kept_as_backup(temporary: Path, path: Path, suffix: str) -> Path:
    """Give `temporary`, a copy of the file at `path`, the name of a backup, and return it. Never overwrites a file. If
    the latest backup holds the same bytes it is used instead, so that a repeated run adds none."""
    count = _last_backup(path, suffix) + 1  # gaps are not filled: a higher number is a later backup
    if count:
        latest = next(itertools.islice(backup_names(path, suffix), count - 1, None))
        if latest.is_file() and cmp(temporary, latest, shallow=False):
            temporary.unlink()
            return latest
    return _named(temporary, itertools.islice(backup_names(path, suffix), count, None))


def _last_backup(path: Path, suffix: str) -> int:
    """Number of the file's latest backup: 0 for the one without a number, -1 if there is none."""
    first = next(backup_names(path, suffix))
    behind = [name[len(first.name) + 1 :] for name in os.listdir(path.parent) if name.startswith(f"{first.name}.")]
    numbers = [int(number) for number in behind if number.isascii() and number.isdecimal() and len(number) < 10]
    return max(numbers, default=0 if os.path.lexists(first) else -1)


def _named(temporary: Path, names: Iterable[Path]) -> Path:
    """Give a file the first name that is free."""
    for name in names:
        if os.path.lexists(name):
            continue
        try:
            os.link(temporary, name)
        except FileExistsError:
            continue
        except OSError:  # the file system has no hard links
            os.rename(temporary, name)
            return name
        temporary.unlink()
        return name
    raise AssertionError("counting has no end")


def sibling_path(path: Path, suffix: str) -> Path:
    """The path with `suffix` appended to its name, which is shortened if the result is too long."""
    name = path.name + suffix
    if len(os.fsencode(name)) > _NAME_BYTES:
        name = short(path.name, _NAME_BYTES - len(suffix)) + suffix
    return path.with_name(name)


def short(name: str, size: int) -> str:
    """Shorten `name` to at most `size` bytes; names that differ only at the end stay different."""
    data = os.fsencode(name)
    if len(data) <= size:
        return name
    # Imported here, as it is rarely needed.
    from hashlib import blake2b

    mark = "-" + blake2b(data, digest_size=6).hexdigest()
    return data[: size - len(mark)].decode("utf-8", "ignore") + mark
