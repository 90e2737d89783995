"""What a run has found out so far, on disk: a run that was killed goes on where it was."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
from array import array
from collections.abc import Mapping
from pathlib import Path
from time import monotonic
from typing import BinaryIO

import numpy as np

from copyspec.engine.results import Change
from copyspec.filesystem import open_regular, try_lock
from copyspec.json_strings import JSONStrings

from ..documents import Refusal
from .correctors import Outcome

SUFFIX = ".copyspec-journal"
_VERSION = 1
_SYNC_SECONDS = 1.0
"""A record is with the system at once, which outlasts a killed process, and on the disk after this long, which
outlasts a power cut."""

_MOST_BYTES, _MOST_HEADER = 1 << 26, 1 << 20
"""Of a line: a segment of a text, even one that a model reads whole, has a thousandth of the first."""

_KEY_BYTES = 16
_HEAD_BYTES = 8  # of a key: what the index in memory holds


class JournalError(ValueError):
    """A journal that does not belong to this run."""


class Journal:
    """Outcomes by text, appended to a file as they come: one JSON object a line, the first names the run.

    In memory there are 16 bytes for each outcome that a former run left. A last line that was cut is forgotten.
    `is_done`: a former run had finished the file, and what stands there now is its output.
    """

    def __init__(self, path: Path, identity: Mapping[str, object], *, resume: bool | None) -> None:
        """`identity`: what the outcomes depend on, ready for JSON, with the fingerprint of the file as `input`.
        `resume`: go on with the journal that is there, if there is one; False begins it anew, and None does so only
        where nothing is lost by it.

        Raises JournalError for a journal of another run, for one that `resume` says nothing about and for a file that
        is none, BlockingIOError where another process writes it.
        """
        self.path = path
        self.identity = json.loads(json.dumps(identity))
        self._file = _opened(path)
        self._heads = self._places = np.zeros(0, dtype=np.uint64)
        self.is_done = False
        self.error: OSError | None = None
        """Why no more can be noted; the outcomes that came before are there."""
        try:
            _lock(self._file, path)
            if not self._goes_on(resume):
                self._file.truncate(0)
                self._append({"copyspec-journal": _VERSION, **self.identity})
        except BaseException:
            self._file.close()
            raise
        self._synced = monotonic()

    def __len__(self) -> int:
        """Outcomes that a former run left."""
        return len(self._heads)

    def get(self, text: str) -> Outcome | None:
        """What a former run made of `text`."""
        key = _key(text)
        head = np.uint64(int.from_bytes(key[:_HEAD_BYTES], "big"))
        at = int(np.searchsorted(self._heads, head))
        while at < len(self._heads) and self._heads[at] == head:
            self._file.seek(int(self._places[at]))
            found = _outcome(self._file.readline(_MOST_BYTES), key.hex())
            if found is not None:
                return found
            at += 1
        return None

    def add(self, text: str, outcome: Outcome) -> None:
        record: dict[str, object] = {"key": _key(text).hex(), "text": outcome.text}
        if outcome.refusal is not None:
            record["refusal"] = [outcome.refusal.reason, outcome.refusal.detail]
        if outcome.lost:
            record["lost"] = outcome.lost
        if outcome.changes:
            record["changes"] = " ".join(f"{each.start}:{each.end}:{each.margin!r}" for each in outcome.changes)
        if self.error is not None:
            return
        try:
            self._append(record)
            if monotonic() - self._synced > _SYNC_SECONDS:
                self.sync()
        except OSError as error:  # the disk is full: this file fails, and the others go on
            self.error = error

    def finish(self, output: str) -> None:
        """Notes the fingerprint of the whole output, which is about to take the place of the file."""
        self._append({"done": output})
        self.sync()

    def sync(self) -> None:
        os.fsync(self._file.fileno())
        self._synced = monotonic()

    def close(self) -> None:
        """Keeps the file: the run may be resumed."""
        if not self._file.closed:
            with contextlib.suppress(OSError):
                self.sync()
            with contextlib.suppress(OSError):  # a full disk: the line that it did not take is cut, and forgotten
                self._file.close()

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def remove(self) -> None:
        """The run is done."""
        with contextlib.suppress(OSError):
            self._file.close()
        with contextlib.suppress(FileNotFoundError):
            self.path.unlink()

    def _append(self, record: Mapping[str, object]) -> None:
        # One line in one write, at the end whatever was read before: the file is opened for appending.
        self._file.write(json.dumps(record, ensure_ascii=True, separators=(",", ":")).encode() + b"\n")
        self._file.flush()

    def _goes_on(self, resume: bool | None) -> bool:
        """Whether the journal that is there is this run's too; raises where it may neither be used nor be lost."""
        header = self._header()
        if header is None or resume is False:
            return False
        if resume:
            self._load(header)
            return True
        if self._file.readline(_MOST_BYTES).endswith(b"\n"):
            raise JournalError(
                f"{os.fspath(self.path)!r} is what an interrupted run left: resume=True goes on with it, "
                "resume=False begins anew"
            )
        return False

    def _load(self, header: Mapping[str, object]) -> None:
        """Reads what is there behind the first line."""
        heads, places = array("Q"), array("Q")
        place = self._file.tell()
        done = None
        while line := self._file.readline(_MOST_BYTES):
            try:
                record = _fields(line)
                head = int(str(record["key"])[: 2 * _HEAD_BYTES], 16) if "key" in record else None
                done = record.get("done", done)
                if not line.endswith(b"\n") or not 0 <= (head or 0) < 1 << 8 * _HEAD_BYTES:
                    break
            except ValueError:
                break  # cut by a crash; what follows, if anything, was never promised
            if head is not None:
                heads.append(head)
                places.append(place)
            place += len(line)
        self.is_done = done is not None and done == self.identity.get("input")
        self._check(header)
        self._file.seek(0, io.SEEK_END)
        if self._file.tell() != place:
            self._file.truncate(place)
        found = np.frombuffer(heads, dtype=np.uint64) if heads else np.zeros(0, dtype=np.uint64)
        order = np.argsort(found, kind="stable")
        self._heads = found[order]
        self._places = np.frombuffer(places, dtype=np.uint64)[order] if places else found

    def _header(self) -> dict[str, object] | None:
        """The first line; None where there is nothing yet, not even all of it."""
        self._file.seek(0)
        first = self._file.readline(_MOST_HEADER)
        if not first.endswith(b"\n"):
            if first and not b'{"copyspec-journal":'.startswith(first[:20]):
                raise self._no_journal()
            return None
        try:
            header = dict(json.loads(first))
            version = header.pop("copyspec-journal")
        except (ValueError, KeyError, TypeError, RecursionError):
            raise self._no_journal() from None
        if version != _VERSION:
            raise JournalError(f"{os.fspath(self.path)!r} was written by another version of copyspec: delete it")
        return header

    def _check(self, header: Mapping[str, object]) -> None:
        for name in dict.fromkeys([*self.identity, *header]):
            if header.get(name) != self.identity.get(name) and not (self.is_done and name == "input"):
                raise JournalError(
                    f"{os.fspath(self.path)!r} belongs to another run: {name} was {header.get(name)!r} and is now "
                    f"{self.identity.get(name)!r}; run it as before, or begin anew with resume=False"
                )

    def _no_journal(self) -> JournalError:
        return JournalError(f"{os.fspath(self.path)!r} is no journal, and a journal must stand there: move it away")


