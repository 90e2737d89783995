"""Runs: turn every part of the input into an output file exactly once, even if actors or the driver are killed."""

from __future__ import annotations

import json
import os
import platform
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from copyspec.checks import check_count
from copyspec.integrations.ray.columns import ERROR, ColumnTask
from copyspec.integrations.ray.json_rows import Row, dumped, written
from copyspec.integrations.ray.parts import RowPart, file_digest, find_files, split
from copyspec.integrations.ray.pool import mapped

RUN_FILE, REPORT_FILE = "run.json", "report.json"
DONE, FAILED = "done", "failed"

ROWS_PER_PART = 256
"""Rows per part: at most this much work per actor is repeated after a kill, and these rows share forward passes."""


@dataclass(frozen=True, slots=True)
class RunReport:
    """The outcome of a run, including parts finished by earlier runs."""

    rows: int
    failed: int
    parts: int
    resumed: int  # parts that were already finished
    cpu_seconds: float  # of the actors, without loading the model


def run(
    task: ColumnTask,
    source: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    address: str | None = None,
    actors: int = 1,
    num_cpus: float = 1.0,
    num_gpus: float = 0.0,
    rows_per_part: int = ROWS_PER_PART,
) -> RunReport:
    """Apply `task` to every row of the Parquet, JSONL and text files in `source`, on a Ray cluster.

    output: a folder that all machines reach. `output/*.jsonl` gets the rows with their results, in place of what the
        task's column held before, `output/failed/*.jsonl` those without one and the error, `output/report.json` the
        totals. Each file is written completely before it gets its name.
    address: of the cluster; None starts Ray on this machine, or uses the running one.
    actors, num_cpus, num_gpus: number of actors, each with its own model and this share of a machine.

    Repeating the call resumes a killed run: parts whose file exists are not processed again. Raises ValueError if the
    folder holds another run's output, and for invalid arguments.
    """
    check_count("actors", actors)
    check_count("rows_per_part", rows_per_part)
    folder = Path(output)
    inside = folder.resolve()  # the output may be a folder in the source, and is no input when the run continues
    files = [file for file in find_files(source) if inside not in Path(file).resolve().parents]
    parts = list(split(files, rows_per_part))
    of_input = {"files": {file: file_digest(file) for file in files}, "rows_per_part": rows_per_part}
    _begin(folder, {**task.identity, **of_input, "parts": [[part.file, part.first, part.count] for part in parts]})
    todo = [part for part in parts if not (folder / DONE / f"{part.name}.json").exists()]
    if todo:
        items = [part.to_dict() for part in todo]
        for _ in mapped(PartWriter(task, folder), items, address, actors, num_cpus, num_gpus):
            pass
    return _report(folder, parts, resumed=len(parts) - len(todo))


class PartWriter:
    """Reads a part, applies the task and writes the result. Running it twice writes the same files again."""

    def __init__(self, task: ColumnTask, folder: Path) -> None:
        self._task, self._folder = task, folder

    def __call__(self, given: Mapping[str, Any]) -> dict[str, Any]:
        part = RowPart(**given)
        load = getattr(self._task, "load", None)
        if load is not None:  # its time does not count as the part's
            load()
        begun, cpu_begun = time.perf_counter(), time.process_time()
        rows, broken = part.read()
        done: list[str] = []
        failed = list(map(dumped, broken))
        for row, changes, error in self._results(rows):
            if error is None:
                done.append(written(row, changes, without=ERROR))
            else:
                failed.append(written(row, {**changes, "error": error}, without=ERROR))
        write_lines(self._folder / f"{part.name}.jsonl", done)
        if failed:
            write_lines(self._folder / FAILED / f"{part.name}.jsonl", failed)
        else:  # one of an attempt that was killed
            (self._folder / FAILED / f"{part.name}.jsonl").unlink(missing_ok=True)
        record = {"rows": len(done), "failed": len(failed), "worker": f"{platform.node()}:{os.getpid()}"}
        record |= {"seconds": time.perf_counter() - begun, "cpu_seconds": time.process_time() - cpu_begun}
        write_lines(self._folder / DONE / f"{part.name}.json", [record])  # written last: it marks the part as done
        return record

    def _results(self, rows: list[Row]) -> Iterator[tuple[Row, dict[str, Any], Any]]:
        """Yield each row, what the task changes in it, and why it has no complete result, or None."""
        if not rows:
            return
        # The errors that a row holds are of an earlier run.
        names = list(dict.fromkeys(name for row in rows for name in row))
        columns = self._task({name: [None if name == ERROR else row.get(name) for row in rows] for name in names})
        for i, row in enumerate(rows):
            made = {name: column[i] for name, column in columns.items()}
            error = made.pop(ERROR, None)
            # A row without a column that others have was given None there, and stays without it. What a task has
            # copied is no change; 1, True and 1.0 are equal, but not the same.
            yield row, {name: value for name, value in made.items() if not _is_same(value, row.get(name))}, error


def _is_same(value: object, before: object) -> bool:
    return value is before or (type(value) is type(before) and repr(value) == repr(before))


def write_lines(path: Path, rows: Iterable[Row | str]) -> None:
    """Write JSON lines atomically: rows, or lines as they are."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # A unique name, because an actor that was presumed dead may still be writing the same part.
    scratch = path.with_name(f".{path.name}.{uuid.uuid4().hex}.part")
    with scratch.open("w", encoding="utf-8", newline="\n") as file:
        for row in rows:
            file.write((row if isinstance(row, str) else dumped(row)) + "\n")
        file.flush()
        os.fsync(file.fileno())
    scratch.replace(path)


def _begin(folder: Path, identity: Mapping[str, object]) -> None:
    """Record which run the folder belongs to, or check that it belongs to the same run."""
    record = json.loads(json.dumps(identity))
    file = folder / RUN_FILE
    if file.exists():
        before = json.loads(file.read_text(encoding="utf-8"))
        changed = sorted(name for name in {*before, *record} if before.get(name) != record.get(name))
        if changed:
            raise ValueError(
                f"{str(folder)!r} holds the output of another run, which differs in {', '.join(changed)}: give another "
                "folder, or remove it"
            )
        return
    # A run that was killed while it wrote the file leaves a part of it.
    if folder.exists() and not all(fnmatch(path.name, f".{RUN_FILE}.*.part") for path in folder.iterdir()):
        raise ValueError(f"{str(folder)!r} is not empty, and no run of this kind wrote it: give another folder")
    write_lines(file, [record])


def _report(folder: Path, parts: list[RowPart], resumed: int) -> RunReport:
    records = [json.loads((folder / DONE / f"{part.name}.json").read_text(encoding="utf-8")) for part in parts]
    rows, failed = (sum(each[name] for each in records) for name in ("rows", "failed"))
    report = RunReport(rows, failed, len(parts), resumed, sum(each["cpu_seconds"] for each in records))
    sums = {"rows": rows, "failed": failed, "parts": len(parts), "cpu_seconds": report.cpu_seconds}
    write_lines(folder / REPORT_FILE, [sums])
    return report
