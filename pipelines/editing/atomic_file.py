"""Writes files whole or not at all."""

from __future__ import annotations

import contextlib
import glob
import os
import shutil
import tempfile
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

from copyspec.common.checks import check_type
from copyspec.common.filesystem import flush_folder, link_target, name_full, umask

from .file_state import (
    ChangedFileError,
    FileState,
    check_replaceable,
    exchanged,
    keep_as_sibling,
    keep_attributes,
    kept_as_backup,
    not_replaceable,
    short,
)
from .journal import fingerprint, fingerprint_of

_MARK = ".copyspec-"
"""Part of the names of temporary files beside an output."""


def target_of(path: Path) -> Path:
    """The file that writing to `path` replaces. A symbolic link is kept, and the file it points to is replaced.

    Raises OSError for links in a circle or to nothing, and if what exists there is not a regular file.
    """
    real = link_target(path)
    if real.exists() and not real.is_file():
        raise OSError(f"{os.fspath(path)!r} is not a regular file, and only those are replaced")
    return real


def check_suffix(backup: str | None) -> None:
    """Raise TypeError unless it is a str, ValueError for a suffix that would name another folder or the file itself."""
    check_type(backup is None or isinstance(backup, str), "backup", backup, "a suffix such as '.bak'")
    if backup is not None and (not backup or os.sep in backup or (os.altsep and os.altsep in backup)):
        raise ValueError(f"backup={backup!r} must be a suffix, for example '.bak'")


class AtomicFile:
    """Collects bytes in a temporary file beside `path`, which replaces `path` on `commit` and is deleted otherwise.

    The new file gets the owner, permissions and extended attributes of the old one. A file that is read-only or has
    hard links is refused. `backup`: suffix under which the old file is kept; a number is appended if an older backup
    exists, which is kept too. Readers see the old file or the new one, never a part, also after a power failure.
    """

    def __init__(self, path: Path, *, backup: str | None = None, standing: FileState | None = None) -> None:
        """`standing`: the state of `path` when the work began, which may be replaced; None: its present state.

        Raises ValueError for a suffix that would name another folder or the file itself, and OSError if the folder is
        not writable."""
        check_suffix(backup)
        self.path = target_of(path) if standing is None else path
        self._backup = backup
        self.kept: Path | None = None
        """Path of the backup that `commit` made."""
        if standing is None:
            check_replaceable(self.path)
        self.made_from: str | None = None
        """Fingerprint of the file the new one was made from; if set, `path` must still have it."""
        self.standing = standing or FileState.of(self.path)
        handle, name = _new_sibling(self.path)
        self.temporary = Path(name)
        self.file: BinaryIO = os.fdopen(handle, "wb")

    def write(self, data: bytes) -> None:
        self.file.write(data)

    def expect(self, data: bytes) -> None:
        """Require that `path` still holds `data` when the new file replaces it."""
        self.made_from = fingerprint_of(data)

    def commit(self) -> None:
        """Replace the old file by the new one.

        Raises ChangedFileError if `path` has been changed since the work began; the new file is then kept beside it,
        under the name in the error. Where the system can exchange two files (Linux), this also detects a program that
        writes at the same moment; elsewhere there is an instant between the check and the replacement. A program that
        keeps the file open and writes to it afterwards writes to the old one.
        """
        self.file.flush()
        os.fsync(self.file.fileno())
        self.file.close()
        standing = self.standing
        if standing.is_file:
            standing = self._checked()
            keep_attributes(self.path, self.temporary)
            if self._backup is not None:
                self.kept = backed_up(self.path, self._backup)
        else:
            os.chmod(self.temporary, 0o666 & ~umask())
        if FileState.of(self.path) != standing:
            raise self._changed()
        self._switch(standing)
        flush_folder(self.path.parent)

    def discard(self) -> None:
        """Leave `path` as it was; after `commit` this does nothing."""
        with contextlib.suppress(OSError):  # data that a full disk did not take is not needed
            self.file.close()
        with contextlib.suppress(OSError):
            self.temporary.unlink()

    def _checked(self) -> FileState:
        """The file's state from before its content was compared. Raises ChangedFileError unless the file is the one
        that was read; saved again without changes, it still is."""
        now = FileState.of(self.path)
        if not now.is_file or (self.made_from is None and now != self.standing):
            raise self._changed()
        if self.made_from is not None and fingerprint(self.path) != self.made_from:
            raise self._changed()
        return now

    def _switch(self, standing: FileState) -> None:
        if not standing.is_file:
            try:
                os.link(self.temporary, self.path)  # unlike a rename, this never overwrites a file
            except FileExistsError:
                raise self._changed() from None
            except OSError:  # a file system without hard links
                os.replace(self.temporary, self.path)
            return
        if not exchanged(self.temporary, self.path):
            try:
                os.replace(self.temporary, self.path)
            except PermissionError as error:  # an immutable file, or one that its folder protects
                raise not_replaceable(self.path, error.strerror or "the system refuses it") from error
            return
        if FileState.of(self.temporary) != standing:
            exchanged(self.temporary, self.path)  # another program saved the file at that moment
            raise self._changed()

    def _changed(self) -> ChangedFileError:
        copy = keep_as_sibling(self.temporary, self.path)
        return ChangedFileError(
            f"{os.fspath(self.path)!r} was changed meanwhile and is left as it is; the result for its earlier "
            f"content is in {os.fspath(copy)!r}"
        )

    def __enter__(self) -> AtomicFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self.commit()
            elif error is not None:
                name_full(error, self.path)
        except OSError as failed:
            name_full(failed, self.path)
            raise
        finally:
            self.discard()


def remove_leftovers(path: Path, own: AtomicFile | None = None) -> None:
    """Delete temporary files of killed runs beside `path`, but not of `own`. No other process may be writing it."""
    for name in path.parent.glob(f"{glob.escape(_prefix(path))}*.tmp"):
        if own is None or name.name != own.temporary.name:
            with contextlib.suppress(OSError):
                name.unlink()


def backed_up(source: Path, suffix: str) -> Path:
    """Make a backup of the file and return its path. The backup is complete whenever it exists."""
    # Named after the source, so that `remove_leftovers` finds it after a killed run.
    handle, name = _new_sibling(source)
    try:
        with os.fdopen(handle, "wb") as file, open(source, "rb") as old:
            shutil.copyfileobj(old, file)
            file.flush()
            shutil.copystat(source, name)
            os.fsync(file.fileno())  # the original may be replaced right after this
        return kept_as_backup(Path(name), source, suffix)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)
        raise


def _new_sibling(path: Path) -> tuple[int, str]:
    """Open a temporary file in the folder of `path`. An error names `path`: nobody knows the temporary name."""
    try:
        return tempfile.mkstemp(prefix=_prefix(path), suffix=".tmp", dir=path.parent)
    except OSError as error:
        way = "change its permissions" if path.parent.is_dir() else "make it"
        message = f"no file can be made in the folder {os.fspath(path.parent)!r} ({error.strerror})"
        message += f": {way}, or write elsewhere"
        raise OSError(error.errno, message, os.fspath(path)) from error


def _prefix(path: Path) -> str:
    """Prefix of the names of temporary files for `path`."""
    return f".{short(path.name, 100)}{_MARK}"
