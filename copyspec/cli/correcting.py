"""Files through a pipeline, as the command line shows it: results on stdout, everything else on stderr."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from copyspec.cli.common import STDIN, UsageError, as_json, quiet_libraries

if TYPE_CHECKING:
    from copyspec.api import LoadOptions
    from copyspec.pipelines import (
        Corrector,
        Done,
        FileJob,
        FileOptions,
        FileReport,
        Format,
        Listener,
        ModelOptions,
        RunOptions,
        Summary,
    )

CHANGED, FAILED = 1, 3


@dataclass(frozen=True, slots=True)
class Told:
    """What a run tells, and where."""

    quiet: bool = False
    check: bool = False  # changes are an exit code
    stats: str | None = None  # text or json, on stderr
    to_stdout: bool = False  # the corrected text


def inputs_of(paths: Sequence[str], format: str | None, exclude: Sequence[str]) -> list[str]:
    """The files that `paths` name. Raises UsageError where stdin is one of several."""
    from copyspec.pipelines import expand, suffixes_of

    found = expand(paths, suffixes=suffixes_of(format), exclude=exclude)
    if STDIN in found and len(found) > 1:
        raise UsageError("- is stdin and stands alone; correct the other files in another run")
    return found


def corrector_of(model: str | None, loading: LoadOptions, asked: ModelOptions) -> Corrector:
    """Loads the model. Raises UsageError where it cannot be loaded or used."""
    import copyspec
    from copyspec.pipelines import ModelCorrector

    quiet_libraries()
    try:
        return ModelCorrector(copyspec.load(model, **loading), asked)
    except (copyspec.LoadError, copyspec.UnsupportedModelError) as error:
        raise UsageError(str(error)) from error


def run_files(
    inputs: Sequence[str], files: FileOptions, run: RunOptions, told: Told, make: Callable[[], Corrector]
) -> int:
    """Corrects files and returns the exit code. The corrector is made when everything else has been checked."""
    from copyspec.pipelines import Runner, Summary, correct_files

    if not inputs:
        _tell("copyspec: no files to correct", told)
        return 0
    runner = Runner(make(), run)
    total = Summary()
    listeners: list[Listener] = [_Printed()] if told.to_stdout else []
    reports = correct_files(runner, inputs, files, listeners=listeners)
    try:
        with closing(reports):
            for report in reports:
                total.add(report.summary)
                _tell_report(report, told)
    except KeyboardInterrupt:
        if files.is_writing and STDIN not in inputs:
            print("copyspec: files not yet done are untouched; the same command with --resume goes on", file=sys.stderr)
        raise
    _tell_summary(total.stop(), told)
    if total.files_failed:
        return FAILED
    return CHANGED if told.check and total.files_changed else 0


class _Printed:
    """Corrected text on stdout, as it comes."""

    def part(self, path: str, form: Format, done: Done[FileJob]) -> None:
        assert done.part is not None
        sys.stdout.buffer.write(form.write(done.part, done.edits))

    def end(self, report: FileReport) -> None:
        sys.stdout.buffer.flush()


def _tell_report(report: FileReport, told: Told) -> None:
    if report.error is not None:
        print(f"copyspec: {_reason(report)}", file=sys.stderr)
    elif told.check and report.is_changed:
        _tell(f"would change {report.path}: {report.summary.edits} edits", told)


def _reason(report: FileReport) -> str:
    error = report.error
    said = (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
    said = " ".join(said.split())
    return said if report.path in said else f"{report.path}: {said}"


def _tell_summary(total: Summary, told: Told) -> None:
    if told.stats == "json":
        print(as_json(total.to_dict()), file=sys.stderr)
    elif told.stats == "text":
        print("\n".join(total.lines()), file=sys.stderr)
    else:
        _tell(total.line(), told)


def _tell(line: str, told: Told) -> None:
    if not told.quiet:
        print(line, file=sys.stderr)
