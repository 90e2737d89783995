"""Writing of index files, atomically (`files` reads them).

A folder holds one index, whose `manifest.json` names all its files (texts, vectors, places of passages). A save takes
the folder's lock, writes files with names derived from their content, replaces the manifest last, and then removes
files that only the previous index used.

`places.SavedRetriever` is the base of the retrievers that write one.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from copyspec.common.filesystem import NotRegularError, flush_folder, locked, open_regular, part_name, replacing

from .base import Folder
from .files import (
    FORMAT,
    MANIFEST,
    Entry,
    IndexFileError,
    Manifest,
    digest_in,
    entry_name,
    manifest_bytes,
    parsed,
    written,
)

LOCK = ".lock"
LOCK_SECONDS = 5.0
"""A save waits this long for another one to end; most take less."""

_BLOCK = 1 << 20  # bytes hashed at once: large enough for full speed, small enough for the CPU cache


@runtime_checkable
class Written(Protocol):
    """A retriever whose index can hold additional files."""

    def write(self, index: Saving) -> None:
        """Write the retriever's files into `index`, and commit it with all that was written to it before."""


class Saving:
    """An index being written into a folder whose lock is held. It takes effect with `commit`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files: dict[str, Entry] = {}
        self._new: list[str] = []  # names of files that did not exist before

    def content(self, key: str, suffix: str, content: bytes | memoryview) -> None:
        """Write a file. `key`: its name in the manifest; the part after the last "." begins the file name."""
        digest = hashlib.sha256(content).hexdigest()
        name = entry_name(key.rpartition(".")[2], suffix, digest)
        if not os.path.lexists(self.folder / name):
            self._new.append(name)
        with replacing(self.folder / name, lasts=False) as file:
            file.write(content)
        self.files[key] = Entry(name, memoryview(content).nbytes, digest)

    def array(self, key: str, array: NDArray[np.generic]) -> None:
        """Write the raw numbers of an array."""
        self.content(key, ".bin", np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)

    def strings(self, key: str, values: Sequence[str]) -> None:
        """Write a list of strings as JSON."""
        self.content(key, ".json", json.dumps(list(values)).encode())

    def is_there(self) -> bool:
        """Whether the folder has a manifest, valid or not."""
        return os.path.lexists(self.folder / MANIFEST)

    def before(self) -> Manifest | None:
        """Return the folder's present manifest; None if it is missing or cannot be read."""
        with contextlib.suppress(IndexFileError):
            return parsed(manifest_bytes(self.folder), self.folder / MANIFEST)
        return None

    def check_manifest(self) -> None:
        """Raise IndexFileError for a manifest of another program; one of ours may be damaged, or empty after a power
        cut."""
        if self.is_there() and (data := manifest_bytes(self.folder)).strip(b"\0 \n") and FORMAT.encode() not in data:
            raise IndexFileError(
                f"{os.fspath(self.folder / MANIFEST)!r} is not the manifest of a copyspec index: move it away"
            )

    def commit(self, kind: str, made_with: str = "", facts: Mapping[str, object] | None = None) -> None:
        """Replace the manifest by one of the files written, and remove files that only the previous index used."""
        before = self.before()
        flush_folder(self.folder)  # the new files must be on disk before a manifest that names them
        with replacing(self.folder / MANIFEST) as file:
            file.write(written(Manifest(kind, made_with, facts or {}, self.files)))
        self._new.clear()
        names = {entry.name for entry in self.files.values()}
        for name in _names(before) - names:
            self._remove(name)
        self._remove_leftovers(names)

    def discard(self) -> list[str]:
        """Remove the index, and return the names of all other files and folders, which stay."""
        self.check_manifest()
        before = self.before()
        (self.folder / MANIFEST).unlink()  # first, so that an interrupted removal leaves no broken index
        flush_folder(self.folder)
        for name in _names(before):
            self._remove(name)
        self._remove_leftovers(set())
        return sorted({entry.name for entry in os.scandir(self.folder)} - {LOCK})

    def abandon(self) -> None:
        """Remove the new files unless they were committed: an interrupted commit may have replaced the manifest."""
        before = self.before() if self._new else None
        for name in set(self._new) - _names(before):
            self._remove(name)
        self._new.clear()

    def _remove_leftovers(self, names: set[str]) -> None:
        """Remove what a killed writer left: partial files, and index files that no manifest names."""
        for entry in list(os.scandir(self.folder)):
            if entry.name in names or not entry.is_file(follow_symlinks=False):
                continue
            if _is_part(entry.name) or _says_its_content(self.folder / entry.name):
                self._remove(entry.name)

    def _remove(self, name: str) -> None:
        path = self.folder / name
        with contextlib.suppress(OSError):  # on Windows, a file that another process has open cannot be removed
            if stat.S_ISREG(path.lstat().st_mode):
                path.unlink()


