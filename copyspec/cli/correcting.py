"""Runs files through a pipeline for the command line: results to stdout, everything else to stderr."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import copyspec
from copyspec.cli.common import CHANGED, FAILED, STDIN, USAGE, UsageError, as_json, cause, quiet_log, with_flags
from copyspec.cli.ending import Ended
from copyspec.cli.model_options import NamedModel
from copyspec.cli.options import option_names
from copyspec.cli.printing import echo, echo_bytes
from copyspec.common.checks import option
from copyspec.pipelines import FormatOptions, GuardOptions

if TYPE_CHECKING:
    from copyspec import Remote
    from copyspec.pipelines import (
        Corrector,
        FileOptions,
        FileReport,
        Listener,
        ModelOptions,
        RunOptions,
        Selection,
        Summary,
    )

logger = logging.getLogger(__name__)

LISTS = ("text", "github", "rdjson", "sarif")
"""Formats of the list of edits on stdout: for people and editors, as annotations of a GitHub workflow, for reviewdog,
for code scanning."""


@dataclass(frozen=True, slots=True)
class ReportOptions:
    """What a run of `gec` reports, and to which stream or file."""

    check: bool = option(False, "Write nothing; exit code 1 if something would change.")
    diff: bool = option(False, "Print a unified diff; exit code 1 if it is not empty.")
    listed: str | None = option(
        None,
        "Print the edits: text (file:line:col), github, rdjson (reviewdog), sarif; exit code 1 if any.",
        "--list",
    )
    explain: str | None = option(None, "Print why each change in this line was made or refused.", metavar="FILE:LINE")
    edits: Path | None = option(None, "Write every edit to this file, as JSON lines.")
    html: Path | None = option(None, "Write an HTML page that shows the changes, and no text.")
    m2: Path | None = option(None, "Write every segment and its edits in M2 format.")
    stats: str | None = option(None, "Print counters on stderr when done: text or json.")
    quiet: bool = False
    writes: bool = False  # corrected text goes into files; stdout gets only what is asked for
    asks: bool = False  # about every change, on stdout

    def __post_init__(self) -> None:
        if self.listed not in (None, *LISTS):
            raise UsageError(f"--list {self.listed!r}: name one of {', '.join(LISTS)}")
        if self.stats not in (None, "text", "json"):
            raise UsageError(f"--stats {self.stats!r}: text or json")
        views = {"--diff": self.diff, "--check": self.check, "--list": self.listed, "--explain": self.explain}
        chosen = [option for option, value in views.items() if value is not None and value is not False]
        if len(chosen) > 1:
            raise UsageError(f"{' and '.join(chosen)} both only report changes; give one")
        if chosen and self.writes:
            raise UsageError(f"{chosen[0]} writes nothing; leave -i, -o and --patch out")
        on_stdout = [name for name in ("edits", "html", "m2") if str(getattr(self, name)) == STDIN]
        if len(on_stdout) + self.diff + self.asks + (self.listed is not None) > 1:
            raise UsageError("one of --diff, --list, --patch, --edits -, --html - and --m2 - can use stdout")

    @property
    def place(self) -> tuple[str, int] | None:
        """The file and the line whose changes are explained on stdout. Raises UsageError if there is none."""
        if self.explain is None:
            return None
        path, _, line = self.explain.rpartition(":")
        if not path or not line.isdecimal() or int(line) < 1:
            raise UsageError(f"--explain {self.explain!r}: name a file and a line, as in README.md:12")
        return path, int(line)

    @property
    def only_looks(self) -> bool:
        """Whether changes are only reported and nothing is written."""
        return self.check or self.diff or self.listed is not None or self.explain is not None

    @property
    def shows_text(self) -> bool:
        """Whether corrected text goes to stdout: only if it goes nowhere else, nothing else uses stdout, and no page
        shows the changes."""
        return not (self.only_looks or self.writes or self.html or STDIN in map(str, self.reports.values()))

    @property
    def reports(self) -> dict[str, Path]:
        """Reports written besides the text, and their paths."""
        named = {"edits": self.edits, "html": self.html, "m2": self.m2}
        return {name: path for name, path in named.items() if path is not None}

    def listeners(self, inputs: Sequence[str], encoding: str, files: ExitStack) -> list[Listener]:
        from copyspec.cli import reports
        from copyspec.cli.lint_reports import RdjsonLister, SarifLister
        from copyspec.pipelines import base_of_diff

        listeners: list[Listener] = []
        if self.shows_text:
            listeners.append(reports.TextPrinter())
        if self.diff:
            base = base_of_diff([path for path in inputs if path != STDIN])
            if base != os.getcwd():
                self.tell(f"copyspec: the diff names files from {base!r}: apply it there")
            listeners.append(reports.DiffPrinter(base, files))
        if self.listed is not None:
            listers = {"rdjson": RdjsonLister, "sarif": SarifLister}
            make = listers.get(self.listed)
            listeners.append(make(files) if make is not None else reports.EditLister(self.listed, encoding))
        if self.place is not None:
            listeners.append(reports.Explainer(self.place[1]))
        if self.edits is not None:
            listeners.append(reports.EditWriter(self.edits, encoding, files))
        if self.html is not None:
            decides = not self.writes and STDIN not in inputs
            listeners.append(reports.PageWriter(self.html, inputs, files, with_decisions=decides))
        if self.m2 is not None:
            listeners.append(reports.M2Writer(self.m2, files))
        if logger.isEnabledFor(logging.INFO):
            listeners.append(reports.RefusalLogger(logger.info))
        else:
            # Of a run that only looks, it is an error: what is not read may hold mistakes.
            listeners.append(reports.UnreadableReporter(lambda line: self.tell(line, is_error=self.only_looks)))
        if not self.quiet and not self.asks and sys.stderr.isatty() and STDIN not in inputs:
            listeners.append(reports.ProgressBar(inputs, files))
        return listeners

    def tell(self, line: str, *, is_error: bool = False) -> None:
        """Print a line on stderr; with `quiet` only errors."""
        if is_error or not self.quiet:
            echo(line, err=True)

    def exit_code(self, total: Summary, misfits: int) -> int:
        """`misfits`: number of files that need other options. If all do, nothing is done, and the usage is wrong."""
        from copyspec.cli.reports import UNREADABLE

        if total.files_failed:
            return USAGE if misfits == total.files else FAILED
        if self.only_looks and any(total.skipped[reason] for reason in UNREADABLE):
            return FAILED
        return CHANGED if self.only_looks and self.explain is None and total.files_changed else 0


def corrector_of(model: NamedModel, options: ModelOptions, remote: Remote | None = None) -> Corrector:
    """Load the model, unless it is `remote`. Raises UsageError if it cannot be loaded or used."""
    from copyspec.pipelines import ModelCorrector

    if remote is not None:
        return ModelCorrector(remote, options)
    from copyspec.models.aliases import corrector_from

    try:
        engine = model.load(corrects=True)
        corrector = ModelCorrector(engine, options)
    except (copyspec.LoadError, copyspec.UnsupportedModelError) as error:
        raise UsageError(str(error)) from error
    trained = None if model.adapter is not None else corrector_from(engine.name)
    if trained is not None:
        logger.warning(
            "%s was not trained for corrections; --model %s was: %s", engine.name, trained.name, trained.about
        )
    return corrector


def run_files(
    inputs: Sequence[str],
    files: FileOptions,
    run: RunOptions,
    report_options: ReportOptions,
    make: Callable[[], Corrector],
    selections: Sequence[Selection] = (),
    decisions: Path | None = None,
) -> int:
    """Correct files and return the exit code. `make` is called only if there is something to correct.

    `decisions`: the path of a decisions file, used instead of a corrector."""
    from copyspec.cli.reports import LanguageReporter
    from copyspec.pipelines import (
        Decided,
        FormatOptionError,
        LateCorrector,
        Runner,
        Summary,
        correct_files,
        read_decisions,
    )

    try:
        decided = None if decisions is None else read_decisions(decisions)
    except OSError as error:
        raise UsageError(f"--apply {str(decisions)!r}: {cause(error)}") from error
    if decided is not None:
        names = {file.name for file in decided}
        inputs = [path for path in inputs if os.path.basename(path) in names]
    if not inputs:
        report_options.tell("copyspec: no files to correct")
        return 0

    def load() -> Corrector:
        with quiet_log(report_options.quiet):
            return make()

    corrected = Runner(LateCorrector(load), run)
    runner = corrected if decided is None else Decided(decided)
    total, is_numbered, misfits = Summary(), False, 0
    try:
        with ExitStack() as stack:
            stack.enter_context(quiet_log(report_options.quiet))
            listeners = report_options.listeners(inputs, files.format_options.encoding, stack)
            if decided is None:
                listeners.append(LanguageReporter(report_options.tell, corrected))
            done = stack.enter_context(
                closing(correct_files(runner, inputs, files, listeners=listeners, selections=selections))
            )
            for report in done:
                total.add(report.summary)
                misfits += isinstance(report.error, FormatOptionError)
                _tell_report(report, report_options)
                is_numbered = _tell_backup(report, files.backup, report_options) or is_numbered
    except (KeyboardInterrupt, Ended, copyspec.ServerError):
        _tell_interrupted(inputs, files)
        raise
    for name, path in report_options.reports.items():
        if str(path) != STDIN and report_options.stats != "json":
            report_options.tell(f"--{name}: {path}")
    _tell_summary(total.stop(), report_options)
    if files.backup is not None and total.files_changed:
        old = f"FILE{files.backup}"
        undo = f"to undo this run: mv {old} FILE" + (", or the backup named above instead" if is_numbered else "")
        report_options.tell(f"copyspec: the old files are kept as {old}; {undo}")
    return report_options.exit_code(total, misfits)


def _tell_interrupted(inputs: Sequence[str], files: FileOptions) -> None:
    """Say what an interrupted run leaves, and how to go on if something was kept for that."""
    if not files.is_writing or STDIN in inputs:
        return
    outputs = inputs if files.output is None else [os.fspath(files.output)]
    more = "; the same command with --resume continues" if any(map(_has_journal, outputs)) else ""
    with suppress(OSError):  # the terminal may be gone
        echo(f"copyspec: unfinished files are untouched{more}", err=True)


def _has_journal(output: str) -> bool:
    from copyspec.pipelines import journal_path

    try:
        return os.path.lexists(journal_path(output))
    except OSError:  # a link to nothing
        return False


def _tell_report(report: FileReport, report_options: ReportOptions) -> None:
    if report.error is not None:
        echo(f"copyspec: {reason(report.path, report.error)}", err=True)
    elif report.was_done and report_options.reports:
        names = ", ".join(f"--{name}" for name in report_options.reports)
        echo(f"copyspec: {report.path}: finished by an earlier run, so not in {names}", err=True)
    elif report_options.check and report.is_changed:
        if report_options.quiet:
            echo_bytes(os.fsencode(report.path) + b"\n")  # like linters: only the names of files that fail the check
        count = report.summary.edits
        report_options.tell(f"would change {report.path}: {count} edit{'s' * (count != 1)}")


def _tell_backup(report: FileReport, suffix: str | None, report_options: ReportOptions) -> bool:
    """Report a numbered backup, and return whether the backup is one."""
    is_numbered = report.backup is not None and not report.backup.endswith(f"{suffix}")
    if report.backup is not None and is_numbered:
        name = os.path.join(os.path.dirname(report.path), os.path.basename(report.backup))
        backup = name if os.path.realpath(name) == report.backup else report.backup
        report_options.tell(f"copyspec: {report.path}: an older backup exists and is kept; this one is {backup}")
    return is_numbered


def reason(path: str, error: Exception) -> str:
    """The error in one line that names the file."""
    message = (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
    message = with_flags(" ".join(message.split()), _options())
    named = getattr(error, "filename", None)
    if isinstance(named, str) and named not in message and os.path.realpath(named) != os.path.realpath(path):
        message = f"{named!r}: {message}"  # the error is about an output
    is_named = path in message and not getattr(error, "strerror", None)  # "No such file" is about one called "file" too
    return message if path and is_named else f"{path or repr(path)}: {message}"


@cache
def _options() -> dict[str, str]:
    """Options that errors about a file may name, by the names that the library has for them."""
    plain = ("resume", "column", "field", "format", "force_format", "max_new_tokens", "segment_tokens")
    names = {name: f"--{name.replace('_', '-')}" for name in plain} | {"guards.words": "--words"}
    names |= {f"guards.{name}": option for name, option in option_names(GuardOptions).items()}
    return names | {f"format_options.{name}": option for name, option in option_names(FormatOptions).items()}


def _tell_summary(total: Summary, report_options: ReportOptions) -> None:
    if report_options.stats == "json":
        echo(as_json(total.to_dict()), err=True)
    elif report_options.stats == "text":
        echo("\n".join(total.lines()), err=True)
    elif report_options.explain is None:
        report_options.tell(total.line())
