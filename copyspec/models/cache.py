"""Folders in the user's cache that are made once: written whole or not at all, checked before they are used."""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from copyspec.filesystem import flush_folder, locked, replacing

logger = logging.getLogger(__name__)

CACHE_VARIABLE = "COPYSPEC_CACHE"
MANIFEST = "copyspec-files.json"

LOCK_SECONDS = 1800.0
"""Who finds a folder being made waits so long: a model of some gigabytes takes minutes."""

_BLOCK = 1 << 20  # bytes hashed at once
_UNWRITABLE = frozenset(
    getattr(errno, name) for name in ("ENOSPC", "EDQUOT", "EACCES", "EPERM", "EROFS", "ENOTDIR") if hasattr(errno, name)
)


def cache_folder() -> Path:
    """Where models are kept: $COPYSPEC_CACHE, else `copyspec` in the user's cache folder."""
    if chosen := os.environ.get(CACHE_VARIABLE):
        return Path(chosen).expanduser()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "copyspec"


def made_once(name: str, make: Callable[[Path], None]) -> Path:
    """The folder `name` of the cache. Where it is missing or damaged, `make` fills a new one, which takes its
    place.

    A second process waits for the first one and takes what it made. Raises OSError where the cache cannot be written;
    nothing half-made is left then.
    """
    folder = cache_folder() / "models" / name
    if not is_whole(folder):  # the common case needs no lock, so that a cache that cannot be written serves too
        try:
            _make(folder, make)
        except OSError as error:
            if error.errno not in _UNWRITABLE:
                raise
            raise OSError(
                f"the model cache cannot be written ({error.strerror}: {error.filename or folder}); make room, or set "
                f"{CACHE_VARIABLE} to a folder on another disk"
            ) from error
    return folder


def _make(folder: Path, make: Callable[[Path], None]) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    with locked(folder.with_name(f".{folder.name}.lock"), f"the model {folder.name!r}", wait=LOCK_SECONDS):
        if is_whole(folder):
            return
        if folder.exists():
            logger.warning("%s is damaged or was not finished; it is made again", folder)
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
    """The folders of the cache that are whole or were once, by name, with their bytes."""
    found = sorted(path.parent for path in (cache_folder() / "models").glob(f"*/{MANIFEST}"))
    return [(folder, sum(path.stat().st_size for path in folder.iterdir())) for folder in found]


def remove(folder: Path) -> None:
    """Removes a folder of the cache: what needs it makes it anew. Raises OSError where that fails."""
    with locked(folder.with_name(f".{folder.name}.lock"), f"the model {folder.name!r}", wait=LOCK_SECONDS):
        _remove_leftovers(folder)
        shutil.rmtree(folder)


def is_whole(folder: Path) -> bool:
    """Whether every file of a folder is what was written.

    A file whose size, time and place on the disk are those noted is not read again: hashing a model takes as long as
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
    """What processes that were killed left. Nobody else may be making the folder."""
    for leftover in folder.parent.glob(f"{folder.name}.*.new"):
        shutil.rmtree(leftover, ignore_errors=True)
