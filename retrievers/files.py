"""Index files: a manifest with the format's version, a fingerprint and a checksum for every file beside it.

A save writes files under new names, each through a temporary file that is flushed to disk, and replaces
`manifest.json` last: whoever reads the folder sees the old index or the new one, never half of one.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, TypeVar

import numpy as np
from numpy.typing import NDArray

from copyspec.fingerprints import fingerprint as fingerprint

from .base import Folder

FORMAT = "copyspec-index"
VERSION = 1
MANIFEST = "manifest.json"
_T = TypeVar("_T")
_BLOCK = 1 << 20  # bytes hashed at once: large enough for full speed, small enough to stay in the cache


class IndexFileError(OSError):
    """An index on disk is missing, damaged, of another format, or made with something else."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One file of an index."""

    name: str  # of the file in the folder
    size: int  # bytes
    sha256: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """What an index says about itself."""

    kind: str
    fingerprint: str  # of the tokenizer, the encoder or the word splitter that the index was made with
    facts: Mapping[str, object] = field(default_factory=dict)
    files: Mapping[str, Entry] = field(default_factory=dict)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A binary file that takes the place of `path` when the block ends well, and vanishes when it does not."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)  # mkstemp makes files that nobody else may read
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    _flush_folder(path.parent)


def write_file(folder: Path, stem: str, suffix: str, content: bytes | memoryview) -> Entry:
    """Writes one file under a name that its content decides, so that no file in use is ever overwritten."""
    digest = hashlib.sha256(content).hexdigest()
    name = f"{stem}-{digest[:12]}{suffix}"
    with replacing(folder / name) as file:
        file.write(content)
    return Entry(name, memoryview(content).nbytes, digest)


def write_array(folder: Path, stem: str, array: NDArray[np.generic]) -> Entry:
    """Writes the numbers of an array and nothing else, for mapping into memory."""
    return write_file(folder, stem, ".bin", np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)


def write_arrays(folder: Path, stem: str, arrays: Mapping[str, NDArray[np.generic]]) -> Entry:
    """Writes named arrays as one .npz, which holds no pickled objects."""
    content = io.BytesIO()
    np.savez(content, allow_pickle=False, **arrays)
    return write_file(folder, stem, ".npz", content.getbuffer())


def write_json(folder: Path, stem: str, value: object) -> Entry:
    """Writes a value as JSON."""
    return write_file(folder, stem, ".json", json.dumps(value).encode())


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Puts the index in force, and removes the files that only the one before it used."""
    body: dict[str, object] = {
        "format": FORMAT,
        "version": VERSION,
        "kind": manifest.kind,
        "fingerprint": manifest.fingerprint,
        "facts": dict(manifest.facts),
        "files": {key: [entry.name, entry.size, entry.sha256] for key, entry in manifest.files.items()},
    }
    before = {entry.name for entry in _files_before(folder)}
    with replacing(folder / MANIFEST) as file:
        file.write(json.dumps({**body, "sha256": fingerprint(body)}, indent=1).encode())
    for name in before - {entry.name for entry in manifest.files.values()}:
        with contextlib.suppress(OSError):  # one that another process still has open on Windows stays behind
            (folder / name).unlink()


def read_manifest(folder: Folder, kind: str | None = None) -> Manifest:
    """The manifest of an index, sizes of its files checked. `kind`: what it must be an index of."""
    path = Path(folder) / MANIFEST
    try:
        found = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise IndexFileError(f"there is no index in {str(folder)!r}: it holds no {MANIFEST}") from None
    except ValueError as error:
        raise IndexFileError(f"{str(path)!r} is damaged ({error}); build the index again") from None
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise IndexFileError(f"{str(path)!r} is no manifest of a copyspec index")
    if found.get("version") != VERSION:
        raise IndexFileError(
            f"{str(path)!r} has format version {found.get('version')!r}, this copyspec reads {VERSION}: build it again"
        )
    checksum = found.pop("sha256", None)
    if checksum != fingerprint(found):
        raise IndexFileError(f"{str(path)!r} is damaged (its checksum differs); build the index again")
    if kind is not None and found["kind"] != kind:
        raise IndexFileError(f"{str(folder)!r} holds an index of kind {found['kind']!r}, not {kind!r}")
    files = {key: Entry(*entry) for key, entry in found["files"].items()}
    manifest = Manifest(found["kind"], found["fingerprint"], found["facts"], files)
    for entry in files.values():
        _check_size(Path(folder) / entry.name, entry)
    return manifest


def read_whole(folder: Folder, read: Callable[[], _T]) -> _T:
    """What `read` makes of an index; anew where another process replaced the index, and its files, meanwhile."""
    path = Path(folder) / MANIFEST
    while True:
        before = path.read_bytes() if path.exists() else b""
        try:
            return read()
        except OSError:
            if not path.exists() or path.read_bytes() == before:
                raise


def check_file(folder: Path, entry: Entry) -> Path:
    """The path of a file whose content is what was written. Raises IndexFileError for any other content."""
    path = folder / entry.name
    _check_size(path, entry)
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    if digest.hexdigest() != entry.sha256:
        raise IndexFileError(f"{str(path)!r} is damaged (its checksum differs); build the index again")
    return path


def read_arrays(folder: Path, entry: Entry) -> dict[str, NDArray[np.generic]]:
    """The arrays of a checked .npz."""
    with np.load(check_file(folder, entry), allow_pickle=False) as arrays:
        return {name: arrays[name] for name in arrays.files}


def read_strings(folder: Path, entry: Entry) -> list[str]:
    """The list of strings in a checked JSON file."""
    value = json.loads(check_file(folder, entry).read_bytes())
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise IndexFileError(f"{str(folder / entry.name)!r} is no list of strings")
    return value


def check_fingerprint(folder: Folder, manifest: Manifest, expected: str, what: str) -> None:
    """Raises IndexFileError where the index was made with another `what` than the one at hand."""
    if manifest.fingerprint != expected:
        raise IndexFileError(
            f"the index in {str(folder)!r} was made with another {what} (fingerprint {manifest.fingerprint!r}, "
            f"this one is {expected!r}): load it with that one or build it again"
        )


def _check_size(path: Path, entry: Entry) -> None:
    try:
        size = path.stat().st_size
    except FileNotFoundError:
        raise IndexFileError(f"{str(path)!r} is missing; build the index again") from None
    if size != entry.size:
        raise IndexFileError(f"{str(path)!r} has {size} bytes, {entry.size} were written; build the index again")


def _files_before(folder: Path) -> list[Entry]:
    """The files of the index that stands in the folder; none where there is none that can be read."""
    try:
        return list(read_manifest(folder).files.values())
    except IndexFileError:
        return []


def _flush_folder(folder: Path) -> None:
    """Makes a rename last; not every system lets a folder be opened."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
