"""The progress bar appears on a terminal, and nowhere else."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
PROGRAM = """
import sys, time
from copyspec.cli import gec, main
from copyspec.pipelines import FunctionCorrector

def slow(text):
    time.sleep(0.15)  # the bar is drawn ten times a second
    return text.replace("goed", "went")

gec.corrector_of = lambda *_: FunctionCorrector(slow)
sys.exit(main(sys.argv[1:]))
"""


def shown(arguments: list[str], columns: int = 80, *, all_on_terminal: bool = False) -> tuple[int, bytes, str]:
    """Return the exit code, stdout, and what a terminal at stderr receives, and at stdout if `all_on_terminal`."""
    terminal, inner = pty.openpty()
    environment = {**os.environ, "COLUMNS": str(columns), "TERM": "xterm"}
    command = [sys.executable, "-c", PROGRAM, *arguments]
    stdout = inner if all_on_terminal else subprocess.PIPE
    with subprocess.Popen(command, stdout=stdout, stderr=inner, cwd=ROOT, env=environment) as process:
        os.close(inner)
        seen = b""
        while True:
            try:
                piece = os.read(terminal, 65536)
            except OSError:  # on Linux: the other end is closed
                break
            if not piece:
                break
            seen += piece
        out = process.stdout.read() if process.stdout is not None else b""
        code = process.wait(60)
    os.close(terminal)
    return code, out, seen.decode()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "a[b] with a long name that would not leave room for a bar.txt"
    path.write_bytes(b"".join(b"He goed home %d times.\n\n" % number for number in range(5)))
    return path


def test_a_terminal_sees_progress_and_stdout_only_the_text(file: Path) -> None:
    code, out, seen = shown(["gec", str(file)])
    assert (code, out) == (0, file.read_bytes().replace(b"goed", b"went"))
    assert "a[b] with a long name that ..." in seen and "%" in seen and "\x1b[" in seen
    assert seen.rstrip().endswith("1 file: 1 changed, 5 edits in 5 of 5 segments")
    assert all(len(line) <= 80 for line in seen.replace("\r", "\n").split("\n") if "\x1b" not in line)


def test_no_bar_where_nobody_looks(file: Path) -> None:
    assert shown(["gec", "-q", str(file)])[2] == ""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, "gec", str(file)], capture_output=True, cwd=ROOT, timeout=120, check=True
    )
    assert done.stdout == file.read_bytes().replace(b"goed", b"went")
    assert done.stderr == b"1 file: 1 changed, 5 edits in 5 of 5 segments\n"


def test_a_diff_beside_the_bar_is_not_wrapped(tmp_path: Path) -> None:
    line = "He goed " + "a long way " * 12 + "home."
    files = [tmp_path / "a.txt", tmp_path / "b.txt"]
    for path in files:
        path.write_text(line + "\n")
    code, _, seen = shown(["gec", "--diff", *map(str, files)], all_on_terminal=True)
    lines = [re.sub("\x1b\\[[0-9;?]*[a-zA-Z]", "", part) for part in seen.replace("\r", "\n").split("\n")]
    assert code == 1 and lines.count("-" + line) == lines.count("+" + line.replace("goed", "went")) == 2
