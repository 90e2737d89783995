"""`kill -9` after ten numbers of texts, then `--resume`: the command with the bundled model, in separate processes."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest

from copyspec.pipelines.editing.journal import SUFFIX

ROOT = Path(__file__).parent.parent.parent
KILLS, SENTENCES, ROWS = 10, 64, 4

SERVER = """
import json, os, sys, tempfile, threading, time
from pathlib import Path
import copyspec
import copyspec.cli.gec as command
from copyspec.cli import main
from copyspec.engine.logits.language import Language

Language.ngrams = None  # no process needs to learn them

make = command.corrector_of

def noting(log, *asked):
    corrector = make(*asked)
    correct = corrector.correct

    def noted(texts):
        with open(log, "a") as file:
            def each():
                for text in texts:
                    if text is not None:
                        file.write(json.dumps(text) + chr(10))
                        file.flush()
                        time.sleep(0.02)  # or it might end before it is killed
                    yield text
            yield from correct(each())

    corrector.correct = noted
    return corrector

with tempfile.TemporaryDirectory() as folder:  # once, not in every process: imports and word lists
    file = Path(folder) / "a.txt"
    file.write_text("She have seen it.")
    assert main(["gec", "-i", "-q", str(file)]) == 0
copyspec.unload()
assert threading.active_count() == 1

for line in sys.stdin:
    log, arguments = json.loads(line)
    child = os.fork()
    if child == 0:
        code = 99
        try:
            command.corrector_of = lambda *asked: noting(log, *asked)
            code = main(arguments)
        finally:
            os._exit(code)
    print(child, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


class Commands:
    """Runs the command in processes forked from one that has imported everything."""

    def __init__(self, to: IO[bytes], back: IO[bytes]) -> None:
        self._to, self._back = to, back

    def start(self, log: Path, *arguments: object) -> int:
        """Start the command and return the process id."""
        self._to.write(json.dumps([str(log), list(map(str, arguments))]).encode() + b"\n")
        self._to.flush()
        return int(self._back.readline())

    def wait(self) -> int:
        """Return the exit code, negative for a signal."""
        return int(self._back.readline())


@pytest.fixture(scope="module")
def commands() -> Iterator[Commands]:
    if not hasattr(os, "fork"):
        pytest.skip("no fork")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "COPYSPEC_MODEL": "default"}
    with subprocess.Popen(
        [sys.executable, "-c", SERVER], cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as server:
        assert server.stdin is not None and server.stdout is not None
        yield Commands(server.stdin, server.stdout)


def sentences(rng: random.Random) -> list[str]:
    people, places = ["My uncle", "The children", "She", "Our teacher"], ["the harbour", "school", "the old mill"]
    deeds = ["have seen a boats", "were tired", "want to see the the boat", "has painted the door"]
    return [
        f"{rng.choice(people)} {rng.choice(deeds)} near {rng.choice(places)} on day {number}."
        for number in range(SENTENCES)
    ]


def journalled(path: Path) -> list[str]:
    """Return the keys of the outcomes whose lines are complete."""
    lines = path.read_bytes().splitlines(keepends=True)[1:] if path.exists() else []
    return [json.loads(line)["key"] for line in lines if line.endswith(b"\n")]


def asked(log: Path) -> list[str]:
    return [json.loads(line) for line in log.read_text().splitlines() if line.endswith('"')] if log.exists() else []


def test_ten_kills_lose_nothing_and_nothing_is_decoded_twice(tmp_path: Path, commands: Commands) -> None:
    from copyspec.pipelines.editing.journal import _key

    seed = int(os.environ.get("COPYSPEC_KILL_SEED", 0))
    rng = random.Random(seed)
    data = "\r\n\r\n".join(sentences(rng)).encode() + b"\n\nbad \xff bytes\n"
    whole, killed = tmp_path / "whole.txt", tmp_path / "killed.txt"
    for file in (whole, killed):
        file.write_bytes(data)
    # Float32, because in half precision near-ties may depend on the other texts of a batch.
    options = ["gec", "-i", "-q", "--dtype", "float32", "--batch-size", ROWS]
    commands.start(tmp_path / "log", *options, whole)
    assert commands.wait() == 0
    journal = tmp_path / f"killed.txt{SUFFIX}"
    known: list[str] = []
    lost = 0
    for number in range(KILLS):
        log = tmp_path / f"log{number}"
        process = commands.start(log, *options, "--resume", killed)
        room = SENTENCES - len(known) - 4 * ROWS
        wait_for(log, rng.randint(0, max(0, min(7 + ROWS, room))))  # 0: while it starts
        os.kill(process, signal.SIGKILL)
        assert commands.wait() == -signal.SIGKILL, f"it was done before it was killed; seed {seed}"
        assert killed.read_bytes() == data
        again = {_key(text).hex() for text in asked(log)} & set(known)
        assert not again, f"decoded although the journal had it; seed {seed}"
        before, known = known, journalled(journal)
        assert known[: len(before)] == before and len(set(known)) == len(known)
        in_flight = len(asked(log)) - (len(known) - len(before))
        assert in_flight <= ROWS, f"seed {seed}"
        lost += in_flight
    commands.start(tmp_path / "last", *options, "--resume", killed)
    assert commands.wait() == 0
    assert killed.read_bytes() == whole.read_bytes() != data
    total = sum(len(asked(log)) for log in tmp_path.glob("log?")) + len(asked(tmp_path / "last"))
    assert total == len(asked(tmp_path / "log")) + lost, f"seed {seed}"
    assert not journal.exists() and not list(tmp_path.glob(".*"))


def wait_for(log: Path, count: int) -> None:
    """Wait until the log names `count` texts."""
    end = time.monotonic() + 120
    while len(asked(log)) < count:
        assert time.monotonic() < end, f"only {len(asked(log))} of {count} texts were asked"
        time.sleep(0.005)
