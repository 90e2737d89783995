"""Listeners of `gec` runs (`pipelines.Listener`): each turns finished parts into one kind of output."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from copyspec.cli.common import STDIN, with_flags
from copyspec.cli.printing import console, echo, echo_bytes, flush_stdout

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from copyspec.pipelines import Done, Edit, EditRows, FileJob, FileReport, Format, Runner

_NAME_CHARS = 30  # of a file name next to the bar, which needs the rest of 80 columns
_SPOOLED_BYTES = 16 << 20  # of a spool, in memory


class TextPrinter:
    """Prints corrected text on stdout as it becomes available."""

    def part(self, path: str, form: Format, done: Done[FileJob]) -> None:
        assert done.part is not None
        echo_bytes(form.write(done.part, done.edits))

    def end(self, report: FileReport) -> None:
        flush_stdout()


class DiffPrinter:
    """Prints a unified diff of every file on stdout, with paths relative to the folder in which to apply it."""

    def __init__(self, base: str, files: ExitStack) -> None:
        self._base, self._files = base, files
        self._spool: _Spool | None = None
        self._is_packed = False

    def part(self, path: str, form: Format, done: Done[FileJob]) -> None:
        from copyspec.pipelines import DocxFormat, OpenDocumentFormat

        assert done.part is not None
        self._spool = self._spool or _Spool(self._files)
        self._is_packed = isinstance(form, (DocxFormat, OpenDocumentFormat))
        if self._is_packed:  # a diff of packed bytes would be unreadable
            for pair in _pairs(done.part.text, done.edits):
                self._spool.add(pair)
        else:
            self._spool.add([_text(form.write(done.part, edits)) for edits in ((), done.edits)])

    def end(self, report: FileReport) -> None:
        from copyspec.cli.asking import colors
        from copyspec.pipelines import colored_diff, path_in_diff, unified_diff

        if self._spool is None:
            return
        if report.is_changed:
            pairs = ((before, after) for before, after in self._spool.taken())
            name = report.path if report.path == STDIN else path_in_diff(report.path, self._base)
            lines = unified_diff(pairs, name)
            if colors(sys.stdout):
                for line in colored_diff(lines):
                    echo(line, end="", is_safe=True)
            else:
                mark = "# " if self._is_packed else ""  # git and patch pass over it, and apply the others
                for line in lines:
                    echo_bytes((mark + line).encode("utf-8", "surrogateescape"))
        flush_stdout()
        self._spool.clear()


UNREADABLE = ("encoding", "binary", "json", "taken", "tracked")
"""Reasons of refusals that mean that a file is damaged, not text, or would lose something of the user's: until the user
has dealt with them, mistakes may be there that nothing has looked for."""


class UnreadableReporter:
    """Reports each file of which something cannot be corrected once, with the first reason."""

    def __init__(self, tell: Callable[[str], object]) -> None:
        self._tell, self._reported = tell, ""

    def part(self, path: str, form: Format, done: Done[FileJob]) -> None:
        refusal = next((refusal for refusal in done.refused if refusal.reason in UNREADABLE), None)
        if refusal is not None and self._reported != path:
            self._reported = path
            detail = with_flags(refusal.detail, {"encoding": "--encoding"})
            self._tell(f"copyspec: {path} {detail}; such parts are left unchanged")

    def end(self, report: FileReport) -> None:
        self._reported = ""


class LanguageReporter:
    """Reports once that a text is in a language for which the model was not made."""

    def __init__(self, tell: Callable[[str], object], runner: Runner) -> None:
        self._tell, self._runner, self._has_reported = tell, runner, False

    def part(self, path: str, form: Format, done: Done[FileJob]) -> None:
        if self._has_reported or (language := self._runner.foreign_language(done)) is None:
            return
        self._has_reported = True
        self._tell(
            f"copyspec: {path} holds text in {language!r}, which the model was not trained to correct: name one that "
            "was with --model"
        )

    def end(self, report: FileReport) -> None:
        pass


LIMITS = {name: f"--{name.replace('_', '-')}" for name in ("max_edit_ratio", "max_lost_ratio")}
"""Options that refusals name. No others are replaced, since refusals quote the user's text."""


