"""Applies an edit to the files of a folder: all of them are written, or none."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from copyspec.common.filesystem import locked, read_input, replacing

from ..documents import FormatError, Refusal
from ..editing.atomic_file import AtomicFile, backed_up, remove_leftovers
from ..editing.file_state import ChangedFileError
from ..editing.instructed import decoded_text
from ..editing.journal import JournalError, fingerprint, fingerprint_of
from ..edits.lines import LINE_END
from .pipeline import MAX_CHARS, Applied, ApplyPipeline, names_file
from .reading import EditError, FileEdit, read_edits

JOURNAL = ".copyspec-apply-journal"
"""In the folder of an edit while its files are replaced: what is left of a killed run is finished from it."""


class NoFileError(EditError):
    """An edit for a file that is not there, or is none of those given."""


@dataclass(frozen=True, slots=True)
class FileChange:
    """A file before and after an edit; None where there is no file."""

    path: Path
    before: bytes | None
    after: bytes | None


@dataclass(frozen=True, slots=True)
class FileApplied:
    """What an edit makes of one file."""

    path: Path
    applied: Applied
    data: bytes | None  # as it was read

    @property
    def change(self) -> FileChange:
        after = None if self.applied.deletes else self.applied.text.encode()
        return FileChange(self.path, self.data, after)

    @property
    def is_changed(self) -> bool:
        return self.applied.changed or self.applied.creates or self.applied.deletes


def apply_to_files(
    pipeline: ApplyPipeline, edit: str, root: Path, paths: Sequence[Path] = (), instruction: str = ""
) -> Iterator[FileApplied]:
    """Yield what an edit makes of each of its files; nothing is written. `paths`: the files that it may change; none:
    those in `root`, by which names in the edit are taken.

    Raises EditError for an edit that cannot be read, or names no file where there are several.
    """
    if edit.strip() or not instruction.strip():
        edits = read_edits(edit, pipeline.options.form)
    else:
        edits = [FileEdit(None, "instruction")] * len(paths)
    if len(edits) > 1 and not all(file_edit.path for file_edit in edits) and edit.strip():
        raise EditError("a part of the edit names no file, and others do: name the file above each part")
    for number, file_edit in enumerate(edits):
        only = paths[number : number + 1] if file_edit.form == "instruction" else paths
        yield _apply(pipeline, file_edit, _target(file_edit, root, only), instruction)


def _target(edit: FileEdit, root: Path, paths: Sequence[Path]) -> Path:
    """The file that an edit is for. Raises EditError for one that the edit may not change."""
    if edit.path is None:
        if len(paths) != 1:
            raise EditError(f"the edit names no file, and {len(paths) or 'no'} files are given: name one")
        return paths[0]
    named = [path for path in paths if names_file(edit.path, os.path.abspath(path))]
    if len(named) == 1:
        return named[0]
    if paths:
        which = "several" if named else "none"
        raise NoFileError(f"the edit is for {edit.path!r}, which is {which} of the given files")
    return check_inside(root, edit.path)


def check_inside(root: Path, name: str) -> Path:
    """The path of a file in a folder. Raises EditError for one that is not in it, links followed."""
    path = root / name
    if not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(root)):
        raise EditError(f"the edit is for {name!r}, which lies outside of {os.fspath(root)!r}")
    return path


def _apply(pipeline: ApplyPipeline, edit: FileEdit, path: Path, instruction: str) -> FileApplied:
    where = os.fspath(path)
    if os.path.lexists(path):
        if path.is_file() and path.stat().st_size > 4 * MAX_CHARS:
            raise FormatError(f"{where!r} has {path.stat().st_size:,} bytes: edit it by other means")
        data = read_input(path)
        try:
            text = decoded_text(data)
        except FormatError as error:
            raise FormatError(f"{where!r}: {error}") from error
        if edit.creates and text:
            made = pipeline("", edit, instruction, path=where)
            exists = Refusal("exists", "the edit makes this file, which is there already")
            refusal = None if made.text == LINE_END.sub("\n", text.removeprefix("\ufeff")) else exists
            return FileApplied(path, Applied(text, text, refusal, path=edit.path, form=edit.form, is_exact=True), data)
        return FileApplied(path, pipeline(text, edit, instruction, path=where), data)
    is_shown = edit.form == "whole" or (edit.path is not None and not any(hunk.old for hunk in edit.hunks))
    if edit.deletes or not (edit.creates or is_shown) or edit.form == "instruction":
        raise NoFileError(f"there is no file {where!r}")
    return FileApplied(path, pipeline("", replace(edit, creates=True), instruction, path=where), None)


def write_files(changes: Sequence[FileChange], root: Path, backup: str | None = None) -> list[Path]:
    """Write changed files: all of them, or none. Returns the paths of the backups.

    Raises OSError if a file cannot be replaced or has been changed since it was read: the others then stay or get back
    what they held. A killed run is finished by `finish_writing`. Meanwhile readers may see new files beside old ones.
    """
    journal = root / JOURNAL if len(changes) > 1 else None
    changes = sorted(changes, key=lambda change: change.after is None)  # what is deleted comes back without its owner
    with contextlib.ExitStack() as stack:
        if journal is not None:
            stack.enter_context(locked(root / f"{JOURNAL}.lock", f"{os.fspath(root)!r}"))
            if journal.exists():
                raise JournalError(f"{os.fspath(journal)!r} was left by an interrupted run: finish that first")
        staged = [_staged(change, backup, stack) for change in changes]
        if journal is not None:
            with replacing(journal, mode=0o600) as file:
                file.write(json.dumps([_entry(*pair, root) for pair in zip(changes, staged, strict=True)]).encode())
            stack.callback(journal.unlink)
        done, backups = list[FileChange](), list[Path]()
        try:
            for change, new in zip(changes, staged, strict=True):
                backups += _commit(change, new, backup)
                done.append(change)
        except BaseException:
            for change in reversed(done):
                _restore(change)
            raise
    return backups


def finish_writing(root: Path) -> int:
    """Finish a run in a folder that was killed while it replaced files. Returns the number of files that it has written
    now. Raises ChangedFileError, and writes nothing, if one of them is neither as it was nor as it shall be."""
    journal = root / JOURNAL
    if not journal.exists():
        return 0
    with locked(root / f"{JOURNAL}.lock", f"{os.fspath(root)!r}"):
        try:
            read = json.loads(journal.read_bytes())
            entries = [(root / path, new and root / new, old, digest) for path, new, old, digest in read]
        except (ValueError, TypeError):
            raise JournalError(f"{os.fspath(journal)!r} is not a journal, but must be one: move it away") from None
        left = [entry for entry in entries if _digest(entry[0]) != entry[3]]
        for path, new, old, digest in left:
            if _digest(path) != old or (new is not None and _digest(new) != digest):
                raise ChangedFileError(
                    f"{os.fspath(path)!r} was changed since an interrupted run left {os.fspath(journal)!r}: look at "
                    "both, and remove the journal"
                )
        for path, new, _, _ in left:
            before = path.read_bytes() if path.exists() else None
            change = FileChange(path, before, None if new is None else new.read_bytes())
            with contextlib.ExitStack() as stack:
                _commit(change, _staged(change, None, stack), None)
        for path, *_ in entries:
            remove_leftovers(path)
        journal.unlink()
    return len(left)


def _staged(change: FileChange, backup: str | None, stack: contextlib.ExitStack) -> AtomicFile | None:
    """The new file beside the old one, on the disk; None for a file that goes."""
    if change.after is None:
        return None
    if change.before is None:
        for folder in [parent for parent in reversed(change.path.parents) if not parent.exists()]:
            folder.mkdir()
            stack.callback(_drop_empty, folder)  # stays if the file does
    made = AtomicFile(change.path, backup=backup if change.before is not None else None)
    stack.callback(made.discard)
    if change.before is not None:
        made.expect(change.before)
    made.write(change.after)
    made.file.flush()
    os.fsync(made.file.fileno())
    return made


def _commit(change: FileChange, new: AtomicFile | None, backup: str | None) -> list[Path]:
    if new is not None:
        new.commit()
        return [new.kept] if new.kept else []
    if _digest(change.path) != fingerprint_of(change.before or b""):
        raise ChangedFileError(f"{os.fspath(change.path)!r} was changed meanwhile and is left as it is")
    backups = [backed_up(change.path, backup)] if backup is not None else []
    change.path.unlink()
    return backups


def _restore(change: FileChange) -> None:
    """Give a file back what it held, unless another program has changed it since."""
    with contextlib.suppress(OSError):
        if change.before is None:
            if _digest(change.path) == fingerprint_of(change.after or b""):
                change.path.unlink()
            return
        with AtomicFile(change.path) as file:
            if change.after is not None:
                file.expect(change.after)
            file.write(change.before)


def _entry(change: FileChange, new: AtomicFile | None, root: Path) -> list[str | None]:
    """A file's name, that of its new version, and the fingerprints of both."""
    path = new.path if new is not None else change.path
    names = [os.path.relpath(path, root), os.path.relpath(new.temporary, root) if new is not None else None]
    return names + [None if data is None else fingerprint_of(data) for data in (change.before, change.after)]


def _digest(path: Path) -> str | None:
    return fingerprint(path) if path.exists() else None


def _drop_empty(folder: Path) -> None:
    with contextlib.suppress(OSError):
        folder.rmdir()
