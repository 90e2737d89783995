"""Keeps the outcomes of a run on disk, so that a run that was killed can be resumed."""

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

from copyspec.common.filesystem import open_regular, try_lock
from copyspec.common.json_strings import JSONStrings
from copyspec.engine.results import Change

from ..documents import Refusal
from .correctors import Outcome

SUFFIX = ".copyspec-journal"
_VERSION = 2
_SYNC_SECONDS = 1.0
"""Maximum time until a record is synced to the disk, where it survives a power failure. It is written to the operating
system at once, where it survives a killed process."""

_MAX_BYTES, _MAX_HEADER = 1 << 26, 1 << 20
"""Maximum bytes of a line, and of the first line. A segment, even one that a model reads whole, has a thousandth."""

_MAX_VALUE = 1000
"""Maximum characters of a value in the first line. Longer ones, such as a list of words, are stored as a hash."""

_HASHED = {"input": "the file has changed since", "weights": "the model's weights have changed since"}
"""What an error says of values that are hashes, which tell people nothing."""

_KEY_BYTES = 16
_HEAD_BYTES = 8  # leading bytes of a key, which the index in memory holds


class JournalError(ValueError):
    """A journal that does not belong to this run."""


class Journal:
    """Outcomes by text, appended to a file as JSON lines; the first line identifies the run.

    Each outcome of an earlier run takes 16 bytes of memory. An incomplete last line is ignored. `is_done`: an earlier
    run finished the file, and what is in its place now is the output of that run.
    """

    def __init__(self, path: Path, identity: Mapping[str, object], *, resume: bool | None) -> None:
        """`identity`: everything the outcomes depend on, by the names that errors give it, with the fingerprint of the
        file as `input`. Values that JSON cannot hold are compared by their repr.

        `resume`: True continues an existing journal, False starts anew, and None does so only if no outcome is lost by
        it.

        Raises JournalError for the journal of another run, an existing one without `resume`, and a file that is not a
        journal; BlockingIOError if another process is writing it.
        """
        self.path = path
        self.identity = _shortened(json.loads(json.dumps(identity, default=repr)))
        self._file = _opened(path)
        self._heads = self._places = np.zeros(0, dtype=np.uint64)
        self.is_done = False
        self.error: OSError | None = None
        """Why nothing more can be written; earlier outcomes are kept."""
        try:
            _lock(self._file, path)
            if not self._goes_on(resume):
                self._file.truncate(0)
                self._write(self._first_line)
        except BaseException:
            self._file.close()
            raise
        self._synced = monotonic()

    def __len__(self) -> int:
        """Number of outcomes left by an earlier run."""
        return len(self._heads)

    def get(self, text: str) -> Outcome | None:
        """The outcome of an earlier run for `text`."""
        if not len(self._heads):
            return None
        key = _key(text)
        head = np.uint64(int.from_bytes(key[:_HEAD_BYTES], "big"))
        at = int(np.searchsorted(self._heads, head))
        while at < len(self._heads) and self._heads[at] == head:
            self._file.seek(int(self._places[at]))
            outcome = _outcome(self._file.readline(_MAX_BYTES), key.hex())
            if outcome is not None:
                return outcome
            at += 1
        return None

    def add(self, text: str, outcome: Outcome) -> None:
        record: dict[str, object] = {"key": _key(text).hex(), "text": outcome.text}
        if outcome.refusal is not None:
            record["refusal"] = [outcome.refusal.reason, outcome.refusal.detail]
        if outcome.lost:
            record["lost"] = outcome.lost
        if outcome.changes:
            record["changes"] = " ".join(f"{change.start}:{change.end}:{change.margin!r}" for change in outcome.changes)
        if self.error is not None:
            return
        try:
            self._append(record)
            if monotonic() - self._synced > _SYNC_SECONDS:
                self.sync()
        except OSError as error:  # the disk is full: this file fails, and the others continue
            self.error = error

    def finish(self, output: str) -> None:
        """Record the fingerprint of the whole output, which is about to replace the file."""
        self._append({"done": output})
        self.sync()

    def sync(self) -> None:
        os.fsync(self._file.fileno())
        self._synced = monotonic()

    def close(self) -> None:
        """Close the file but keep it, so that the run can be resumed."""
        if not self._file.closed:
            with contextlib.suppress(OSError):
                self.sync()
            with contextlib.suppress(OSError):  # on a full disk: the incomplete line will be ignored
                self._file.close()

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _append(self, record: Mapping[str, object]) -> None:
        self._write(_line(record))

    def _write(self, line: bytes) -> None:
        # One write per line. The file is opened for appending, so it goes to the end wherever the last read was.
        self._file.write(line)
        self._file.flush()

    @property
    def _first_line(self) -> bytes:
        return _line({"copyspec-journal": _VERSION, **self.identity})

    def _goes_on(self, resume: bool | None) -> bool:
        """Whether the existing journal is continued; raises if it may neither be used nor be lost."""
        header = self._header()
        if header is None or resume is False:
            return False
        if resume:
            self._load(header)
            return True
        if self._file.readline(_MAX_BYTES).endswith(b"\n"):
            raise JournalError(
                f"{os.fspath(self.path)!r} was left by an interrupted run: resume=True continues it, "
                "resume=False starts over"
            )
        return False

    def _load(self, header: Mapping[str, object]) -> None:
        """Read the records after the first line."""
        heads, places = array("Q"), array("Q")
        place = self._file.tell()
        done = None
        while line := self._file.readline(_MAX_BYTES):
            try:
                record = _fields(line)
                head = int(str(record["key"])[: 2 * _HEAD_BYTES], 16) if "key" in record else None
                done = record.get("done", done)
                if not line.endswith(b"\n") or not 0 <= (head or 0) < 1 << 8 * _HEAD_BYTES:
                    break
            except ValueError:
                break  # cut by a crash; nothing after it was guaranteed
            if head is not None:
                heads.append(head)
                places.append(place)
            place += len(line)
        self.is_done = done is not None and done == self.identity.get("input")
        self._check(header)
        self._file.seek(0, io.SEEK_END)
        if self._file.tell() != place:
            self._file.truncate(place)
        numbers = np.frombuffer(heads, dtype=np.uint64) if heads else np.zeros(0, dtype=np.uint64)
        order = np.argsort(numbers, kind="stable")
        self._heads = numbers[order]
        self._places = np.frombuffer(places, dtype=np.uint64)[order] if places else numbers

    def _header(self) -> dict[str, object] | None:
        """The first line; None if the file is empty or holds only the beginning of that line."""
        self._file.seek(0)
        first = self._file.readline(_MAX_HEADER)
        if not first.endswith(b"\n"):
            if not (self._first_line.startswith(first) or _is_cut(first)):
                raise self._no_journal()
            return None
        try:
            header = dict(json.loads(first))
            version = header.pop("copyspec-journal")
        except (ValueError, KeyError, TypeError, RecursionError):
            raise self._no_journal() from None
        if version != _VERSION:
            raise JournalError(f"{os.fspath(self.path)!r} was written by another version of copyspec: delete it")
        return _shortened(header)

    def _check(self, header: Mapping[str, object]) -> None:
        now = self.identity
        changed = [
            name
            for name in dict.fromkeys([*now, *header])
            if header.get(name) != now.get(name) and not (self.is_done and name == "input")
        ]
        if "model" in changed:
            changed = ["model"]  # its weights, its instruction and its limits differ with it
        if changed:
            told = (
                _HASHED.get(name) or f"{name} was {header.get(name)!r} and is now {now.get(name)!r}" for name in changed
            )
            raise JournalError(
                f"{os.fspath(self.path)!r} belongs to another run: {', '.join(told)}; undo that, or start over with "
                "resume=False"
            )

    def _no_journal(self) -> JournalError:
        return JournalError(f"{os.fspath(self.path)!r} is not a journal, but must be one: move it away")


