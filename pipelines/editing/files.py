"""Runs files through a runner: each is read part by part, corrected, and written whole or not at all."""

from __future__ import annotations

import hashlib
import os
import sys
from bisect import bisect_left
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import BinaryIO, Protocol, cast

from copyspec.client.sending import ServerError
from copyspec.common.checks import check_flag, check_type
from copyspec.common.filesystem import open_input
from copyspec.common.lockless import cached_property

from ..documents import Format, Part
from ..formats import format_of
from ..guards.document_words import beginning
from ..options import FormatOptions
from .atomic_file import AtomicFile, check_suffix, remove_leftovers, target_of
from .file_state import ChangedFileError, FileState, sibling_path
from .journal import SUFFIX, Journal, fingerprint
from .linked_headings import LinkedHeadings
from .runner import FAILED, Done, Work
from .selection import Marks, Selection, selected
from .summary import Summary

STDIN = "-"


@dataclass(frozen=True, slots=True)
class FileOptions:
    """Where corrected files are written."""

    format: str | None = None  # None: chosen by each file's suffix
    format_options: FormatOptions = field(default_factory=FormatOptions)
    in_place: bool = False
    backup: str | None = None  # suffix under which the old file is kept
    output: str | os.PathLike[str] | None = None  # another place to write to, for one file
    resume: bool | None = None
    """Continue an interrupted run from the journals beside the outputs. False starts anew; None refuses files for which
    an interrupted run has left outcomes."""

    def __post_init__(self) -> None:
        check_flag("in_place", self.in_place)
        if self.resume is not None:
            check_flag("resume", self.resume)
        if self.in_place and self.output is not None:
            raise ValueError(
                f"in_place=True and output={os.fspath(self.output)!r} are two places to write to; give one"
            )
        if self.backup is not None and not self.in_place:
            raise ValueError(f"backup={self.backup!r} needs files to be replaced; give in_place=True too")
        check_suffix(self.backup)
        if self.resume and not self.is_writing:
            raise ValueError("resume=True continues an output; give in_place=True or output=... as in the earlier run")

    @property
    def is_writing(self) -> bool:
        return self.in_place or self.output is not None


@dataclass(slots=True)
class FileReport:
    """The result for one file."""

    path: str
    summary: Summary  # of this file alone
    error: Exception | None = None  # why it could not be corrected; the file is then unchanged
    was_done: bool = False  # finished by an earlier run
    backup: str | None = None  # path of the old file; None if it was not replaced or no backup was requested
    digest: str | None = None
    """`fingerprint` of the bytes that were read; None if they were not read to the end."""

    @property
    def is_changed(self) -> bool:
        """Whether the correction differs from the file."""
        return self.summary.files_changed > 0


class Listener(Protocol):
    """Is told of every part of every file, in order."""

    def part(self, path: str, form: Format, done: Done[FileJob]) -> None: ...

    def end(self, report: FileReport) -> None:
        """The file is finished, and written if that was requested."""


class FileRunner(Protocol):
    """The interface of `Runner` that files need."""

    @property
    def identity(self) -> Mapping[str, object]:
        """Everything the edits depend on, besides the parts. A journal with another identity is not resumed."""

    def run(self, works: Iterable[Work[FileJob]]) -> Iterator[Done[FileJob]]:
        """Yield the results of all works, in order."""


def correct_files(
    runner: FileRunner,
    paths: Iterable[str | os.PathLike[str]],
    options: FileOptions,
    *,
    listeners: Sequence[Listener] = (),
    selections: Sequence[Selection] = (),
) -> Generator[FileReport, None, None]:
    """Correct files (`-`: standard input) and yield a report for each. An error in one file does not stop the others.

    `selections` restrict what is corrected, one after the other, in addition to marks in the files themselves.

    Closing the iterator leaves unfinished files as they were, and keeps all journals.
    """
    check_type(not isinstance(paths, (str, os.PathLike)), "paths", paths, "a list of paths")
    listed = [os.fspath(path) for path in paths]
    if options.output is not None and len(listed) != 1:
        raise ValueError(f"output={os.fspath(options.output)!r} is for one file, got {len(listed)}")
    if options.in_place and STDIN in listed:
        raise ValueError("in_place=True cannot write to standard input; leave '-' out")
    if options.resume and STDIN in listed:
        raise ValueError("resume=True needs a file that can be read again; '-' is standard input")
    return _FileRun(runner, listed, options, listeners, (Marks(), LinkedHeadings(), *selections)).run()


