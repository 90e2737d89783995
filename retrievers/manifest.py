"""The manifest of an index: what it was made with, and all its files with sizes and checksums.

An index may come from somebody else, so everything in a manifest is checked; its checksum only detects accidents. File
names must have the form of `entry_name`, so that none leads out of the folder.
"""

from __future__ import annotations

import json
import os
import re
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from copyspec.common.filesystem import open_regular
from copyspec.common.fingerprints import fingerprint

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
    found = _NAME.fullmatch(name)
    return found.group(1) if found else None


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
        found = json.loads(content, object_pairs_hook=_unique, parse_constant=_no_number)
        checksum = found.pop("sha256", None) if isinstance(found, dict) else None
        if not isinstance(found, dict) or found.get("format") != FORMAT:
            raise IndexFileError(f"{where} is not the manifest of a copyspec index")
        version, kind = found.get("version"), found.get("kind")
        if type(version) is not int or version not in READABLE:
            raise IndexFileError(
                f"{where} has format version {reprlib.repr(version)}, this copyspec reads {VERSION}: build it again"
            )
        if checksum != fingerprint(found):
            raise IndexFileError(f"{where} is damaged (its checksum differs); build the index again")
    except (ValueError, RecursionError) as error:
        raise IndexFileError(f"{where} is damaged ({error!s:.200}); build the index again") from None
    if {*found, "sha256"} != _KEYS:
        raise wrong_manifest(path, f"its fields are {', '.join(map(reprlib.repr, sorted(found)))}")
    for name, kinds in (("kind", str), ("fingerprint", str), ("facts", dict), ("files", dict)):
        if not isinstance(found[name], kinds):
            raise wrong_manifest(path, f"{name!r} is {reprlib.repr(found[name])}")
    if version == 1 and kind in READABLE[VERSION] and kind not in READABLE[1]:
        raise IndexFileError(f"{where} has format version 1, this copyspec reads {VERSION} of {kind!r}: build it again")
    if kind not in READABLE[version]:
        raise IndexFileError(f"{where} is of kind {kind!r:.80}, and this copyspec knows {', '.join(READABLE[version])}")
    files = {key: _entry(path, key, entry) for key, entry in found["files"].items()}
    return Manifest(kind, found["fingerprint"], found["facts"], files)


def _entry(path: Path, key: object, found: object) -> Entry:
    if isinstance(key, str) and _FILE_KEY.fullmatch(key) and isinstance(found, list) and len(found) == 3:
        name, size, digest = cast("list[object]", found)
        if isinstance(name, str) and isinstance(digest, str) and _DIGEST.fullmatch(digest):
            fits = digest_in(name) == digest[:12]
            if fits and type(size) is int and 0 <= size <= _LARGEST:
                return Entry(name, size, digest)
    raise wrong_manifest(path, f"the file {key!r:.80} is {reprlib.repr(found)}")


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