def fingerprint(path: Path) -> str:
    """Hash of a file's bytes."""
    digest = hashlib.blake2b(digest_size=16)
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def fingerprint_of(data: bytes) -> str:
    """The same hash of bytes in memory."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def _shortened(identity: Mapping[str, object]) -> dict[str, object]:
    """The identity with long values replaced by their beginning and hash."""
    made = dict(identity)
    for name, value in identity.items():
        if len(text := value if isinstance(value, str) else json.dumps(value)) > _MAX_VALUE:
            made[name] = f"{text[:80]}... ({len(text)} characters, hash {_key(text).hex()})"
    return made


def _is_cut(first: bytes) -> bool:
    """Whether this is the cut-off first line of a journal, of a run with any options."""
    if len(first) >= _MAX_HEADER or not first.startswith(b'{"copyspec-journal":%d,"' % _VERSION):
        return False
    try:
        json.JSONDecoder().raw_decode(first.decode("ascii"))
    except (ValueError, RecursionError):
        return True
    return False


def _line(record: Mapping[str, object]) -> bytes:
    return json.dumps(record, ensure_ascii=True, separators=(",", ":")).encode() + b"\n"


def _key(text: str) -> bytes:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=_KEY_BYTES).digest()


def _outcome(line: bytes, key: str) -> Outcome | None:
    """The outcome in a line for this key; None for another key or an invalid line: the text is then corrected again."""
    try:
        record = _fields(line)
    except ValueError:
        return None
    text, lost, refusal = record.get("text"), record.get("lost", ""), record.get("refusal")
    if record.get("key") != key or not isinstance(lost, str) or isinstance(text, list):
        return None
    if any(map(str.isspace, lost)):
        return None
    try:
        changes = _changes(record.get("changes"))
    except ValueError:
        return None
    if isinstance(refusal, list):
        reason, detail = refusal
        return Outcome(text, Refusal(reason, detail), lost=lost, changes=changes)
    return Outcome(text, lost=lost, changes=changes) if text is not None else None


def _changes(written: str | list[str] | None) -> list[Change] | None:
    """Parse changes as `add` writes them; None if there are none. Raises ValueError for invalid ones."""
    if not isinstance(written, str):
        return None
    changes = []
    for stretch in written.split():
        start, end, margin = stretch.split(":")
        if not 0 <= int(start) <= int(end):
            raise ValueError(f"no stretch of a text: {stretch}")
        changes.append(Change(int(start), int(end), float(margin)))
    return changes


def _fields(line: bytes) -> dict[str, str | list[str] | None]:
    """Parse a record, whose fields are strings, null, or a pair of strings. Raises ValueError for any other line."""
    text, fields = JSONStrings(line.decode("ascii")), dict[str, str | list[str] | None]()
    text.expect("{")
    while not text.passes("}"):
        if fields:
            text.expect(",")
        name = text.string()
        text.expect(":")
        if text.passes("null"):
            fields[name] = None
        elif text.passes("["):
            first = text.string()
            text.expect(",")
            fields[name] = [first, text.string()]
            text.expect("]")
        else:
            fields[name] = text.string()
    text.passes("\n")
    text.end()
    return fields


def _opened(path: Path) -> BinaryIO:
    """Open the journal's file. A link or a pipe at its path is refused."""
    handle = open_regular(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
    if os.fstat(handle).st_nlink > 1:
        os.close(handle)
        raise JournalError(f"{os.fspath(path)!r} is a hard link to another file, not a journal: move it away")
    if hasattr(os, "fchmod") and not os.fstat(handle).st_size:  # a new one; the file may be for its owner only
        with contextlib.suppress(OSError):  # a file system without permissions
            os.fchmod(handle, 0o600)
    return os.fdopen(handle, "ab+")


def _lock(file: BinaryIO, path: Path) -> None:
    """Lock out other processes. The operating system releases the lock when the process ends, however it ends."""
    if not try_lock(file.fileno()):
        raise BlockingIOError(f"another process is working on this file: it holds {os.fspath(path)!r}")
