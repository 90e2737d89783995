"""Measures CPU seconds per row of a run on Ray and of one process, and tests runs with killed actors and drivers.

python -m benchmarks.integrations.ray_runs --rows 2400 --actors 1 2
python -m benchmarks.integrations.ray_runs --rows 120 --part 2 --actors 2 --kills 10

The single process works at the same time, so that other load on the machine slows both. Every row's output is compared
with that of the single process; exit status 1 if one differs, is lost or occurs twice. Needs copyspec[ray] and psutil.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.reporting import command_line, machine, write_json
from copyspec.integrations.ray import CorrectColumn, RunReport, run
from copyspec.integrations.ray.columns import ERROR
from copyspec.integrations.ray.runs import DONE


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=600)
    parser.add_argument("--part", type=int, default=20, help="rows per part")
    parser.add_argument("--actors", type=int, nargs="+", default=[2], help="numbers of actors; one run each")
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    parser.add_argument(
        "--drive", nargs=2, metavar=("IN", "OUT"), help="internal: one run, in a process that may be killed"
    )
    arguments = parser.parse_args()
    if arguments.drive:
        source, output = map(Path, arguments.drive)
        drive(source, output, arguments.actors[0], arguments.part)
        return 0
    with tempfile.TemporaryDirectory() as scratch:
        return compare(Path(scratch), arguments)


def task() -> CorrectColumn:
    return CorrectColumn("text", model="default", dtype="float32")


def drive(source: Path, output: Path, actors: int, part: int) -> RunReport:
    import ray

    if not ray.is_initialized():
        ray.init(num_cpus=max(4, actors + 2), include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    return run(task(), source, output, actors=actors, rows_per_part=part)


def compare(scratch: Path, arguments: argparse.Namespace) -> int:
    rows = list(sentences(arguments.rows))
    source = scratch / "in"
    source.mkdir()
    for number in range(3):
        lines = [json.dumps(row) + "\n" for row in rows[number::3]]
        (source / f"{number}.jsonl").write_text("".join(lines), encoding="utf-8")
    command = command_line("benchmarks.integrations.ray_runs")
    report: dict[str, Any] = {"command": command, "machine": machine(), "rows": len(rows), "runs": []}
    for actors in arguments.actors:
        with ThreadPoolExecutor() as pool:
            output = scratch / f"out-{actors}"
            waiting = pool.submit(killing, source, output, actors, arguments)
            expected, seconds = in_one_process(rows, arguments.part)
            found = check(output, expected, waiting.result())
        found = {"actors": actors, "CPU seconds of one process": seconds, **found}
        report["runs"].append(found)
        print(json.dumps(found), flush=True)
        if arguments.json:
            write_json(arguments.json, report)
    clean = (0, 0, len(rows))
    return int(any((each["lost"], each["doubled"], each["equal"]) != clean for each in report["runs"]))


def check(output: Path, expected: dict[object, str], killed: list[str]) -> dict[str, Any]:
    """Compare the rows of a run with the expected ones, and sum up its actors' costs."""
    reports = [json.loads(file.read_text()) for file in (output / DONE).glob("*.json")]
    lines = [json.loads(line) for file in output.glob("*.jsonl") for line in file.read_text().splitlines()]
    ids = Counter(row["id"] for row in lines)
    busy: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for each in reports:
        busy[each["worker"]][0] += each["seconds"]
        busy[each["worker"]][1] += each["cpu_seconds"]
    return {
        "kills": dict(Counter(killed)),
        "lost": len(expected) - len(ids),
        "doubled": sum(count > 1 for count in ids.values()),
        "equal": sum(expected[row["id"]] == row["corrected"] for row in lines),
        "CPU seconds": sum(each["cpu_seconds"] for each in reports),
        "busy and CPU seconds of each actor": sorted(busy.values()),
    }


def sentences(count: int) -> list[dict[str, object]]:
    """Make distinct sentences with mistakes."""
    people = ["The childrens", "My friend", "A teacher", "The dogs of our neighbour", "Nobody in this village"]
    acts = ["has went to", "are looking forward to see", "don't likes", "was tell me about", "have buyed a map of"]
    places = ["the the old harbour", "a island in north", "this beautiful mountains", "the library of city"]
    rng = random.Random(0)
    return [
        {"id": i, "text": f"{rng.choice(people)} {rng.choice(acts)} {rng.choice(places)}, number {i}, since yesterday."}
        for i in range(count)
    ]


def in_one_process(rows: list[dict[str, object]], part: int) -> tuple[dict[object, str], float]:
    """Correct all rows in this process; return the text of each row, and the CPU seconds without loading."""
    each = task()
    each.load()
    begun = time.process_time()
    found: dict[object, str] = {}
    for start in range(0, len(rows), part):
        batch = rows[start : start + part]
        columns = each({name: [row[name] for row in batch] for name in ("id", "text")})
        assert not any(columns[ERROR])
        found |= dict(zip(columns["id"], columns["corrected"], strict=True))
    return found, time.process_time() - begun


def killing(source: Path, output: Path, count: int, arguments: argparse.Namespace) -> list[str]:
    """Run until all rows are done, now and then killing an actor or the driver; return what was killed."""
    import psutil

    os.environ.setdefault("RAY_worker_niceness", "0")  # the default is 15, with which actors starve on a busy machine
    rng = random.Random(arguments.seed)
    size = ["--actors", str(count), "--part", str(arguments.part)]
    command = [sys.executable, "-m", "benchmarks.integrations.ray_runs", "--drive", str(source), str(output), *size]
    killed: list[str] = []
    parts = -(-arguments.rows // arguments.part)
    while True:
        driver = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        while driver.poll() is None:
            if len(killed) >= arguments.kills:
                time.sleep(1.0)
                continue
            done = len(list((output / DONE).glob("*.json"))) if output.exists() else 0
            if done < (len(killed) + 1) * parts / (arguments.kills + 2):
                time.sleep(0.1)
                continue
            family = psutil.Process(driver.pid).children(recursive=True)
            actors = [each for each in family if "MapWorker" in _title(each) or "Actor" in _title(each)]
            what = rng.choice(["actor", "actor", "driver"]) if actors else "driver"
            for each in [rng.choice(actors)] if what == "actor" else [psutil.Process(driver.pid), *family]:
                if each.is_running():
                    each.kill()
            killed.append(what)
            print(f"killed: {what} after {done} parts", flush=True)
        if driver.wait() == 0:
            return killed


def _title(process: object) -> str:
    try:
        return " ".join(process.cmdline())  # type: ignore[attr-defined]
    except Exception:  # it has ended already
        return ""


if __name__ == "__main__":
    raise SystemExit(main())
