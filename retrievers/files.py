"""Index files, read: checked before anything is made of them.

Whoever reads an index opens all files of its manifest before it reads the first: it has the old index or the new one,
never half of one, whatever is written meanwhile (`saving` says how).
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection
from pathlib import Path

import numpy as np
from numpy.typing import DTypeLike, NDArray

from copyspec.filesystem import open_regular
from copyspec.fingerprints import fingerprint
from copyspec.json_strings import JSONStrings

from .base import Folder
from .manifest import (
    MANIFEST,
    Entry,
    IndexFileError,
    Manifest,
    check_facts,
    check_keys,
    manifest_bytes,
    parsed,
)

__all__ = ["MANIFEST", "Entry", "IndexFileError", "Manifest", "check_facts", "check_keys", "fingerprint"]

EXTRAS = (
    *(f"passages.{name}" for name in ("names", "documents", "starts", "titles", "headings", "pages", "stamps")),
    "documents",
)
"""Files that an index may have beside its own: where its passages stand, what LangChain knows of its documents."""

_TRIES = 100  # readings of a folder whose files vanish: each time somebody has put a new index there meanwhile
_BLOCK = 1 << 20  # bytes hashed at once: large enough for full speed, small enough to stay in the cache


class Opened:
    """An index whose files are all open: what others write meanwhile changes nothing. Used in a `with` block."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        """Raises IndexFileError for files that are missing, of another size, or no regular files."""
        self.folder, self.manifest = folder, manifest
        self._handles: dict[str, int] = {}
        try:
            for key, entry in manifest.files.items():
                self._handles[key] = _opened_entry(folder / entry.name, entry)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Opened:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the files."""
        for handle in self._handles.values():
            os.close(handle)
        self._handles.clear()

    def part(self, keys: Collection[str], facts: Collection[str]) -> Opened:
        """A view of some of the files and facts, as an index of its own; it ends with this one."""
        manifest, view = self.manifest, Opened.__new__(Opened)
        view.folder, view._handles = self.folder, {key: self._handles[key] for key in keys}
        view.manifest = Manifest(
            manifest.kind,
            manifest.fingerprint,
            {name: manifest.facts[name] for name in facts},
            {key: manifest.files[key] for key in keys},
        )
        return view

    def handle(self, key: str) -> int:
        """A descriptor of the file, the caller's own."""
        self._entry(key)
        return os.dup(self._handles[key])

    def check(self, key: str) -> None:
        """Raises IndexFileError where the content is not what was written."""
        digest = hashlib.sha256()
        with self._file(key) as file:
            while block := file.read(_BLOCK):
                digest.update(block)
        self._check_digest(key, digest.hexdigest())

    def content(self, key: str) -> bytearray:
        """The checked content of a file."""
        content = bytearray(self._entry(key).size)
        view, filled = memoryview(content), 0
        with self._file(key) as file:
            while filled < len(content) and (count := file.readinto(view[filled:])):
                filled += count
        self._check_digest(key, hashlib.sha256(content).hexdigest())
        return content

    def array(self, key: str, dtype: DTypeLike) -> NDArray[np.generic]:
        """The checked numbers of a file. [its size / that of one]"""
        content, kind = self.content(key), np.dtype(dtype)
        if len(content) % kind.itemsize:
            raise self.wrong(key, f"{len(content)} bytes are no numbers of {kind.itemsize} each")
        return np.frombuffer(content, kind)

    def strings(self, key: str) -> list[str]:
        """The checked list of strings in a file, as `Saving.strings` wrote it: nothing else is made of it."""
        try:
            return _strings(self.content(key).decode("ascii"))
        except ValueError as error:
            raise self.wrong(key, f"no list of strings: {error!s:.200}") from None

    def wrong(self, key: str, said: str) -> IndexFileError:
        """The error for a content that fits its checksum and nothing else."""
        path = self.folder / self.manifest.files[key].name
        return IndexFileError(f"{os.fspath(path)!r} is not what copyspec writes ({said}); build the index again")

    def _entry(self, key: str) -> Entry:
        check_keys(self.folder, self.manifest, (key,), tuple(self.manifest.files))
        return self.manifest.files[key]

    def _file(self, key: str):  # type: ignore[no-untyped-def]  # io.FileIO, which mypy calls by another name
        file = open(self.handle(key), "rb", buffering=0)  # noqa: SIM115  the caller's
        file.seek(0)
        return file

    def _check_digest(self, key: str, found: str) -> None:
        entry = self.manifest.files[key]
        if found != entry.sha256:
            path = os.fspath(self.folder / entry.name)
            raise IndexFileError(f"{path!r} is damaged (its checksum differs); build the index again")


def opened(folder: Folder, kind: str | None = None) -> Opened:
    """The index in a folder, its files open. `kind`: what it must be an index of. Raises IndexFileError."""
    path = Path(folder)
    for _ in range(_TRIES):
        content = manifest_bytes(path)
        manifest = parsed(content, path / MANIFEST)
        if kind is not None and manifest.kind != kind:
            raise IndexFileError(f"{os.fspath(folder)!r} holds an index of kind {manifest.kind!r}, not {kind!r}")
        try:
            return Opened(path, manifest)
        except IndexFileError:
            if manifest_bytes(path) == content:
                raise
    raise IndexFileError(f"the index in {os.fspath(folder)!r} is replaced faster than it can be read: copy it first")


def read_manifest(folder: Folder, kind: str | None = None) -> Manifest:
    """The manifest of an index, its files looked at, but not read."""
    with opened(folder, kind) as index:
        return index.manifest


def check_fingerprint(folder: Folder, manifest: Manifest, expected: str, what: str) -> None:
    """Raises IndexFileError where the index was made with another `what` than the one at hand."""
    if manifest.fingerprint != expected:
        raise IndexFileError(
            f"the index in {os.fspath(folder)!r} was made with another {what} (fingerprint "
            f"{manifest.fingerprint!r:.80}, this one is {expected!r}): load it with that one or build it again"
        )


def _opened_entry(path: Path, entry: Entry) -> int:
    try:
        handle = open_regular(path)
    except FileNotFoundError:
        raise IndexFileError(f"{os.fspath(path)!r} is missing; build the index again") from None
    except OSError as error:
        raise IndexFileError(f"{os.fspath(path)!r} cannot be read: {error}") from None
    size = os.fstat(handle).st_size
    if size != entry.size:
        os.close(handle)
        raise IndexFileError(f"{os.fspath(path)!r} has {size} bytes, {entry.size} were written; build the index again")
    return handle


def _strings(content: str) -> list[str]:
    text, found = JSONStrings(content), list[str]()
    text.expect("[")
    while not text.passes("]"):
        if found:
            text.expect(", ")
        found.append(text.string())
    text.end()
    return found