@contextlib.contextmanager
def saving(folder: Folder) -> Iterator[Saving]:
    """Lock `folder` for writing an index; it is created if missing. Other files in it stay.

    Raises BlockingIOError if another process or thread writes there for longer than LOCK_SECONDS, ValueError for an
    empty name, and IndexFileError for a name that is no folder's or a manifest of another program.
    """
    path = _folder(folder)
    with contextlib.ExitStack() as stack:
        while True:
            is_new = not path.exists()
            _make(path)
            with contextlib.suppress(FileNotFoundError):  # the previous holder of the lock removed the folder
                stack.enter_context(_locked(path))
                break
        made = Saving(path)
        try:
            made.check_manifest()
            yield made
        except NotRegularError as error:
            raise IndexFileError(f"the index in {os.fspath(folder)!r} cannot be written: {error}") from None
        finally:
            made.abandon()
            if is_new:
                stack.close()
                with contextlib.suppress(OSError):  # not empty: it holds an index now, or somebody writes one
                    path.rmdir()


def remove(folder: Folder) -> list[str]:
    """Remove an index, with its folder unless that holds anything else; return the names of what is left in it.

    Readers that have it open are not affected. Raises BlockingIOError while somebody writes it, and IndexFileError for
    a manifest of another program.
    """
    path = _folder(folder)
    with _locked(path):
        left = Saving(path).discard()
    with contextlib.suppress(OSError):  # not empty
        path.rmdir()
    return left


def _names(manifest: Manifest | None) -> set[str]:
    """The names of the files of an index."""
    return {entry.name for entry in manifest.files.values()} if manifest else set()


def _folder(folder: Folder) -> Path:
    if not os.fspath(folder):
        raise ValueError("the folder of an index is '': name one ('.' is the working directory)")
    return Path(folder)


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        kind = "a symbolic link that leads to no folder" if folder.is_symlink() else "not a folder"
        raise IndexFileError(f"{os.fspath(folder)!r} is {kind}: an index needs a folder of its own") from None


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    try:
        with locked(folder / LOCK, f"the index in {os.fspath(folder)!r}", wait=LOCK_SECONDS):
            yield
    except NotRegularError as error:
        raise IndexFileError(f"the index in {os.fspath(folder)!r} cannot be locked: {error}") from None


def _is_part(name: str) -> bool:
    """Whether `name` is that of an index file being written."""
    whole = name[1 : -len(".part")]
    return name == part_name(whole) and (whole == MANIFEST or digest_in(whole) is not None)


def _says_its_content(path: Path) -> bool:
    """Whether a file's name contains its checksum, which only index files' names do."""
    digest, hasher = digest_in(path.name), hashlib.sha256()
    if digest is None:
        return False
    try:
        with os.fdopen(open_regular(path), "rb") as file:
            while block := file.read(_BLOCK):
                hasher.update(block)
    except OSError:
        return False
    return hasher.hexdigest().startswith(digest)
