"""Cached folders of converted models: written atomically, and verified before use."""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from copyspec.filesystem import flush_folder, locked, replacing

logger = logging.getLogger(__name__)

CACHE_VARIABLE = "COPYSPEC_CACHE"
MANIFEST = "copyspec-files.json"

LOCK_SECONDS = 1800.0
"""How long a process waits while another one creates the folder: a model of some gigabytes takes minutes."""

_BLOCK = 1 << 20  # bytes hashed at once
_UNWRITABLE = frozenset(
    getattr(errno, name)
    for name in ("ENOSPC", "EDQUOT", "EACCES", "EPERM", "EROFS", "ENOTDIR", "EEXIST")
    if hasattr(errno, name)
)


def cache_folder() -> Path:
    """The cache folder: $COPYSPEC_CACHE, else `copyspec` in the user's cache folder."""
    if chosen := os.environ.get(CACHE_VARIABLE):
        return Path(chosen).expanduser()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "copyspec"


def made_once(name: str, make: Callable[[Path], None]) -> Path:
    """The folder `name` of the cache. If it is missing or damaged, `make` fills a new folder, which replaces it.

    Other processes wait for the first one and use its folder. Raises OSError if the cache cannot be written, leaving no
    partial folder behind.
    """
    folder = cache_folder() / "models" / name
    if not is_whole(folder):  # no lock in the common case, so that a read-only cache works too
        with _explained(folder):
            _make(folder, make)
    return folder


def check_writable() -> None:
    """Raise OSError, as `made_once` would, if no folder can be made in the cache: before a download for nothing."""
    folder = cache_folder() / "models"
    with _explained(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, suffix=".new"):
            pass


@contextmanager
def _explained(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in _UNWRITABLE:
            raise
        raise OSError(
            f"the model cache cannot be written ({error.strerror}: {error.filename or folder}); make room, or set "
            f"{CACHE_VARIABLE} to a folder on another disk"
        ) from error


def _make(folder: Path, make: Callable[[Path], None]) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    with locked(folder.with_name(f".{folder.name}.lock"), f"the model {folder.name!r}", wait=LOCK_SECONDS):
        if is_whole(folder):
            return
        if folder.exists():
            logger.warning("%s is damaged or incomplete; creating it again", folder)
        _remove_leftovers(folder)
        scratch = Path(tempfile.mkdtemp(prefix=f"{folder.name}.", suffix=".new", dir=folder.parent))
        try:
            make(scratch)
            _write_manifest(scratch)
            shutil.rmtree(folder, ignore_errors=True)
            scratch.rename(folder)
            flush_folder(folder.parent)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)


def made() -> list[tuple[Path, int]]:
    """The finished folders of the cache, including damaged ones, sorted by name, with their size in bytes."""
    found = sorted(path.parent for path in (cache_folder() / "models").glob(f"*/{MANIFEST}"))
    return [(folder, sum(path.stat().st_size for path in folder.iterdir())) for folder in found]


def remove(folder: Path) -> None:
    """Remove a folder of the cache; it is created again when needed. Raises OSError on failure."""
    with locked(folder.with_name(f".{folder.name}.lock"), f"the model {folder.name!r}", wait=LOCK_SECONDS):
        _remove_leftovers(folder)
        shutil.rmtree(folder)


def is_whole(folder: Path) -> bool:
    """Whether every file of a folder still has the content that was written.

    A file whose size and timestamps equal those in the manifest is not hashed again: hashing a model takes as long as
    loading it.
    """
    try:
        noted: dict[str, list[object]] = json.loads((folder / MANIFEST).read_bytes())["files"]
        for name, (digest, *stamp) in noted.items():
            path = folder / name
            if stamp != _stamp(path) and digest != _digest(path):
                return False
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False
    return bool(noted)


def _write_manifest(folder: Path) -> None:
    noted = {}
    for path in sorted(folder.iterdir()):
        with path.open("rb") as file:
            os.fsync(file.fileno())
        noted[path.name] = [_digest(path), *_stamp(path)]
    with replacing(folder / MANIFEST) as manifest:
        manifest.write(json.dumps({"files": noted}, indent=1).encode())


def _stamp(path: Path) -> list[object]:
    found = path.stat()
    return [found.st_size, found.st_mtime_ns, found.st_ctime_ns]


def _digest(path: Path) -> str:
    digest = hashlib.blake2b(digest_size=32)
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def _remove_leftovers(folder: Path) -> None:
    """Remove the temporary folders of killed processes. The caller holds the folder's lock."""
    for leftover in folder.parent.glob(f"{folder.name}.*.new"):
        shutil.rmtree(leftover, ignore_errors=True)
