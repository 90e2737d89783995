"""Tests malicious and damaged indexes (forged with correct checksums, or flipped bytes): reads, searches, extends them.

python -m tests.fuzz.indexes --forged 1000 --flipped 1000 --json OUT

Every case is a whole index of any kind with one to three changes (`forging`), used in its own process, limited to 1 GB
of additional memory and 10 seconds of CPU (60 of wall time). Counted, and all must be 0: changed files outside the
folder, errors other than those that report the damage, exceeded limits, and processes ended by a signal.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from kit.reporting import command_line, machine, write_json
from tests.fuzz.bases import KINDS, NAME, expected, make, uses
from tests.fuzz.forging import flip, forge, forge_json

MEMORY, SECONDS, WAITED = 1 << 30, 10, 60
"""Limits of a case: bytes, CPU seconds and wall seconds. Waiting for a pipe uses no CPU time."""

FAILURES = ("outside", "raw error", "memory", "time", "crash")
PLAIN = ("cache", "journal")  # single files instead of folders


def one(kind: str, folder: Path) -> str:
    """Use one index in this process; return the outcome."""
    for use in uses(kind, folder):
        try:
            use()
        except MemoryError:
            return "memory"
        except expected(kind):
            continue
        except ValueError as error:
            if "there is no corpus" not in str(error):  # removing a missing corpus is reported in this way
                return f"raw error {traceback.format_exc(limit=-4)}"
        except Exception:
            return f"raw error {traceback.format_exc(limit=-4)}"
    return "named or harmless"


def in_a_process(kind: str, folder: Path) -> str:
    """Use one index in a child process with limits; return the outcome."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.dup2(os.open(os.devnull, os.O_RDWR), 0)
            pages = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (pages + MEMORY, pages + MEMORY))
            for number in (signal.SIGALRM, signal.SIGPROF):
                signal.signal(number, signal.SIG_DFL)
            signal.setitimer(signal.ITIMER_PROF, SECONDS)
            signal.alarm(WAITED)
            os.write(writing, one(kind, folder).encode()[:4000])
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        said = pipe.read().decode()
    status = os.waitpid(child, 0)[1]
    if os.WIFSIGNALED(status):
        return (
            "time"
            if os.WTERMSIG(status) in (signal.SIGALRM, signal.SIGPROF)
            else f"crash by signal {os.WTERMSIG(status)}"
        )
    return said or "memory"


def snapshot(folder: Path) -> dict[str, tuple[bytes, int, int]]:
    """Content, modification time and number of links of every file."""
    states = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.is_symlink():
            states[str(path)] = (path.read_bytes(), path.stat().st_mtime_ns, path.stat().st_mode)
    return states


def case(
    number: int, seed: int, bases: Path, work: Path, kinds: Sequence[str], flipped: bool
) -> tuple[str, str, float]:
    """Run one case; return the change, the outcome and the seconds."""
    rng = random.Random(f"{seed} {number} {flipped}")
    kind = kinds[number % len(kinds)]
    folder, outside = work / "corpora", work / "outside"
    shutil.copytree(bases / kind, folder)
    outside.mkdir()
    for name in ("victim.txt", "empty.txt"):
        (outside / name).write_text("kept\n" * (name == "victim.txt"))
    index = folder / NAME
    if kind not in PLAIN:
        (index / "notes.txt").write_text("the user's own")
    if flipped:
        said = flip(folder, rng)
    elif kind in PLAIN:
        said = forge_json(index, outside, rng)
    else:
        said = "; ".join(forge(index, outside, rng) for _ in range(rng.choice([1, 1, 1, 2, 3])))
    before = snapshot(outside)
    started = resource.getrusage(resource.RUSAGE_CHILDREN)
    became = in_a_process(kind, folder)
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = ended.ru_utime + ended.ru_stime - started.ru_utime - started.ru_stime
    if snapshot(outside) != before:
        became = f"outside changed ({became})"
    shutil.rmtree(work)
    return f"{kind}: {said}", became, seconds


def run(count: int, flipped: bool, seed: int, kinds: Sequence[str] = KINDS) -> dict[str, object]:
    """Run `count` cases and return their figures."""
    became: Counter[str] = Counter()
    changes: Counter[str] = Counter()
    failures: list[dict[str, object]] = []
    slowest = 0.0
    with tempfile.TemporaryDirectory(prefix="hostile-") as place:
        bases = Path(place, "bases")
        for kind in kinds:
            (bases / kind).mkdir(parents=True)
            make(kind, bases / kind)
        for number in range(count):
            said, result, seconds = case(number, seed, bases, Path(place, "case"), kinds, flipped)
            slowest = max(slowest, seconds)
            failed = next((failure for failure in FAILURES if result.startswith(failure)), "")
            became[failed or result] += 1
            changes[":".join(said.split(":")[:2])] += 1
            if failed:
                failures.append({"case": number, "change": said, "result": result})
                print(f"case {number}: {said}\n{result}", file=sys.stderr, flush=True)
    figures = {failure: became[failure] for failure in FAILURES}
    return {
        "cases": count,
        "seed": seed,
        **figures,
        "changes": len(changes),
        "most seconds of work": round(slowest, 2),
        "failures": failures,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--forged", type=int, default=1000)
    parser.add_argument("--flipped", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--json", help="write the report to this file")
    options = parser.parse_args(arguments)
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # threads of the parent would not exist in its forked children
    command = command_line("tests.fuzz.indexes", arguments)
    report: dict[str, object] = {"command": command, "machine": machine()}
    for name, count, flipped in (("forged", options.forged, False), ("flipped", options.flipped, True)):
        report[name] = figures = run(count, flipped, options.seed, options.kinds)
        print(f"{name}: {json.dumps({key: value for key, value in figures.items() if key != 'failures'})}", flush=True)
    if options.json:
        write_json(options.json, report)
    return int(any(report[name][failure] for name in ("forged", "flipped") for failure in FAILURES))  # type: ignore[index]


if __name__ == "__main__":
    sys.exit(main())
