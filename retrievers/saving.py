"""Index files, written: whole, under new names, and put in force by one switch.

A folder holds one index: `manifest.json` names its files, and all that belongs together (texts, vectors, places of the
passages) stands in this one manifest. A save holds the folder's lock, writes files whose names their content decides,
replaces the manifest last, and then removes what only the index before it used.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import stat
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from copyspec.filesystem import NotRegularError, flush_folder, locked, open_regular, part_name, replacing

from .base import Folder
from .manifest import (
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
"""A save waits so long for another one: most take less."""

_BLOCK = 1 << 20  # bytes hashed at once: large enough for full speed, small enough to stay in the cache


@runtime_checkable
class Written(Protocol):
    """A retriever whose index can hold more than its own files."""

    def write(self, index: Saving) -> None:
        """Writes all of it, and puts it in force with what was written before."""
        ...


class Saving:
    """An index that is being written into a folder, whose lock is held. Nothing counts before `commit`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files: dict[str, Entry] = {}
        self._new: list[str] = []  # names that were not there

    def content(self, key: str, suffix: str, content: bytes | memoryview) -> None:
        """One file. `key`: its name in the manifest; what stands behind the last "." names the file, too."""
        digest = hashlib.sha256(content).hexdigest()
        name = entry_name(key.rpartition(".")[2], suffix, digest)
        if not os.path.lexists(self.folder / name):
            self._new.append(name)
        with replacing(self.folder / name, lasts=False) as file:
            file.write(content)
        self.files[key] = Entry(name, memoryview(content).nbytes, digest)

    def array(self, key: str, array: NDArray[np.generic]) -> None:
        """The numbers of an array and nothing else."""
        self.content(key, ".bin", np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)

    def strings(self, key: str, values: Sequence[str]) -> None:
        """A list of strings, as JSON."""
        self.content(key, ".json", json.dumps(list(values)).encode())

    def is_there(self) -> bool:
        """Whether the folder holds an index already, or what shall be one."""
        return os.path.lexists(self.folder / MANIFEST)

    def before(self) -> Manifest | None:
        """What is in force in the folder; None where nothing is, or nothing that can be read."""
        with contextlib.suppress(IndexFileError):
            return parsed(manifest_bytes(self.folder), self.folder / MANIFEST)
        return None

    def commit(self, kind: str, made_with: str = "", facts: Mapping[str, object] | None = None) -> None:
        """Puts the files that were written in force, and removes those that only the index before them used."""
        before = self.before()
        flush_folder(self.folder)  # the names of the files, before one is in force that needs them
        with replacing(self.folder / MANIFEST) as file:
            file.write(written(Manifest(kind, made_with, facts or {}, self.files)))
        self._new.clear()
        kept = {entry.name for entry in self.files.values()}
        for name in {entry.name for entry in before.files.values()} - kept if before else ():
            self._remove(name)
        self._remove_leftovers(kept)

    def abandon(self) -> None:
        """Removes what was written and is not in force."""
        for name in self._new:
            self._remove(name)
        self._new.clear()

    def _remove_leftovers(self, kept: set[str]) -> None:
        """What a writer that was killed left: halves of files, and files whose name says what their content is."""
        for found in list(os.scandir(self.folder)):
            if found.name in kept or not found.is_file(follow_symlinks=False):
                continue
            if _is_part(found.name) or _says_its_content(self.folder / found.name):
                self._remove(found.name)

    def _remove(self, name: str) -> None:
        path = self.folder / name
        with contextlib.suppress(OSError):  # one that another process still has open on Windows stays behind
            if stat.S_ISREG(path.lstat().st_mode):
                path.unlink()


@contextlib.contextmanager
def saving(folder: Folder) -> Iterator[Saving]:
    """The right to write into `folder`, which is made where it is missing.

    Raises BlockingIOError where another process or thread writes there for longer than LOCK_SECONDS.
    """
    path = Path(folder)
    with contextlib.ExitStack() as stack:
        while True:
            is_new = not path.exists()
            path.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileNotFoundError):  # removed, by whoever held its lock
                stack.enter_context(_locked(path))
                break
        made = Saving(path)
        try:
            yield made
        except NotRegularError as error:
            raise IndexFileError(f"the index in {os.fspath(folder)!r} cannot be written: {error}") from None
        finally:
            made.abandon()
            if is_new:
                stack.close()
                with contextlib.suppress(OSError):  # it holds an index now, or somebody writes one
                    path.rmdir()


def remove(folder: Folder) -> None:
    """Removes an index with its folder. Who reads it goes on; raises BlockingIOError while somebody writes it."""
    path = Path(folder)
    with _locked(path):
        _discard(path / MANIFEST)  # first: what is left of a removal that stops here is no index
        flush_folder(path)
        for found in path.iterdir():
            if found.name != LOCK:
                _discard(found)
    with contextlib.suppress(OSError):  # somebody writes a new one already
        path.rmdir()


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    try:
        with locked(folder / LOCK, f"the index in {os.fspath(folder)!r}", wait=LOCK_SECONDS):
            yield
    except NotRegularError as error:
        raise IndexFileError(f"the index in {os.fspath(folder)!r} cannot be locked: {error}") from None


def _discard(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def _is_part(name: str) -> bool:
    """Whether a file of an index has this name while it is written."""
    whole = name[1 : -len(".part")]
    return name == part_name(whole) and (whole == MANIFEST or digest_in(whole) is not None)


def _says_its_content(path: Path) -> bool:
    """Whether a file's name holds its checksum: no other file than an index's does."""
    digest, found = digest_in(path.name), hashlib.sha256()
    if digest is None:
        return False
    try:
        with os.fdopen(open_regular(path), "rb") as file:
            while block := file.read(_BLOCK):
                found.update(block)
    except OSError:
        return False
    return found.hexdigest().startswith(digest)
