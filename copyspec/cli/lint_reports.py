"""Lists of edits for programs: the formats of reviewdog (rdjson) and of code scanning (SARIF 2.1.0)."""

from __future__ import annotations

import json
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

import copyspec
from copyspec.cli.printing import echo, echo_bytes, flush_stdout

if TYPE_CHECKING:
    from copyspec.pipelines import Done, Edit, FileJob, FileReport, Format

_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


class _Place(NamedTuple):
    """A position in a file; both count from 1."""

    line: int
    column: int

    def after(self, text: str, size: Callable[[str], int]) -> _Place:
        *ended, last = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
        return _Place(self.line + len(ended), size(last) + (1 if ended else self.column))


class ResultLister(ABC):
    """Lists the edits on stdout as one JSON document, each with its correction. Edits in records, cells and packed
    documents have no lines in their files: only their file is named."""

    def __init__(self, files: ExitStack) -> None:
        self._place = _Place(1, 1)
        self._begins, self._ends = self._frame()
        self._between = self._begins
        files.push(self._close)

    def part(self, path: str, form: Format, done: Done[FileJob]) -> None:
        assert done.part is not None
        part = done.part
        for edit, start, end in self._placed(part.text, done.edits):
            was = part.text[edit.start : edit.end]
            echo(self._between, end="")
            echo_bytes(json.dumps(self._result(path, was, edit, (start, end) if part.is_verbatim else None)).encode())
            self._between = ",\n"

    def end(self, report: FileReport) -> None:
        self._place = _Place(1, 1)

    def _placed(self, text: str, edits: Sequence[Edit]) -> Iterator[tuple[Edit, _Place, _Place]]:
        at = 0
        for edit in edits:
            start = self._place.after(text[at : edit.start], self._size)
            self._place = start.after(text[edit.start : edit.end], self._size)
            at = edit.end
            yield edit, start, self._place
        self._place = self._place.after(text[at:], self._size)

    def _close(self, failed: type[BaseException] | None, *_: object) -> None:
        if failed is not None:
            return  # a run that ended early must not look like one that found nothing
        echo(f"{self._begins if self._between == self._begins else ''}{self._ends}")
        flush_stdout()

    @abstractmethod
    def _frame(self) -> tuple[str, str]:
        """What comes before the first result and after the last one."""

    @abstractmethod
    def _size(self, text: str) -> int:
        """The length of a text, as columns are counted."""

    @abstractmethod
    def _result(self, path: str, was: str, edit: Edit, span: tuple[_Place, _Place] | None) -> dict[str, Any]:
        """The edit of `was`; `span`: where that begins and ends, None if it has no place in the file."""


class RdjsonLister(ResultLister):
    """For reviewdog, which counts columns in bytes of UTF-8 and makes suggestions of the corrections."""

    def _frame(self) -> tuple[str, str]:
        return '{"source": {"name": "copyspec"}, "severity": "WARNING", "diagnostics": [\n', "\n]}"

    def _size(self, text: str) -> int:
        return len(text.encode("utf-8", "surrogateescape"))

    def _result(self, path: str, was: str, edit: Edit, span: tuple[_Place, _Place] | None) -> dict[str, Any]:
        location: dict[str, Any] = {"path": os.fsencode(os.path.normpath(path)).decode("utf-8", "replace")}
        result: dict[str, Any] = {"message": message(was, edit), "location": location}
        result["code"] = {"value": kind(was, edit)}
        if span is not None:
            first, last = ({"line": place.line, "column": place.column} for place in span)
            location["range"] = {"start": first, "end": last}
            result["suggestions"] = [{"range": location["range"], "text": edit.replacement}]
        return result


class SarifLister(ResultLister):
    """For code scanning, with columns in characters."""

    def _frame(self) -> tuple[str, str]:
        from copyspec.pipelines import KINDS

        rules = [{"id": name, "shortDescription": {"text": f"A correction of the kind {name!r}"}} for name in KINDS]
        driver: dict[str, Any] = {"name": "copyspec", "version": copyspec.__version__, "rules": rules}
        run = json.dumps({"tool": {"driver": driver}, "columnKind": "unicodeCodePoints"}).removesuffix("}")
        return f'{{"$schema": "{_SCHEMA}", "version": "2.1.0", "runs": [{run}, "results": [\n', "\n]}]}"

    def _size(self, text: str) -> int:
        return len(text)

    def _result(self, path: str, was: str, edit: Edit, span: tuple[_Place, _Place] | None) -> dict[str, Any]:
        name = os.path.normpath(path)
        uri = f"{'file://' if os.path.isabs(name) else ''}{quote(os.fsencode(name.replace(os.sep, '/')))}"
        physical: dict[str, Any] = {"artifactLocation": {"uri": uri}}
        result: dict[str, Any] = {
            "ruleId": kind(was, edit),
            "level": "warning",
            "message": {"text": message(was, edit)},
            "locations": [{"physicalLocation": physical}],
        }
        if edit.margin is not None:
            result["properties"] = {"margin": edit.margin}
        if span is not None:
            first, last = span
            names = ("startLine", "startColumn", "endLine", "endColumn")
            physical["region"] = dict(zip(names, (*first, *last), strict=True))
            replacement = {"deletedRegion": physical["region"], "insertedContent": {"text": edit.replacement}}
            change = {"artifactLocation": physical["artifactLocation"], "replacements": [replacement]}
            result["fixes"] = [{"description": {"text": "The correction"}, "artifactChanges": [change]}]
        return result


def kind(was: str, edit: Edit) -> str:
    """The kind of an edit of `was`."""
    from copyspec.pipelines import kind_of

    return kind_of(was, edit.replacement)


def message(was: str, edit: Edit) -> str:
    """The edit in a line, with its kind and, if known, its margin."""
    margin = "" if edit.margin is None else f", margin {edit.margin:.1f}"
    return f"{was!r} -> {edit.replacement!r} ({kind(was, edit)}{margin})"