class RefusalLogger:
    """Logs the changes that guards rejected: file, line, reason and change."""

    def __init__(self, log: Callable[[str], object]) -> None:
        self._log, self._line = log, 1

    def part(self, path: str, form: Format, done: Done[FileJob]) -> None:
        assert done.part is not None
        for refusal in done.refused:
            self._log(f"{path}: left alone ({refusal.reason}): {refusal.detail}")
        line, before = self._line, 0
        for piece in done.pieces:  # in the order of the text
            line += done.part.text.count("\n", before, piece.segment.start)
            before = piece.segment.start
            checked = piece.checked
            for refusal in checked.dropped or filter(None, [checked.refusal]):
                self._log(f"{path}:{line}: left out ({refusal.reason}): {with_flags(refusal.detail, LIMITS)}")
        if done.part.is_verbatim:
            self._line += done.part.text.count("\n")

    def end(self, report: FileReport) -> None:
        self._line = 1


class Explainer:
    """Prints of every change in a line, made or refused, why: its kind, its margin and what the document says."""

    def __init__(self, line: int) -> None:
        self._line, self._at, self._has_text = line, 1, False
        self._lines: int | None = None  # of the file so far; None: its format has no lines

    def part(self, path: str, form: Format, done: Done[FileJob]) -> None:
        from copyspec.pipelines.documents import replacing

        assert done.part is not None
        text = done.part.text
        for piece in done.pieces:
            first, last = (self._at + text.count("\n", 0, at) for at in (piece.segment.start, piece.segment.end))
            if not first <= self._line <= last:
                continue
            self._has_text = True
            checked = piece.checked
            for verdict in checked.verdicts:
                would = replacing(text[verdict.edit.start : verdict.edit.end], verdict.edit.replacement)
                refusal = verdict.refusal
                why = f"refused ({refusal.reason}): {refusal.detail}" if refusal else f"made: {would}"
                echo(f"{path}:{self._line}: {why}\n  {verdict.account()}")
            if not checked.verdicts:
                left = checked.refusal
                why = f"left alone ({left.reason}): {left.detail}" if left else "the model changes nothing"
                echo(f"{path}:{self._line}: {why}")
        if done.part.is_verbatim:
            self._at += text.count("\n")
            self._lines = self._at - 1 + bool(text.rpartition("\n")[2])

    def end(self, report: FileReport) -> None:
        if not self._has_text and report.error is None:
            is_beyond = self._lines is not None and self._line > self._lines
            why = f"the file ends at line {self._lines}" if is_beyond else "nothing here is given to the model"
            echo(f"{report.path}:{self._line}: {why}")
        flush_stdout()


class EditWriter:
    """Writes every edit as a JSON line to `path`; `-` is stdout."""

    def __init__(self, path: Path, encoding: str, files: ExitStack) -> None:
        self._write = _writer(path, files)
        self._encoding = encoding
        self._rows: EditRows | None = None

    def part(self, path: str, form: Format, done: Done[FileJob]) -> None:
        from copyspec.pipelines import EditRows, kind_of

        assert done.part is not None
        self._rows = self._rows or EditRows(path, encoding=self._encoding)
        for row, edit in zip(self._rows.rows(done.part, done.edits), done.edits, strict=True):
            fields = {"kind": kind_of(str(row["orig"]), edit.replacement), "margin": edit.margin}
            self._write(json.dumps(row | fields, ensure_ascii=True).encode() + b"\n")

    def end(self, report: FileReport) -> None:
        self._rows = None


