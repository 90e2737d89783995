"""Cached folders of converted models: written atomically, and verified before use."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import logging
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from copyspec.common.filesystem import flush_folder, locked, open_regular, replacing, umask
from copyspec.models.errors import FileError, expanded
from copyspec.models.files import is_file_name

logger = logging.getLogger(__name__)

CACHE_VARIABLE = "COPYSPEC_CACHE"
MANIFEST = "copyspec-files.json"
MAX_MANIFEST = 1 << 20  # bytes; a model of hundreds of files has some tens of kB

LOCK_SECONDS = 1800.0
"""How long a process waits while another one creates the folder: a model of some gigabytes takes minutes."""

_BLOCK = 1 << 20  # bytes hashed at once
_UNWRITABLE = frozenset(
    getattr(errno, name)
    for name in ("ENOSPC", "EDQUOT", "EACCES", "EPERM", "EROFS", "ENOTDIR", "EEXIST")
    if hasattr(errno, name)
)


def cache_folder() -> Path:
    """The cache folder: $COPYSPEC_CACHE, else `copyspec` in the user's cache folder. Raises OSError for the home of
    an unknown user."""
    if chosen := os.environ.get(CACHE_VARIABLE):
        return expanded(chosen, CACHE_VARIABLE)
    variable = "XDG_CACHE_HOME"
    return expanded(os.environ.get(variable) or "~/.cache", variable) / "copyspec"


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


@contextlib.contextmanager
def _explained(folder: Path) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        cause = _system_error(error)
        if cause is None or cause.errno not in _UNWRITABLE:
            raise
        raise OSError(
            f"the model cache cannot be written ({cause.strerror}: {cause.filename or folder}); make room, or set "
            f"{CACHE_VARIABLE} to a folder on another disk"
        ) from error


def _system_error(error: Exception) -> OSError | None:
    """The error of the operating system, None for another one. Safetensors and tokenizers raise their own types for a
    full disk."""
    if "No space left" in str(error) and not isinstance(error, (OSError, FileError)):
        return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    return error if isinstance(error, OSError) else None


def _make(folder: Path, make: Callable[[Path], None]) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    with locked(folder.with_name(f".{folder.name}.lock"), f"the model {folder.name!r}", wait=LOCK_SECONDS):
        if is_whole(folder):
            return
        if os.path.lexists(folder):
            if folder.is_symlink() or not folder.is_dir():
                kind = "link" if folder.is_symlink() else "file"
                raise FileExistsError(f"{os.fspath(folder)!r} is a {kind}, where a model is to be kept: remove it")
            logger.warning("%s is damaged or incomplete; creating it again", folder)
        _remove_leftovers(folder)
        scratch = Path(tempfile.mkdtemp(prefix=f"{folder.name}.", suffix=".new", dir=folder.parent))
        try:
            make(scratch)
            _share(scratch)
            _write_manifest(scratch)
            shutil.rmtree(folder, ignore_errors=True)
            scratch.rename(folder)
            flush_folder(folder.parent)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)


def _share(folder: Path) -> None:
    """Give a folder and its files the permissions of new ones: temporary folders and those of safetensors are for one
    user, and a cache may be of several."""
    mask = umask()
    with contextlib.suppress(OSError):  # a file system without permissions
        for path in (folder, *folder.iterdir()):
            path.chmod((0o777 if path.is_dir() else 0o666) & ~mask)


def made() -> list[tuple[Path, int]]:
    """The finished folders of the cache, including damaged ones, sorted by name, with their size in bytes."""
    folders = sorted(path.parent for path in (cache_folder() / "models").glob(f"*/{MANIFEST}"))
    return [(folder, _size(folder)) for folder in folders]


def _size(folder: Path) -> int:
    size = 0
    with contextlib.suppress(OSError):  # what cannot be read can still be listed, and removed
        for path in folder.iterdir():
            size += os.lstat(path).st_size
    return size


def remove(folder: Path) -> None:
    """Remove a folder of the cache, or the link to one; it is created again when needed. Raises OSError on failure."""
    with locked(folder.with_name(f".{folder.name}.lock"), f"the model {folder.name!r}", wait=LOCK_SECONDS):
        _remove_leftovers(folder)
        if folder.is_symlink():
            folder.unlink()
        else:
            shutil.rmtree(folder)


def is_whole(folder: Path) -> bool:
    """Whether every file of a folder still has the content that was written.

    A file whose size and timestamps equal those in the manifest is not hashed again: hashing a model takes as long as
    loading it.
    """
    try:
        noted = _noted(folder)
        return bool(noted) and all(_is_same(folder, name, *entry) for name, entry in noted.items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return False


def _noted(folder: Path) -> dict[str, list[object]]:
    with os.fdopen(open_regular(folder / MANIFEST), "rb") as file:
        content = file.read(MAX_MANIFEST + 1)
    if len(content) > MAX_MANIFEST:
        raise ValueError(f"{MANIFEST} has more than {MAX_MANIFEST >> 20} MB")
    noted: dict[str, list[object]] = json.loads(content)["files"]
    return noted


def _is_same(folder: Path, name: str, digest: object, *stamp: object) -> bool:
    if not is_file_name(name):
        return False
    status = os.lstat(folder / name)
    if not stat.S_ISREG(status.st_mode) or stamp[:1] != (status.st_size,):
        return False
    return list(stamp) == _stamp(status) or digest == _digest(folder / name)


def _write_manifest(folder: Path) -> None:
    noted = {}
    for path in sorted(folder.iterdir()):
        with path.open("rb") as file:
            os.fsync(file.fileno())
        noted[path.name] = [_digest(path), *_stamp(os.lstat(path))]
    with replacing(folder / MANIFEST) as manifest:
        manifest.write(json.dumps({"files": noted}, indent=1).encode())


def _stamp(status: os.stat_result) -> list[object]:
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns]


def _digest(path: Path) -> str:
    digest = hashlib.blake2b(digest_size=32)
    with os.fdopen(open_regular(path), "rb") as file:
        hash_into(digest, file)
    return digest.hexdigest()


def hash_into(digest: hashlib._Hash | hashlib.blake2b, file: BinaryIO) -> None:
    """Add the content of a file to a digest, in blocks: models have gigabytes."""
    while block := file.read(_BLOCK):
        digest.update(block)


def _remove_leftovers(folder: Path) -> None:
    """Remove the temporary folders of killed processes. The caller holds the folder's lock."""
    for leftover in folder.parent.glob(f"{folder.name}.*.new"):
        shutil.rmtree(leftover, ignore_errors=True)
