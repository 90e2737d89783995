"""Corrects files in place with a pool of actors; the files must be reachable from all machines."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from copyspec.checks import check_count
from copyspec.integrations.ray.pool import mapped

if TYPE_CHECKING:
    from copyspec.pipelines import Corrector, FileOptions, FileReport, RunOptions

FILES_PER_GROUP, BYTES_PER_GROUP = 64, 1 << 18
"""Files given to an actor at once: small files share forward passes, and every actor gets some."""

REPORTS, ERROR = "reports", "error"


def correct_on_ray(
    make: Callable[[], Corrector],
    paths: Sequence[str],
    files: FileOptions,
    run: RunOptions,
    *,
    address: str | None = None,
    actors: int = 1,
) -> Iterator[FileReport]:
    """Correct files in place and yield a report for each when it is done, in any order.

    make: creates an actor's corrector; called once per actor.
    paths: files that all machines reach under these names.
    address: of the cluster: "auto", "ray://HOST:10001", or "local" for actors on this machine.

    Ray restarts a killed actor; the journals beside the files tell what it had finished, and are removed when all files
    are done. Raises ValueError if an earlier run left journals, unless `files.resume`, and if an actor cannot create
    its corrector.
    """
    from copyspec.pipelines import journal_path

    check_count("actors", actors)
    if not files.in_place:
        raise ValueError("on Ray files are corrected in place: give in_place=True")
    given = [os.path.abspath(path) for path in paths]
    journals = [journal_path(path) for path in given]
    left = next((journal for journal in journals if journal.exists()), None)
    if left is not None and not files.resume:
        raise ValueError(
            f"{str(left)!r} was left by an interrupted run: resume=True continues it; to start over, delete it"
        )
    work = GroupCorrector(make, replace(files, resume=True), run)
    kept: list[Path] = []
    for row in mapped(work, [{"paths": group} for group in groups(given)], address, actors):
        if row[ERROR]:
            raise ValueError(f"an actor has no corrector: {row[ERROR]}")
        for data in json.loads(row[REPORTS]):
            report = report_from_json(data)
            if report.error is None:
                kept.append(journal_path(report.path))
            yield report
    for journal in kept:
        journal.unlink(missing_ok=True)


class GroupCorrector:
    """An actor's work: correct a group of files and report on each. Running it twice has no further effect."""

    def __init__(self, make: Callable[[], Corrector], files: FileOptions, run: RunOptions) -> None:
        self._make, self._files, self._run = make, files, run
        self._corrector: Corrector | None = None

    def __call__(self, given: Mapping[str, Any]) -> dict[str, str]:
        from copyspec.pipelines import Runner, correct_files

        try:
            self._corrector = self._corrector or self._make()
        except Exception as error:  # raised through Ray, it would come with all of Ray's frames
            return {REPORTS: "[]", ERROR: str(error) or type(error).__name__}
        paths = [str(path) for path in given["paths"]]
        reports = correct_files(Runner(self._corrector, self._run), paths, self._files)
        # Closing the generator before its end keeps the journals, so that a repeated group is known to be done.
        data = [report_to_json(report) for report in islice(reports, len(paths))]
        reports.close()
        return {REPORTS: json.dumps(data), ERROR: ""}

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_corrector": None}


def groups(paths: Sequence[str]) -> list[list[str]]:
    """Group files for the actors; a large file forms its own group."""
    found: list[list[str]] = []
    size = BYTES_PER_GROUP
    for path in paths:
        of_file = os.path.getsize(path) if os.path.isfile(path) else 0
        size += of_file
        if not found or size > BYTES_PER_GROUP or len(found[-1]) == FILES_PER_GROUP:
            found.append([])
            size = of_file
        found[-1].append(path)
    return found


def report_to_json(report: FileReport) -> dict[str, object]:
    """Convert a report to JSON-compatible data."""
    from copyspec.pipelines import FormatOptionError

    error = report.error
    text = None if error is None else (getattr(error, "strerror", None) or str(error) or type(error).__name__)
    counts = {each.name: getattr(report.summary, each.name) for each in fields(report.summary)}
    return {
        "path": report.path,
        "summary": counts,
        "error": text,
        "needs_options": isinstance(error, FormatOptionError),
        "was_done": report.was_done,
        "backup": report.backup,
    }


def report_from_json(data: Mapping[str, Any]) -> FileReport:
    """Restore a report from `report_to_json`'s data; of an error come its message, and whether the file needs other
    options."""
    from copyspec.pipelines import FileReport, FormatOptionError, Summary

    counts: dict[str, Any] = {
        name: Counter(value) if isinstance(value, dict) else value for name, value in data["summary"].items()
    }
    kind = FormatOptionError if data["needs_options"] else ValueError
    error = None if data["error"] is None else kind(data["error"])
    return FileReport(data["path"], Summary(**counts), error, data["was_done"], data["backup"])
