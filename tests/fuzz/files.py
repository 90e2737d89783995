"""Hostile files and hostile models: `copyspec gec` must keep every byte that no correction changes.

python -m tests.fuzz.files --count 10000 --seed 1 --json OUT

Random files of all formats (`files_cases`) are valid, damaged, or repeat one element very often; functions stand in for
models and may write anything. Each file is corrected in place or as a dry run, behind the default guards or with all of
them open, and the result is read again. All of these counts must be 0: bytes that differ outside the reported edits,
changed structure, new U+FFFD, cells that became formulas, unclear errors, leftovers beside the file, and files that
take over 5 seconds of CPU per MB of the (unpacked) file and of the model's output. A slow file is run three times and
its fastest run counts, because other work on the machine adds CPU time. The report is written every hundred files, so
that an interrupted run leaves one.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import random
import signal
import sys
import tempfile
import time
import zipfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import NoReturn

from copyspec.pipelines import (
    FileOptions,
    FileReport,
    FormatOptions,
    FunctionCorrector,
    GECPipeline,
    GuardOptions,
    correct_files,
)
from kit.reporting import command_line, machine, write_json
from tests.fuzz.files_cases import FORMATS, OPEN, case, corrector
from tests.fuzz.files_checks import BROKEN, Found, Seen, check, member

SECONDS_A_MB = 5.0
SECONDS_FREE = 0.5
"""CPU seconds allowed for a file of any size: a busy machine can delay a process this long."""
SECONDS_MOST = 120.0
MEASURED_BYTES = 20_000  # minimum size for which a rate is meaningful
REPEATS = 2  # additional runs of a file that took too long; the fastest run counts
REPORT_EVERY = 100  # number of files between reports


class TooSlowError(Exception):
    """A case exceeded the time limit."""


@dataclass(slots=True)
class Run:
    """One run of a file through one corrector."""

    report: FileReport
    seen: Seen
    seconds: float  # CPU time
    written: int  # characters output by the model, counted at every place where they were used
    is_in_place: bool


def fuzz(
    count: int, seed: int, *, formats: Sequence[str] = FORMATS, progress: Callable[[Found], object] | None = None
) -> Found:
    """Test `count` files, alternating between formats. `progress` is called now and then with the results so far."""
    outcome = Found()
    with tempfile.TemporaryDirectory(prefix="copyspec-fuzz-") as folder:
        for number in range(count):
            one(formats[number % len(formats)], f"{seed}-{number}", Path(folder), outcome)
            if progress is not None and (number + 1) % REPORT_EVERY == 0:
                progress(outcome)
    return outcome


def one(name: str, seed: str, folder: Path, outcome: Found) -> None:
    """Test one file with one corrector."""
    label = f"{name} {seed}"
    rng = random.Random(f"{name}-{seed}")
    data, options = case(name, rng)
    suffix = {"md": ".md", "csv": ".csv", "tsv": ".tsv", "jsonl": ".jsonl", "m2": ".m2", "docx": ".docx"}.get(name)
    path = folder / f"file{suffix or '.txt'}"
    state = rng.getstate()
    try:
        run = _run(name, path, data, options, rng)
        size = _size(name, data) + run.written
        for _ in range(REPEATS):  # other load on a machine can double the time of a run
            if not _is_slow(run.seconds, size):
                break
            rng.setstate(state)
            run.seconds = min(run.seconds, _run(name, path, data, options, rng).seconds)
    except Exception as error:
        outcome.say("raised", label, f"{type(error).__name__}: {error}")
        _clear(folder)
        return
    outcome.files[name] += 1
    _time(outcome, label, run.seconds, size)
    after = path.read_bytes()
    if leftovers := [file.name for file in folder.iterdir() if file != path]:
        outcome.say("leftovers", label, str(leftovers))
    _clear(folder)
    _compare(name, outcome, label, data, after, run)


def _run(name: str, path: Path, data: bytes, options: FormatOptions, rng: random.Random) -> Run:
    path.write_bytes(data)
    in_place = rng.random() < 0.7
    guards = OPEN if rng.random() < 0.6 else GuardOptions()
    correct, lengths = corrector(rng), Counter[str]()
    outputs: list[int] = []

    def counted(text: str) -> str:
        output = correct(text)
        lengths[text] = len(output)
        outputs.append(len(output))
        return output

    model = FunctionCorrector(counted, name="hostile")
    model.by_sentence = rng.random() < 0.3
    model.limit = rng.choice([None, None, 40, 400])
    seen = Seen()
    started = time.process_time()
    with _alarm():
        runner = GECPipeline(model, guards=guards).runner
        (report,) = correct_files(runner, [path], FileOptions(name, options, in_place=in_place), listeners=[seen])
    seconds = time.process_time() - started
    return Run(report, seen, seconds, sum(outputs) + sum(lengths[text] for text in seen.again), in_place)


def _compare(name: str, outcome: Found, label: str, data: bytes, after: bytes, run: Run) -> None:
    report, seen = run.report, run.seen
    if report.error is not None:
        _refusal(outcome, label, report.error, after == data)
        return
    outcome.edits += report.summary.edits
    assert seen.form is not None or not data
    written = b"".join(seen.form.write(part, edits) for part, edits in seen.parts) if seen.form else b""
    if run.is_in_place:
        is_kept = after == written or (not report.is_changed and after == data)
        if not is_kept:
            outcome.say("not what was told", label)
    elif after != data:
        outcome.say("a dry run wrote", label)
    check(name, outcome, label, data, written, seen)


def _size(name: str, data: bytes) -> int:
    """Size of the file in bytes; of an archive, the unpacked size."""
    if name not in ("docx", "odt"):
        return len(data)
    with contextlib.suppress(*BROKEN), zipfile.ZipFile(io.BytesIO(data)) as archive:
        return sum(len(member(archive, name)) for name in archive.namelist())
    return len(data)


def _is_slow(seconds: float, size: int) -> bool:
    return seconds > SECONDS_FREE + SECONDS_A_MB * size / 1e6


def _time(outcome: Found, label: str, seconds: float, size: int) -> None:
    if _is_slow(seconds, size):
        outcome.say("slow", label, f"{seconds:.2f} s for {size} bytes")
    if size >= MEASURED_BYTES:
        outcome.slowest = max(outcome.slowest, seconds / size * 1e6)


def _refusal(outcome: Found, label: str, error: Exception, is_same: bool) -> None:
    outcome.refused[type(error).__name__] += 1
    if not isinstance(error, (OSError, ValueError)) or isinstance(error, UnicodeError) or not str(error).strip():
        outcome.say("an error that is none", label, f"{type(error).__name__}: {error}")
    if not is_same:
        outcome.say("failed, and changed the file", label)


def _clear(folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink()


class _alarm:
    """Ends a case that exceeds the time limit, where the system supports alarms."""

    def __enter__(self) -> None:
        self._is_set = hasattr(signal, "setitimer")
        if self._is_set:
            signal.signal(signal.SIGVTALRM, _late)
            signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS_MOST)

    def __exit__(self, *_: object) -> None:
        if self._is_set:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)


def _late(number: int, frame: FrameType | None) -> NoReturn:
    raise TooSlowError(f"over {SECONDS_MOST} s")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--formats", default=",".join(FORMATS))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)

    def result(outcome: Found) -> dict[str, object]:
        return {
            "command": command_line("tests.fuzz.files", arguments),
            "machine": machine(),
            "files": dict(outcome.files),
            "edits": outcome.edits,
            "refused": dict(outcome.refused),
            "wrong": dict(outcome.wrong),
            "slowest_seconds_a_mb": round(outcome.slowest, 2),
            "examples": outcome.examples,
        }

    def keep(outcome: Found) -> None:
        if options.json:
            write_json(options.json, result(outcome))

    outcome = fuzz(options.count, options.seed, formats=options.formats.split(","), progress=keep)
    print(json.dumps(result(outcome), indent=2))
    keep(outcome)
    return 1 if outcome.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