def journal_path(path: str | os.PathLike[str]) -> Path:
    """Path of the journal of a file that is corrected in place."""
    return sibling_path(target_of(Path(path)), SUFFIX)


class FileJob:
    """The state of one file. Its parts are read ahead of those being written, in the same thread."""

    def __init__(self, path: str, options: FileOptions) -> None:
        self.path = path
        self.report = FileReport(path, Summary(files=1))
        self.journal: Journal | None = None
        self._options = options
        self._journal_path: Path | None = None
        self._form: Format | None = None
        self._output: AtomicFile | None = None
        self._target: Path | None = None
        self._digest = hashlib.blake2b(digest_size=16)
        self._read = hashlib.blake2b(digest_size=16)  # hash of the bytes that the parts were made from
        self._standing: FileState | None = None  # what was at the output's path at the beginning

    @property
    def form(self) -> Format:
        assert self._form is not None, "a part came before the file was opened"
        return self._form

    def target(self) -> Path | None:
        """The file to write, resolved once: resolving it for every part takes longer than the part itself."""
        if self._target is None and self._options.is_writing:
            output = self._options.output
            self._target = target_of(Path(self.path if output is None else output))
        return self._target

    def works(self) -> Iterator[Work[FileJob]]:
        """Yield the parts of the file, and always a final work without a part."""
        try:
            if self.report.error is None and not self.report.was_done:
                with self._opened() as stream:
                    parts = self.form.read(cast(BinaryIO, _Hashed(stream, self._read.update)))
                    first = beginning(parts)
                    for part in chain(first, parts):
                        if self.report.error is not None:
                            break
                        yield Work(self, part, document=first)
        except (OSError, ValueError) as error:
            self.report.error = self.report.error or error
        yield Work(self)

    def _opened(self) -> AbstractContextManager[BinaryIO]:
        if self.path == STDIN:
            return nullcontext(sys.stdin.buffer)  # left open at the end
        return open_input(self.path)

    def open(self) -> None:
        """Detect the format, and check that the output can be written."""
        try:
            self._form = format_of(self.path, self._options.format, options=self._options.format_options)
            self._check_target()
        except (OSError, ValueError) as error:
            self.report.error = error

    @property
    def has_journal(self) -> bool:
        """Whether an earlier run left a journal."""
        return self._journal_path is not None and os.path.lexists(self._journal_path)

    def begin_journal(self, identity: Callable[[], Mapping[str, object]]) -> None:
        """Open the journal if outputs are written. `identity` is called at most once."""
        if self._journal_path is None or self.journal is not None or self.report.error is not None:
            return
        of_run = identity()  # loads the model, whose errors are not about this file
        try:
            of_file = {**of_run, "input": fingerprint(Path(self.path))}
            self.journal = Journal(self._journal_path, of_file, resume=self._options.resume)
            if (target := self.target()) is not None:
                remove_leftovers(target, self._output)  # the journal's lock tells that no other run is at work
            self.report.was_done = self.journal.is_done and self._options.in_place
        except (OSError, ValueError) as error:
            self.report.error = error

    def take(self, done: Done[FileJob], part: Part) -> None:
        """Write a finished part."""
        if self.report.error is not None:
            return
        try:
            data = self.form.write(part, done.edits)
            if (target := self.target()) is not None:
                self._opened_output(target).write(data)
                self._digest.update(data)
            if self.journal is not None and self.journal.error is not None:
                raise self.journal.error
        except (OSError, ValueError) as error:
            self.report.error = error
            return
        _count(self.report.summary, done)

    def finish(self) -> None:
        """Move the output into place; on an error leave everything as it was."""
        summary = self.report.summary
        if self.report.error is None and not self.report.was_done:
            summary.files_changed = int(summary.edits > 0)
            self.report.digest = self._read.hexdigest()
            try:
                self._put_in_place()
            except OSError as error:
                self.report.error = error
        if self.report.error is not None:
            self.report.summary = Summary(files=1, files_failed=1)
        self.close()

    def close(self) -> None:
        """Close the file and keep its journal."""
        if self._output is not None:
            self._output.discard()
        if self.journal is not None:
            self.journal.close()

    def _put_in_place(self) -> None:
        target = self.target()
        if target is None:
            return
        output = self._opened_output(target)  # for an empty file, it is only opened here
        if self.journal is not None:
            self.journal.finish(self._digest.hexdigest())
        if not (self._options.in_place and not self.report.is_changed):
            output.made_from = self._read.hexdigest() if self._options.in_place else None
            output.commit()
            self.report.backup = None if output.kept is None else os.fspath(output.kept)

    def _opened_output(self, target: Path) -> AtomicFile:
        if self._output is None:
            self._output = AtomicFile(target, backup=self._options.backup, standing=self._standing)
        return self._output

    def _check_target(self) -> None:
        target = self.target()
        if target is None:
            return
        if self._options.in_place:
            os.stat(self.path)  # a missing file is named, rather than a missing folder in which nothing can be made
        AtomicFile(target).discard()  # a folder without write permission is found before the model is loaded
        if self._options.backup is not None:
            FileState.of(target.with_name(target.name + self._options.backup))  # raises for a name that is too long
        self._standing = FileState.of(target)
        if self.path == STDIN or not os.path.isfile(self.path):  # stdin and pipes are read once
            return
        self._journal_path = sibling_path(target, SUFFIX)


