"""Finds what `gec` and `lsp` read: files by the paths, folders and patterns that name them, and lists of words."""

from __future__ import annotations

import glob
import logging
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from copyspec.cli.common import STDIN, UsageError
from copyspec.cli.config import defaults, settings_file
from copyspec.cli.correction_options import BACKUP_SUFFIX
from copyspec.common.filesystem import read_input

if TYPE_CHECKING:
    from copyspec.cli.correcting import ReportOptions
    from copyspec.pipelines import Skipped

logger = logging.getLogger(__name__)

PACKED = ("docx", "odt")
_NAMED = 6  # at most this many of the files that a pattern excludes are named


def inputs_of(
    paths: Sequence[str],
    format: str | None,
    exclude: Sequence[str],
    report_options: ReportOptions,
    backup: str | None = None,
    *,
    words: Sequence[Path] = (),
) -> tuple[list[str], bool]:
    """The files that `paths` name, reporting those left out, such as the lists of `words`, and whether all folders that
    they name could be read. Raises UsageError if stdin is one of several."""
    from copyspec.pipelines import Skipped, expand, suffixes_of

    exclude = list(dict.fromkeys([*exclude, *defaults().get("exclude", ())]))  # the project's are always left out
    skipped = Skipped()
    exclude = [*exclude, *without(words)]
    inputs = expand(
        paths, suffixes=suffixes_of(format), exclude=exclude, skipped=skipped, backup=backup or BACKUP_SUFFIX
    )
    closed = [path for path, reason in skipped.found if reason == "unreadable"]
    if line := Skipped([file for file in skipped.found if file[1] != "unreadable"]).line():
        is_listed = logger.isEnabledFor(logging.INFO)
        report_options.tell(f"copyspec: skipped: {line}" + ("" if is_listed else "; copyspec -v gec ... names them"))
    for path, reason in skipped.found:
        logger.info("skipped: %s (%s)", path, reason)
    for path in closed:
        report_options.tell(f"copyspec: {path}: this folder cannot be read: check its permissions", is_error=True)
    if not inputs:
        for line in _exclusions(skipped, exclude):
            report_options.tell(line)
    if STDIN in inputs and len(inputs) > 1:
        raise UsageError("- is stdin and must be the only input; correct the other files in another run")
    return inputs, not closed


def _exclusions(skipped: Skipped, exclude: Sequence[str]) -> Iterator[str]:
    """Lines that name the excluded files, and for each pattern where it comes from."""
    from copyspec.pipelines import excluded_by

    files: dict[str | None, list[str]] = {}
    for path, reason in skipped.found:
        if reason == "exclude":
            files.setdefault(excluded_by(path, exclude), []).append(path)
    of_project = defaults().get("exclude", ())
    for pattern, paths in files.items():
        named = ", ".join(paths[:_NAMED]) + ", ..." * (len(paths) > _NAMED)
        setting = f"exclude in {settings_file()}" if pattern in of_project else "--exclude"
        yield f"copyspec: {named}: left out by the pattern {pattern!r} of {setting}"


def without(words: Iterable[Path]) -> list[str]:
    """Patterns that exclude word lists: their words are right."""
    return [glob.escape(os.path.abspath(path)) for path in words]


def words_of(paths: Sequence[Path]) -> tuple[str, ...]:
    """The words in the user's word lists. Raises UsageError for a file that cannot be read as text."""
    words: list[str] = []
    for path in paths:
        try:
            words += str(read_input(path), "utf-8").split()
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"--words {str(path)!r} must be a file of words in UTF-8: {error}") from error
    return tuple(words)


def check_terminal(inputs: Sequence[str], format: str | None, report_options: ReportOptions) -> None:
    """Raise UsageError if a packed document would be written to a terminal."""
    packed = next((path for path in inputs if (format or Path(path).suffix.lstrip(".").lower()) in PACKED), None)
    if packed is not None and report_options.shows_text and sys.stdout.isatty():
        raise UsageError(f"{packed}: a packed document cannot be shown on a terminal; give -o FILE, -i or --diff")
