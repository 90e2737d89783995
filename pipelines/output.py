"""Files written whole or not at all."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

_MARK = ".copyspec-"
"""In the names of files that stand beside an output while it is made."""


def target_of(path: Path) -> Path:
    """The file that writing to `path` replaces. A symbolic link stays one: what it points to is replaced.

    Raises OSError where links go round in a circle, and where something stands there that is no file.
    """
    real = Path(os.path.realpath(path, strict=path.is_symlink()))
    if real.exists() and not real.is_file():
        raise OSError(f"{os.fspath(path)!r} is no regular file, and only those are replaced")
    return real


def check_suffix(backup: str | None) -> None:
    """Raises ValueError for a suffix that would name another folder or the file itself."""
    if backup is not None and (not backup or os.sep in backup or (os.altsep and os.altsep in backup)):
        raise ValueError(f"backup={backup!r} must be a suffix, for example '.bak'")


class AtomicFile:
    """Bytes go to a file beside `path`, which takes its place on `commit`. Without one, `path` stays as it was.

    Permissions are those of the file that is replaced. `backup` is a suffix: the old file is kept under its name with
    that suffix. A reader sees the old file or the new one, never a part; so does whoever comes after a power cut.
    """

    def __init__(self, path: Path, *, backup: str | None = None) -> None:
        """Raises ValueError for a suffix that would name another folder or the file itself, OSError where the folder
        cannot be written."""
        check_suffix(backup)
        self.path = target_of(path)
        self.backup = None if backup is None else self.path.with_name(self.path.name + backup)
        handle, name = tempfile.mkstemp(prefix=f".{self.path.name[:100]}{_MARK}", suffix=".tmp", dir=self.path.parent)
        self._temporary = Path(name)
        self.file: BinaryIO = os.fdopen(handle, "wb")

    def write(self, data: bytes) -> None:
        self.file.write(data)

    def commit(self) -> None:
        """Puts the new file in the old one's place."""
        self.file.flush()
        os.fsync(self.file.fileno())
        self.file.close()
        if self.path.exists():
            shutil.copymode(self.path, self._temporary)
            with contextlib.suppress(OSError, AttributeError):  # only root gives files away
                old = self.path.stat()
                os.chown(self._temporary, old.st_uid, old.st_gid)
            if self.backup is not None:
                _copy(self.path, self.backup)
        else:
            os.chmod(self._temporary, 0o666 & ~_umask())
        os.replace(self._temporary, self.path)
        sync_folder(self.path.parent)

    def discard(self) -> None:
        """Leaves `path` as it was. After `commit` it does nothing."""
        self.file.close()
        with contextlib.suppress(FileNotFoundError):
            self._temporary.unlink()

    def __enter__(self) -> AtomicFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.commit()
        self.discard()


def remove_leftovers(path: Path) -> None:
    """Removes what runs that were killed left beside `path`. Nobody else may be writing it."""
    for name in path.parent.glob(f".{_escaped(path.name[:100])}{_MARK}*.tmp"):
        with contextlib.suppress(OSError):
            name.unlink()


def sync_folder(folder: Path) -> None:
    """Makes a rename in `folder` outlast a power cut, where the system can."""
    if os.name == "nt":
        return
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _copy(source: Path, target: Path) -> None:
    """A copy that is whole whenever it is there."""
    # Named after the source: what a killed run leaves is found by that name.
    handle, name = tempfile.mkstemp(prefix=f".{source.name[:100]}{_MARK}", suffix=".tmp", dir=target.parent)
    os.close(handle)
    try:
        shutil.copy2(source, name)
        os.replace(name, target)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)
        raise


def _escaped(name: str) -> str:
    return "".join(f"[{char}]" if char in "*?[" else char for char in name)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