class EditLister:
    """Lists every edit on stdout, as `file:line:col: 'a' -> 'b' (kind)` or as a GitHub annotation."""

    def __init__(self, style: str, encoding: str) -> None:
        self._is_annotation = style == "github"
        self._encoding = encoding
        self._rows: EditRows | None = None

    def part(self, path: str, form: Format, done: Done[FileJob]) -> None:
        from copyspec.pipelines import EditRows, kind_of

        assert done.part is not None
        self._rows = self._rows or EditRows(path, encoding=self._encoding)
        for row in self._rows.rows(done.part, done.edits):
            was, new, line, column = str(row["orig"]), str(row["corr"]), row["line"], row["col"]
            kind = kind_of(was, new)
            text_line = f"{was!r} -> {new!r} ({kind})"
            if self._is_annotation:
                file = "".join(f"%{ord(char):02X}" if char in "%,:\r\n" else char for char in path)
                before = f"::warning file={file}"
                text_line = f",line={line},col={column},title=copyspec::{text_line.replace('%', '%25')}"
            else:
                before, text_line = path, f":{line}:{column}: {text_line}"
            # The bytes of the name, in whatever encoding: an editor or a script is to open that file.
            echo_bytes(os.fsencode(before) + text_line.encode("utf-8", "replace") + b"\n")

    def end(self, report: FileReport) -> None:
        self._rows = None
        flush_stdout()


class PageWriter:
    """Writes a redline of all files as one HTML page when `files` is closed."""

    def __init__(self, path: Path, names: Sequence[str], files: ExitStack, *, with_decisions: bool = False) -> None:
        """`with_decisions`: add buttons to accept and reject changes, and to save the decisions for `--apply`."""
        self._names, self._counts = names, Counter(map(os.path.basename, names))
        self._shown, self._file = _Spool(files), _Spool(files)  # of finished files, and of the one at work
        self._decisions = _Spool(files) if with_decisions else None
        write = _writer(path, files)
        files.callback(self._write_page, write)

    def part(self, path: str, form: Format, done: Done[FileJob]) -> None:
        assert done.part is not None
        self._file.add([done.part.text, [[edit.start, edit.end, edit.replacement] for edit in done.edits]])

    def end(self, report: FileReport) -> None:
        if report.error is None:
            self._add(report)
        self._file.clear()

    def _add(self, report: FileReport) -> None:
        path = report.path
        # Of an unchanged file only if another one has its name, by which decisions are found.
        is_decided = report.is_changed or self._counts[os.path.basename(path)] > 1
        decisions = self._decisions if is_decided else None
        count = report.summary.edits
        heading = f"{path}: {count} change{'s' * (count != 1)}" if len(self._names) > 1 and report.is_changed else ""
        for number, (text, edits) in enumerate(self._file.taken()):
            if report.is_changed:
                self._shown.add([text, edits, "" if number else heading])
            if decisions is not None:
                for start, end, corrected in edits:
                    row = {"part": number, "start": start, "end": end, "orig": text[start:end]}
                    decisions.add([{**row, "corr": corrected, "accept": True}])
        if decisions is not None:
            decisions.add([os.path.basename(path), report.digest])

    def _decided(self) -> Iterator[str]:
        """The JSON of a decisions file that accepts every change, in pieces."""
        assert self._decisions is not None
        yield '{"copyspec-decisions": 1, "files": ['
        edits, is_first = list[str](), True
        for row in self._decisions.taken():
            if len(row) == 1:
                edits.append(json.dumps(row[0]))
                continue
            name, digest = map(json.dumps, row)
            yield f'{"" if is_first else ", "}{{"name": {name}, "digest": {digest}, "edits": [{", ".join(edits)}]}}'
            edits, is_first = [], False
        yield "]}"

    def _write_page(self, write: Callable[[bytes], object]) -> None:
        from copyspec.pipelines import Edit, Redline, redline_html

        parts = (
            Redline(text, [Edit(*edit) for edit in edits], heading=heading)
            for text, edits, heading in self._shown.taken()
        )
        title = _named(self._names[0]) if len(self._names) == 1 else f"{len(self._names)} files"
        decisions = self._decided() if self._decisions is not None else None
        for piece in redline_html(parts, title=title, only_changed=True, decisions=decisions):
            write(piece.encode("utf-8", "replace"))