def fingerprint(path: Path) -> str:
    """A hash of a file's bytes."""
    digest = hashlib.blake2b(digest_size=16)
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def fingerprint_of(data: bytes) -> str:
    """The same of bytes in memory."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def _key(text: str) -> bytes:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=_KEY_BYTES).digest()


def _outcome(line: bytes, key: str) -> Outcome | None:
    """What a line holds for this key; None where it is another's, or no outcome: the text is corrected anew then."""
    try:
        record = _fields(line)
    except ValueError:
        return None
    text, lost, refusal = record.get("text"), record.get("lost", ""), record.get("refusal")
    if record.get("key") != key or not isinstance(lost, str) or isinstance(text, list):
        return None
    try:
        changes = _changes(record.get("changes"))
    except ValueError:
        return None
    if isinstance(refusal, list):
        return Outcome(text, Refusal(*refusal), lost=lost, changes=changes)
    return Outcome(text, lost=lost, changes=changes) if text is not None else None


def _changes(written: str | list[str] | None) -> list[Change] | None:
    """Changes as `add` writes them; None where there are none. Raises ValueError for what is none."""
    if not isinstance(written, str):
        return None
    found = []
    for each in written.split():
        start, end, margin = each.split(":")
        found.append(Change(int(start), int(end), float(margin)))
    return found


def _fields(line: bytes) -> dict[str, str | list[str] | None]:
    """A record: its fields are strings, one may be null and one a pair. Raises ValueError for any other line."""
    text, found = JSONStrings(line.decode("ascii")), dict[str, str | list[str] | None]()
    text.expect("{")
    while not text.passes("}"):
        if found:
            text.expect(",")
        name = text.string()
        text.expect(":")
        if text.passes("null"):
            found[name] = None
        elif text.passes("["):
            first = text.string()
            text.expect(",")
            found[name] = [first, text.string()]
            text.expect("]")
        else:
            found[name] = text.string()
    text.passes("\n")
    text.end()
    return found


def _opened(path: Path) -> BinaryIO:
    """The journal's file, open as long as the journal is. A link or a pipe in its place is not opened."""
    handle = open_regular(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
    if os.fstat(handle).st_nlink > 1:
        os.close(handle)
        raise JournalError(f"{os.fspath(path)!r} is a second name of another file, no journal: move it away")
    return os.fdopen(handle, "ab+")


def _lock(file: BinaryIO, path: Path) -> None:
    """One process at a time. The system lets go of the lock when a process ends, however it ends."""
    if not try_lock(file.fileno()):
        raise BlockingIOError(f"another process is working on this file: it holds {os.fspath(path)!r}")