class _FileRun:
    def __init__(
        self,
        runner: FileRunner,
        paths: Sequence[str],
        options: FileOptions,
        listeners: Sequence[Listener],
        selections: Sequence[Selection],
    ) -> None:
        self._selections = selections
        self._runner = runner
        self._paths = paths
        self._options = options
        self._listeners = listeners
        self._journals: list[Path] = []  # of finished files; a resumed run needs them to skip these
        self._open: list[FileJob] = []

    def run(self) -> Generator[FileReport, None, None]:
        try:
            for done in self._runner.run(self._works()):
                job = done.owner
                if done.part is not None:
                    self._take(job, done, done.part)
                    continue
                job.finish()
                self._open.remove(job)
                # Keep the journal if writing failed (on a full disk, for example): its outcomes are still valid.
                error = job.report.error
                if job.journal is not None and (not isinstance(error, OSError) or isinstance(error, ChangedFileError)):
                    self._journals.append(job.journal.path)
                for listener in self._listeners:
                    listener.end(job.report)
                yield job.report
        finally:
            for job in self._open:
                job.close()
        for journal in self._journals:
            journal.unlink(missing_ok=True)

    def _take(self, job: FileJob, done: Done[FileJob], part: Part) -> None:
        if failed := next((refusal for refusal in done.refusals if refusal.reason == FAILED), None):
            job.report.error = job.report.error or ServerError(failed.detail)
        if job.report.error is None:
            for selection in self._selections:
                done = replace(done, edits=selection.edits(job.path, part, done.edits))
        job.take(done, part)
        if job.report.error is None:
            for listener in self._listeners:
                listener.part(job.path, job.form, done)

    def _works(self) -> Iterator[Work[FileJob]]:
        for path in self._paths:
            job = FileJob(path, self._options)
            self._open.append(job)
            job.open()
            if job.has_journal:
                job.begin_journal(lambda: self._identity)
            for work in job.works():
                part = work.part
                if part is not None:
                    part = selected(self._selections, job.path, part)
                if part is not None and part.segments:
                    job.begin_journal(lambda: self._identity)
                    if job.report.error is not None:
                        continue
                yield replace(work, part=part, journal=job.journal, whole=work.part)

    @cached_property
    def _identity(self) -> Mapping[str, object]:
        """Everything that outcomes and outputs depend on, besides the file."""
        format_options = asdict(self._options.format_options)
        return {
            **self._runner.identity,
            **{f"format_options.{name}": value for name, value in format_options.items()},
            "format": self._options.format,
            "selections": [
                getattr(selection, "identity", type(selection).__qualname__) for selection in self._selections
            ],
        }


class _Hashed:
    """A stream that passes what is read on to a hash."""

    def __init__(self, stream: BinaryIO, tell: Callable[[bytes], object]) -> None:
        self._stream, self._tell = stream, tell

    def read(self, size: int = -1) -> bytes:
        data = self._stream.read(size)
        self._tell(data)
        return data

    def readline(self, size: int = -1) -> bytes:
        data = self._stream.readline(size)
        self._tell(data)
        return data


def _count(summary: Summary, done: Done[FileJob]) -> None:
    summary.segments += len(done.pieces)
    summary.add_refusals(done.segment_refusals)
    summary.edits += len(done.edits)
    starts = [edit.start for edit in done.edits]
    for piece in done.pieces:
        first = bisect_left(starts, piece.segment.start)
        summary.changed += first < len(starts) and done.edits[first].end <= piece.segment.end
        summary.resumed += piece.was_known
        summary.dropped.update(refusal.reason for refusal in piece.checked.dropped)
        if piece.result is not None:
            summary.add_result(piece.result)