class M2Writer:
    """Writes every segment and its correction as an M2 block; tokens are separated by whitespace."""

    def __init__(self, path: Path, files: ExitStack) -> None:
        self._write = _writer(path, files)

    def part(self, path: str, form: Format, done: Done[FileJob]) -> None:
        from copyspec.pipelines import annotated, apply

        assert done.part is not None
        starts = [edit.start for edit in done.edits]  # of those that were selected, of all that the guards allow
        for piece in done.pieces:
            start, end = piece.segment.start, piece.segment.end
            near = done.edits[bisect_left(starts, start) : bisect_right(starts, end)]
            inside = [
                type(edit)(edit.start - start, edit.end - start, edit.replacement) for edit in near if edit.end <= end
            ]
            source = done.part.text[start:end]
            lines = ["S " + " ".join(source.split()), *annotated(source, apply(source, inside)), "", ""]
            self._write("\n".join(lines).encode("utf-8", "replace"))

    def end(self, report: FileReport) -> None:
        pass


class ProgressBar:
    """Shows a progress bar on stderr, in bytes of the files."""

    def __init__(self, paths: Sequence[str], files: ExitStack) -> None:
        from rich.progress import Progress

        sizes = [Path(path).stat().st_size for path in paths if Path(path).is_file()]
        self._done = 0  # bytes of finished files
        self._here = self._tokens = 0
        self._started = perf_counter()
        self._bar: Progress = files.enter_context(Progress(console=console(err=True, soft_wrap=True), transient=True))
        self._task: TaskID = self._bar.add_task("correcting", total=sum(sizes) or None)

    def part(self, path: str, form: Format, done: Done[FileJob]) -> None:
        assert done.part is not None
        self._here += len(done.part.text)
        results = (piece.result for piece in done.pieces if piece.result is not None)
        self._tokens += sum(result.stats.num_output_tokens for result in results)
        speed = f" {self._tokens / (perf_counter() - self._started):.0f} tokens/s" if self._tokens else ""
        self._bar.update(self._task, description=self._shown(path, speed), completed=self._done + self._here)

    def end(self, report: FileReport) -> None:
        path = Path(report.path)
        self._done += path.stat().st_size if path.is_file() else self._here
        self._here = 0
        self._bar.update(self._task, completed=self._done)

    @staticmethod
    def _shown(path: str, more: str = "") -> str:
        """The file name, shortened to fit next to the bar with `more`, and escaped, since brackets would be markup."""
        from rich.markup import escape

        name, most = _named(path), _NAME_CHARS - len(more)
        return escape(name if len(name) <= most else name[: most - 3] + "...") + more


class _Spool:
    """A queue of JSON values that spills to disk."""

    def __init__(self, files: ExitStack) -> None:
        self._file = files.enter_context(tempfile.SpooledTemporaryFile(_SPOOLED_BYTES))  # noqa: SIM115

    def add(self, value: list[Any]) -> None:
        self._file.write(json.dumps(value, ensure_ascii=True).encode() + b"\n")

    def taken(self) -> Iterator[list[Any]]:
        self._file.seek(0)
        for line in self._file:
            yield json.loads(line)

    def clear(self) -> None:
        self._file.seek(0)
        self._file.truncate()


def _writer(path: Path, files: ExitStack) -> Callable[[bytes], object]:
    """A function that writes to stdout, or to a file that appears when `files` is closed without an error."""
    if str(path) == STDIN:
        return echo_bytes
    from copyspec.pipelines import AtomicFile

    return files.enter_context(AtomicFile(path)).write


def _pairs(text: str, edits: Sequence[Edit]) -> Iterator[list[str]]:
    """The stretches of a text before and after `edits`, in order."""
    at = 0
    for edit in edits:
        yield [text[at : edit.start]] * 2
        yield [text[edit.start : edit.end], edit.replacement]
        at = edit.end
    yield [text[at:]] * 2


def _named(path: str) -> str:
    return "standard input" if path == STDIN else Path(path).name


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")
