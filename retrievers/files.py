"""Reading of index files, with checks of sizes and checksums (`saving` writes them).

A reader opens all files of a manifest before it reads the first one. While another process saves, it therefore sees
the old index or the new one, never a mixture.
"""

from __future__ import annotations

import hashlib
import os
import reprlib
from collections.abc import Collection, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import DTypeLike, NDArray

from copyspec.common.filesystem import open_regular
from copyspec.common.fingerprints import fingerprint
from copyspec.common.json_strings import JSONStrings

from .base import Folder
from .manifest import (
    MANIFEST,
    Entry,
    IndexFileError,
    Manifest,
    manifest_bytes,
    parsed,
    wrong_manifest,
)

__all__ = ["MANIFEST", "Entry", "IndexFileError", "Manifest", "fingerprint"]

EXTRAS = (
    *(f"passages.{name}" for name in ("names", "documents", "starts", "titles", "headings", "pages", "stamps")),
    "documents",
    "retriever",
)
"""Optional files of any index: the places of its passages in their documents, and LangChain's ids and metadata."""

_TRIES = 100  # attempts to open an index whose files vanish because it is being replaced
_BLOCK = 1 << 20  # bytes hashed at once: large enough for full speed, small enough to stay in the cache


class Opened:
    """An index with all its files open, so that later writes do not affect it. Used in a `with` block."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        """Raises IndexFileError for files that are missing, have another size, or are not regular files."""
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
        """Close the files."""
        for handle in self._handles.values():
            os.close(handle)
        self._handles.clear()

    def part(self, keys: Collection[str], facts: Collection[str]) -> Opened:
        """Return a view of some files and facts as an index of its own; closing this index ends it."""
        manifest, view = self.manifest, Opened.__new__(Opened)
        view.folder, view._handles = self.folder, {key: self._handles[key] for key in keys}
        view.manifest = Manifest(
            manifest.kind,
            manifest.fingerprint,
            {name: manifest.facts[name] for name in facts},
            {key: manifest.files[key] for key in keys},
        )
        return view

    def require(self, *keys: str) -> None:
        """Raise IndexFileError unless the index has these files."""
        if missing := set(keys) - set(self.manifest.files):
            raise wrong_manifest(self.folder / MANIFEST, f"it names no file of {min(missing)!r}")

    def check_keys(self, names: Collection[str], optional: Collection[str] = ()) -> None:
        """Raise IndexFileError unless the files are all of `names`, and possibly some of `optional` and EXTRAS."""
        self.require(*names)
        if unknown := set(self.manifest.files) - {*names, *optional, *EXTRAS}:
            raise wrong_manifest(self.folder / MANIFEST, f"nothing is known of a file of {min(unknown)!r}")

    def check_facts(self, kinds: Mapping[str, tuple[type, ...]]) -> Mapping[str, object]:
        """Return the facts if they are exactly those of `kinds`, with one of their types; else raise IndexFileError."""
        facts = self.manifest.facts
        for name in (*kinds, *facts):
            if name not in kinds or name not in facts or type(facts[name]) not in kinds[name]:
                found = reprlib.repr(facts[name]) if name in facts else "missing"
                raise wrong_manifest(self.folder / MANIFEST, f"the fact {name!r:.80} is {found}")
        return facts

    def check_fingerprint(self, expected: str, what: str) -> None:
        """Raise IndexFileError if the index was made with another `what` (tokenizer, word splitter) than `expected`."""
        if self.manifest.fingerprint != expected:
            raise IndexFileError(
                f"the index in {os.fspath(self.folder)!r} was made with another {what} (fingerprint "
                f"{self.manifest.fingerprint!r:.80}, this one is {expected!r}): load it with that one or build it again"
            )

    def handle(self, key: str) -> int:
        """Return a duplicate of the file's descriptor, which the caller must close."""
        self._entry(key)
        return os.dup(self._handles[key])

    def check(self, key: str) -> None:
        """Raise IndexFileError if the content does not match its checksum."""
        digest = hashlib.sha256()
        with self._file(key) as file:
            while block := file.read(_BLOCK):
                digest.update(block)
        self._check_digest(key, digest.hexdigest())

    def content(self, key: str) -> bytearray:
        """Return the content of a file after comparing its checksum."""
        content = bytearray(self._entry(key).size)
        view, filled = memoryview(content), 0
        with self._file(key) as file:
            while filled < len(content) and (count := file.readinto(view[filled:])):
                filled += count
        self._check_digest(key, hashlib.sha256(content).hexdigest())
        return content

    def array(self, key: str, dtype: DTypeLike) -> NDArray[np.generic]:
        """Return a file's checked content as an array of `dtype`. [file size / item size]"""
        content, kind = self.content(key), np.dtype(dtype)
        if len(content) % kind.itemsize:
            raise self.wrong(key, f"{len(content)} bytes are no numbers of {kind.itemsize} each")
        return np.frombuffer(content, kind)

    def strings(self, key: str) -> list[str]:
        """Return the checked list of strings that `Saving.strings` wrote; any other JSON is an error."""
        try:
            return _strings(self.content(key).decode("ascii"))
        except ValueError as error:
            raise self.wrong(key, f"no list of strings: {error!s:.200}") from None

    def wrong(self, key: str, problem: str) -> IndexFileError:
        """Make the error for content that has the right checksum but is invalid."""
        path = self.folder / self.manifest.files[key].name
        return IndexFileError(f"{os.fspath(path)!r} is not what copyspec writes ({problem}); build the index again")

    def _entry(self, key: str) -> Entry:
        self.require(key)
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
    """Open the index in a folder. Raises IndexFileError, also if it is not of the given `kind`."""
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
    raise IndexFileError(f"the index in {os.fspath(folder)!r} is being replaced too often to be read: copy it first")


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
