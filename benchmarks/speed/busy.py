"""Measures how much busy programs slow a call down: on a quiet machine, and with one busy process per core.

    python -m benchmarks.speed.busy                                   the bundled model
    python -m benchmarks.speed.busy --model FOLDER --json busy.json   another model; figures go into a file

For each number of threads, quiet and busy measurements alternate, round after round, so that other load on the machine
affects all of them. The quiet figure is the minimum over the rounds, the busy one the median. The claim concerns
copyspec's own choice of threads: its busy time is at most 3 times the quiet time.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from time import perf_counter, sleep
from typing import TYPE_CHECKING

from copyspec.engine.running.threads import allowed
from kit.reporting import command_line, write_json

if TYPE_CHECKING:
    from copyspec import Engine

PROMPT = "Correct the grammar: The mills was builded in 1820 by two sister, and they has works there since many year."
MOST = 3.0
"""Maximum ratio of busy to quiet time."""

SPIN = "import os\nparent = os.getppid()\nwhile os.getppid() == parent: sum(range(100000))"


@dataclass(frozen=True, slots=True)
class Row:
    """Seconds per call with one number of threads."""

    threads: str
    quiet: float  # minimum
    busy: float  # median
    worst: float  # maximum beside busy processes
    taken: int  # threads in use after the last busy call

    @property
    def ratio(self) -> float:
        return self.busy / self.quiet


@contextmanager
def busy_cores(count: int) -> Iterator[None]:
    """Keep `count` processes computing while the context is active. They end with this process."""
    running = [subprocess.Popen([sys.executable, "-c", SPIN]) for _ in range(count)]
    try:
        sleep(0.5)
        yield
    finally:
        for process in running:
            process.kill()
        for process in running:
            process.wait()


def measure(engine: Engine, choices: Sequence[int | None], rounds: int, calls: int, tokens: int) -> list[Row]:
    """Measure a row for each choice of threads; None is copyspec's own."""
    quiet: dict[int | None, list[float]] = {choice: [] for choice in choices}
    busy: dict[int | None, list[float]] = {choice: [] for choice in choices}
    for choice in choices:
        _call(engine, choice, tokens)
    for _ in range(rounds):
        for choice in choices:
            quiet[choice] += [_call(engine, choice, tokens) for _ in range(calls)]
        with busy_cores(allowed()):
            for choice in choices:
                busy[choice] += [_call(engine, choice, tokens) for _ in range(calls)]
    return [
        Row(
            "measured" if choice is None else str(choice),
            min(quiet[choice]),
            median(busy[choice]),
            max(busy[choice]),
            engine.threads if choice is None else choice,
        )
        for choice in choices
    ]


def _call(engine: Engine, threads: int | None, tokens: int) -> float:
    started = perf_counter()
    # Plain decoding makes as many passes in every call, whereas draft sizes would follow the measured costs.
    engine.generate(PROMPT, max_new_tokens=tokens, ignore_eos=True, threads=threads, drafter="none")
    return perf_counter() - started


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; exit status 1 if copyspec's own choice takes more than 3 times its quiet time."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speed.busy", description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="default", help="hub id or folder (default: the bundled model)")
    parser.add_argument(
        "--threads", default="1,2", help="numbers of threads to measure in addition to copyspec's own choice"
    )
    parser.add_argument(
        "--rounds", type=int, default=3, help="number of rounds, each with a quiet and a busy measurement"
    )
    parser.add_argument("--calls", type=int, default=5, help="calls per measurement")
    parser.add_argument("--tokens", type=int, default=32, help="output tokens per call")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    options = parser.parse_args(arguments)
    import copyspec

    engine = copyspec.load(options.model)
    choices = [None, *(int(number) for number in options.threads.split(",") if number)]
    rows = measure(engine, choices, options.rounds, options.calls, options.tokens)
    print(f"{allowed()} cores, as many busy processes, {options.tokens} tokens a call\n")
    print("| threads | quiet s | busy s | worst s | busy / quiet |\n|---|--:|--:|--:|--:|")
    for row in rows:
        print(f"| {row.threads} ({row.taken}) | {row.quiet:.3f} | {row.busy:.3f} | {row.worst:.3f} | {row.ratio:.1f} |")
    if options.json is not None:
        report = {
            "command": command_line("benchmarks.speed.busy", arguments),
            "cores": allowed(),
            "load": os.getloadavg(),
            "rows": [{**asdict(row), "ratio": row.ratio} for row in rows],
        }
        write_json(options.json, report)
    return 0 if rows[0].ratio <= MOST else 1


if __name__ == "__main__":
    sys.exit(main())
