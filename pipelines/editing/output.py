"""Files written whole or not at all."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

from .journal import fingerprint, fingerprint_of
from .standing import (
    ChangedFileError,
    Standing,
    check_replaceable,
    exchanged,
    keep_attributes,
    kept_as_backup,
    kept_beside,
    short,
)

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

    Owner, permissions and extended attributes are those of the file that is replaced; one that is read-only or has
    hard links is refused. `backup` is a suffix: the old file is kept under its name with that suffix, and with a number
    behind it where there is an older backup, which stays. A reader sees the old file or the new one, never a part; so
    does whoever comes after a power cut.
    """

    def __init__(self, path: Path, *, backup: str | None = None, standing: Standing | None = None) -> None:
        """`standing`: what stood at `path` when the work began, and may be replaced; None: what stands there now.

        Raises ValueError for a suffix that would name another folder or the file itself, OSError where the folder
        cannot be written."""
        check_suffix(backup)
        self.path = target_of(path) if standing is None else path
        self._backup = backup
        self.kept: Path | None = None
        """Where `commit` kept the old file."""
        if standing is None:
            check_replaceable(self.path)
        self.made_from: str | None = None
        """The fingerprint of the file that the new one is made from, where that must still stand there."""
        self._standing = standing or Standing.of(self.path)
        handle, name = tempfile.mkstemp(prefix=_prefix(self.path), suffix=".tmp", dir=self.path.parent)
        self._temporary = Path(name)
        self.file: BinaryIO = os.fdopen(handle, "wb")

    def write(self, data: bytes) -> None:
        self.file.write(data)

    def expect(self, data: bytes) -> None:
        """What must still stand at `path` when the new file takes its place."""
        self.made_from = fingerprint_of(data)

    def commit(self) -> None:
        """Puts the new file in the old one's place.

        Raises ChangedFileError where something else stands there than when the work began; the new file is then kept
        beside it, under a name that the error tells. Two programs that write the same file at the same moment are kept
        apart where the system can exchange two files (Linux); elsewhere an instant is left between looking and
        replacing. A program that has the file open and goes on writing into it afterwards, writes into the old one.
        """
        self.file.flush()
        os.fsync(self.file.fileno())
        self.file.close()
        standing = self._standing
        if standing.is_file:
            self._check()
            standing = Standing.of(self.path)
            keep_attributes(self.path, self._temporary)
            if self._backup is not None:
                self.kept = _kept(self.path, self._backup)
        else:
            os.chmod(self._temporary, 0o666 & ~_umask())
        if Standing.of(self.path) != standing:
            raise self._changed()
        self._switch(standing)
        sync_folder(self.path.parent)

    def discard(self) -> None:
        """Leaves `path` as it was. After `commit` it does nothing."""
        with contextlib.suppress(OSError):  # what a full disk did not take is not missed
            self.file.close()
        with contextlib.suppress(OSError):
            self._temporary.unlink()

    def _check(self) -> None:
        """Raises ChangedFileError where the file is not the one that was read. Saved again without a change, it is."""
        now = Standing.of(self.path)
        if not now.is_file or (self.made_from is None and now != self._standing):
            raise self._changed()
        if self.made_from is not None and fingerprint(self.path) != self.made_from:
            raise self._changed()

    def _switch(self, standing: Standing) -> None:
        if not standing.is_file:
            try:
                os.link(self._temporary, self.path)  # unlike a rename, it takes nobody's place
            except FileExistsError:
                raise self._changed() from None
            except OSError:  # a file system without hard links
                os.replace(self._temporary, self.path)
            return
        if not exchanged(self._temporary, self.path):
            os.replace(self._temporary, self.path)
            return
        if Standing.of(self._temporary) != standing:
            exchanged(self._temporary, self.path)  # somebody saved it in that very moment
            raise self._changed()

    def _changed(self) -> ChangedFileError:
        kept = kept_beside(self._temporary, self.path)
        return ChangedFileError(
            f"{os.fspath(self.path)!r} has been changed meanwhile, and stays as it is; the result of what it was "
            f"before is in {os.fspath(kept)!r}"
        )

    def __enter__(self) -> AtomicFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self.commit()
        finally:
            self.discard()


def remove_leftovers(path: Path) -> None:
    """Removes what runs that were killed left beside `path`. Nobody else may be writing it."""
    for name in path.parent.glob(f"{_escaped(_prefix(path))}*.tmp"):
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


def _kept(source: Path, suffix: str) -> Path:
    """Where a copy of the file stands, which is whole whenever it is there."""
    # Named after the source: what a killed run leaves is found by that name.
    handle, name = tempfile.mkstemp(prefix=_prefix(source), suffix=".tmp", dir=source.parent)
    os.close(handle)
    try:
        shutil.copy2(source, name)
        return kept_as_backup(Path(name), source, suffix)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)
        raise


def _prefix(path: Path) -> str:
    """How the names of files begin that stand beside `path` while it is made."""
    return f".{short(path.name, 100)}{_MARK}"


def _escaped(name: str) -> str:
    return "".join(f"[{char}]" if char in "*?[" else char for char in name)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
