"""Hashes whole files, once for as long as they do not change: a model of some gigabytes takes seconds."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from pathlib import Path

from copyspec.common.filesystem import locked, open_input, open_regular, replacing
from copyspec.models.model_cache import cache_folder, hash_into

_SETTLED = 2.0
"""Seconds after which a further change gets another time: file systems count time in steps of up to so many."""

_MAX_NOTE = 1 << 12  # bytes; a note has some 200


def content_digest(file: Path) -> str:
    """A hash of a file's content, which is read again unless the cache holds a note of this very file, unchanged since.

    A file that was copied, restored or replaced is another one for the system, whatever its size and modification time
    are set to. Raises OSError if the file cannot be read.
    """
    place = os.path.realpath(file)
    note = cache_folder() / "digests" / f"{hashlib.sha256(os.fsencode(place)).hexdigest()[:32]}.json"
    with open_input(file) as opened:
        state = _state(opened.fileno())
        if (noted := _noted(note)) is not None and noted[:-1] == state:
            return str(noted[-1])
        digest = hashlib.blake2b(digest_size=32)
        hash_into(digest, opened)
        unchanged = _state(opened.fileno()) == state
    if unchanged and os.name != "nt" and abs(time.time() - state[-1] / 1e9) > _SETTLED:
        _write(note, [*state, digest.hexdigest()])
    return digest.hexdigest()


def _state(handle: int) -> list[int]:
    """What the system says of an open file. Programs can set every time but the last, which Windows does not have."""
    status = os.fstat(handle)
    return [status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns]


def _noted(note: Path) -> list[object] | None:
    with contextlib.suppress(OSError, ValueError, RecursionError), os.fdopen(open_regular(note), "rb") as file:
        noted = json.loads(file.read(_MAX_NOTE))
        return noted if isinstance(noted, list) and len(noted) == 6 else None
    return None


def _write(note: Path, noted: list[object]) -> None:
    with contextlib.suppress(OSError):  # a read-only cache, or another process that writes the same
        note.parent.mkdir(parents=True, exist_ok=True)
        with locked(note.with_suffix(".lock"), "the note"), replacing(note, lasts=False) as file:
            file.write(json.dumps(noted).encode())
