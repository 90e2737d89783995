"""What stands at a path, so that nothing takes the place of a file that somebody else has saved meanwhile."""

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
"""Behind the name of a file: what was made of it, where it could not be put into its place."""

_AT_HERE, _EXCHANGE = -100, 2  # of renameat2(2)
_NAME_BYTES = 255  # of a file's name, on every system in use
_SYSTEM_ATTRIBUTES = ("security.",)
"""Extended attributes that the system's policy gives to every new file; the others are the user's."""


class ChangedFileError(OSError):
    """A file that is no longer what it was when the work on it began."""


@dataclass(frozen=True, slots=True)
class Standing:
    """A file by its place on the disk, its size and the time of its last change; all 0 where there is none."""

    kind: int = 0
    device: int = 0
    inode: int = 0
    size: int = 0
    changed: int = 0  # nanoseconds

    @classmethod
    def of(cls, path: Path) -> Standing:
        try:
            found = os.lstat(path)
        except (FileNotFoundError, NotADirectoryError):
            return cls()
        return cls(stat.S_IFMT(found.st_mode), found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)

    @property
    def is_file(self) -> bool:
        return stat.S_ISREG(self.kind)


def check_replaceable(path: Path) -> None:
    """Raises OSError for a file that cannot be replaced without a loss: read-only, or with other names."""
    with contextlib.suppress(FileNotFoundError):
        found = os.stat(path)
        if not os.access(path, os.W_OK):
            raise PermissionError(f"{os.fspath(path)!r} is read-only: change its permissions, or write elsewhere")
        if found.st_nlink > 1:
            raise OSError(
                f"{os.fspath(path)!r} has {found.st_nlink} hard links: a new file would stand under one of the names "
                "only. Write elsewhere, or make a copy of it first"
            )


def keep_attributes(old: Path, new: Path) -> None:
    """Owner, permissions and extended attributes of `old` (access control lists are such) for `new`.

    Raises OSError for an attribute that cannot be kept. The owner is kept as far as the system lets: only root gives
    files away.
    """
    found = os.stat(old)
    if hasattr(os, "chown"):
        for owner in (found.st_uid, -1):
            with contextlib.suppress(OSError):
                os.chown(new, owner, found.st_gid)
                break
    os.chmod(new, stat.S_IMODE(found.st_mode))
    if not hasattr(os, "listxattr"):
        return
    try:
        names = os.listxattr(old)
    except OSError:  # a file system without any
        return
    for name in names:
        try:
            os.setxattr(new, name, os.getxattr(old, name))
        except OSError as error:
            if not name.startswith(_SYSTEM_ATTRIBUTES):
                raise OSError(
                    f"the extended attribute {name!r} of {os.fspath(old)!r} cannot be kept ({error.strerror}): "
                    "remove it, or write elsewhere"
                ) from error


def exchanged(left: Path, right: Path) -> bool:
    """Lets two files change places at once, so that none of them is lost whatever stands there; False where the
    system cannot."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError):
        return False
    return bool(rename(_AT_HERE, os.fsencode(left), _AT_HERE, os.fsencode(right), _EXCHANGE) == 0)


def kept_beside(temporary: Path, path: Path) -> Path:
    """Gives a finished file a name that lasts, beside the file that it was made for; no file is overwritten."""
    return _named(temporary, (beside(path, RESULT if n == 1 else f"{RESULT}-{n}") for n in itertools.count(1)))


def backup_names(path: Path, suffix: str) -> Iterator[Path]:
    """Where an old file is kept: under its name with `suffix`, or where that is taken, with `.1`, `.2` ... behind."""
    name = path.name + suffix
    return (path.with_name(name if number == 0 else f"{name}.{number}") for number in itertools.count())


def kept_as_backup(temporary: Path, path: Path, suffix: str) -> Path:
    """Gives `temporary`, a copy of the file at `path`, the name of a backup, and says which. No file is overwritten;
    the latest backup counts as this one where it holds the same bytes, so that a repeated run adds none."""
    count = _last_backup(path, suffix) + 1  # not into a gap: a higher number is a later backup
    if count:
        latest = next(itertools.islice(backup_names(path, suffix), count - 1, None))
        if latest.is_file() and cmp(temporary, latest, shallow=False):
            temporary.unlink()
            return latest
    return _named(temporary, itertools.islice(backup_names(path, suffix), count, None))


def _last_backup(path: Path, suffix: str) -> int:
    """The number of the file's latest backup, 0 for the one without a number, -1 where there is none."""
    first = next(backup_names(path, suffix))
    behind = [name[len(first.name) + 1 :] for name in os.listdir(path.parent) if name.startswith(f"{first.name}.")]
    numbers = [int(number) for number in behind if number.isascii() and number.isdecimal() and len(number) < 10]
    return max(numbers, default=0 if os.path.lexists(first) else -1)


def _named(temporary: Path, names: Iterable[Path]) -> Path:
    """Gives a file the first of the names that none has."""
    for name in names:
        if os.path.lexists(name):
            continue
        try:
            os.link(temporary, name)
        except FileExistsError:
            continue
        except OSError:  # a file system without hard links
            os.rename(temporary, name)
            return name
        temporary.unlink()
        return name
    raise AssertionError("counting has no end")


def beside(path: Path, suffix: str) -> Path:
    """The path with `suffix` behind its name, which is shortened where names are not as long."""
    name = path.name + suffix
    if len(os.fsencode(name)) > _NAME_BYTES:
        name = short(path.name, _NAME_BYTES - len(suffix)) + suffix
    return path.with_name(name)


def short(name: str, size: int) -> str:
    """`name` in at most `size` bytes; names that only differ behind that stay different."""
    data = os.fsencode(name)
    if len(data) <= size:
        return name
    # Imported here: most names are short.
    from hashlib import blake2b

    mark = "-" + blake2b(data, digest_size=6).hexdigest()
    return data[: size - len(mark)].decode("utf-8", "ignore") + mark
