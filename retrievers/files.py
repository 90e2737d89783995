"""Reading of index files, with checks of sizes and checksums (`saving` writes them).

A reader opens all files of a manifest before it reads the first one. While another process saves, it therefore sees
the old index or the new one, never a mixture. An index may come from somebody else, so everything in its manifest is
checked; its checksum only detects accidents. File names must have the form of `entry_name`, so that none leads out of
the folder.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import reprlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import numpy as np
from numpy.typing import DTypeLike, NDArray

from copyspec.common.filesystem import open_regular
from copyspec.common.fingerprints import fingerprint
from copyspec.common.json_strings import JSONStrings

from .base import Folder

FORMAT = "copyspec-index"
VERSION = 2
READABLE = {1: ("tokens",), 2: ("bm25", "dense", "hybrid", "tokens")}
"""Readable kinds by version. Version 1 stored all but datastores in another format, which is no longer read."""

MANIFEST = "manifest.json"
MAX_BYTES = 1 << 22
"""Largest manifest: room for some 20,000 files; a datastore of a billion tokens has a hundred."""

_KEYS = {"format", "version", "kind", "fingerprint", "facts", "files", "sha256"}
_FILE_KEY = re.compile(r"(?:(?:[0-9]{1,6}|[a-z]{1,32})\.)?[a-z_]{1,32}")
_NAME = re.compile(r"[a-z_]{1,32}-([0-9a-f]{12})\.(?:bin|json|npz)")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_LARGEST = 1 << 50  # largest plausible file size, in bytes; huge numbers would also take long to print


class IndexFileError(OSError):
    """An index on disk is missing, damaged, of another format, or made with another tokenizer, splitter or encoder."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One file of an index."""

    name: str  # of the file in the folder
    size: int  # bytes
    sha256: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """The content of a manifest."""

    kind: str
    fingerprint: str  # of the tokenizer, the encoder or the word splitter that the index was made with
    facts: Mapping[str, object] = field(default_factory=dict)
    files: Mapping[str, Entry] = field(default_factory=dict)


def entry_name(stem: str, suffix: str, digest: str) -> str:
    """Return a file name that contains the checksum, so that a file in use is never overwritten by other content."""
    return f"{stem}-{digest[:12]}{suffix}"


def digest_in(name: str) -> str | None:
    """Return the start of the checksum in a name made by `entry_name`; None for any other name."""
    match = _NAME.fullmatch(name)
    return match.group(1) if match else None


def manifest_bytes(folder: Path) -> bytes:
    """Read the manifest file of a folder. Raises IndexFileError if it is missing or not a regular file."""
    path = folder / MANIFEST
    try:
        handle = open_regular(path)
    except (FileNotFoundError, NotADirectoryError):
        raise IndexFileError(f"there is no index in {os.fspath(folder)!r}: it holds no {MANIFEST}") from None
    except OSError as error:
        raise IndexFileError(f"{os.fspath(path)!r} cannot be read: {error}") from None
    with os.fdopen(handle, "rb") as file:
        content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise IndexFileError(f"{os.fspath(path)!r} is not the manifest of a copyspec index: over {MAX_BYTES:,} bytes")
    return content


def written(manifest: Manifest) -> bytes:
    """Serialise a manifest."""
    body: dict[str, object] = {
        "format": FORMAT,
        "version": VERSION,
        "kind": manifest.kind,
        "fingerprint": manifest.fingerprint,
        "facts": dict(manifest.facts),
        "files": {key: [entry.name, entry.size, entry.sha256] for key, entry in manifest.files.items()},
    }
    return json.dumps({**body, "sha256": fingerprint(body)}, indent=1).encode()


def parsed(content: bytes, path: Path) -> Manifest:
    """Parse the manifest file `path`. Raises IndexFileError for anything that `written` would not write."""
    where = repr(os.fspath(path))
    try:
        manifest = json.loads(content, object_pairs_hook=_unique, parse_constant=_no_number)
        checksum = manifest.pop("sha256", None) if isinstance(manifest, dict) else None
        if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
            raise IndexFileError(f"{where} is not the manifest of a copyspec index")
        version, kind = manifest.get("version"), manifest.get("kind")
        if type(version) is not int or version not in READABLE:
            raise IndexFileError(
                f"{where} has format version {reprlib.repr(version)}, this copyspec reads {VERSION}: build it again"
            )
        if checksum != fingerprint(manifest):
            raise IndexFileError(f"{where} is damaged (its checksum differs); build the index again")
    except (ValueError, RecursionError) as error:
        raise IndexFileError(f"{where} is damaged ({error!s:.200}); build the index again") from None
    if {*manifest, "sha256"} != _KEYS:
        raise wrong_manifest(path, f"its fields are {', '.join(map(reprlib.repr, sorted(manifest)))}")
    for name, kinds in (("kind", str), ("fingerprint", str), ("facts", dict), ("files", dict)):
        if not isinstance(manifest[name], kinds):
            raise wrong_manifest(path, f"{name!r} is {reprlib.repr(manifest[name])}")
    if version == 1 and kind in READABLE[VERSION] and kind not in READABLE[1]:
        raise IndexFileError(f"{where} has format version 1, this copyspec reads {VERSION} of {kind!r}: build it again")
    if kind not in READABLE[version]:
        raise IndexFileError(f"{where} is of kind {kind!r:.80}, and this copyspec knows {', '.join(READABLE[version])}")
    files = {key: _entry(path, key, entry) for key, entry in manifest["files"].items()}
    return Manifest(kind, manifest["fingerprint"], manifest["facts"], files)


def _entry(path: Path, key: object, value: object) -> Entry:
    if isinstance(key, str) and _FILE_KEY.fullmatch(key) and isinstance(value, list) and len(value) == 3:
        name, size, digest = cast("list[object]", value)
        if isinstance(name, str) and isinstance(digest, str) and _DIGEST.fullmatch(digest):
            fits = digest_in(name) == digest[:12]
            if fits and type(size) is int and 0 <= size <= _LARGEST:
                return Entry(name, size, digest)
    raise wrong_manifest(path, f"the file {key!r:.80} is {reprlib.repr(value)}")


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise ValueError("a name stands in it twice")
    return made


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is not a number")


def wrong_manifest(path: Path, problem: str) -> IndexFileError:
    """Make the error for the manifest file `path` that has the right checksum but is invalid."""
    return IndexFileError(f"{os.fspath(path)!r} is not what copyspec writes: {problem:.300}; build the index again")


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
                fact = reprlib.repr(facts[name]) if name in facts else "missing"
                raise wrong_manifest(self.folder / MANIFEST, f"the fact {name!r:.80} is {fact}")
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

    def _check_digest(self, key: str, actual: str) -> None:
        entry = self.manifest.files[key]
        if actual != entry.sha256:
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
    text, strings = JSONStrings(content), list[str]()
    text.expect("[")
    while not text.passes("]"):
        if strings:
            text.expect(", ")
        strings.append(text.string())
    text.end()
    return strings
