"""Terminal output: untrusted text cannot move the cursor, change colours, set the title or overwrite lines."""

from __future__ import annotations

import ast
import contextlib
import io
import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import IO

import pytest

from copyspec.cli import main
from copyspec.cli.common import UsageError, as_json, read_line
from copyspec.cli.printing import LogFormatter, StdoutError, console, echo, echo_bytes
from copyspec.cli.showing import print_coloured
from copyspec.views.provenance import CopiedPiece, Provenance, SourceText, TextPlace

HOSTILE = "a\x1b]0;title\x07\x1b[2Jb\x9b31mc\rd\x08\u202ee\u2066\r\n\tf\n"
SHOWN = "a␛]0;title␇␛[2Jb\ufffd31mc␍d␈\ufffde\ufffd\n\tf\n"
CLI = Path(__file__).parents[2] / "copyspec" / "cli"


class Screen(io.TextIOWrapper):
    def isatty(self) -> bool:
        return True

    @property
    def text(self) -> str:
        self.flush()
        return str(self.buffer.getvalue(), "utf-8")  # type: ignore[attr-defined]


def on_screen(monkeypatch: pytest.MonkeyPatch) -> Screen:
    screen = Screen(io.BytesIO(), encoding="utf-8")
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setattr(sys, "stderr", screen)
    return screen


def test_a_terminal_gets_no_control_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = on_screen(monkeypatch)
    echo(HOSTILE, end="")
    echo_bytes(HOSTILE.encode())
    echo(HOSTILE, end="", err=True)
    assert screen.text == SHOWN * 3
    console().print(HOSTILE, end="", markup=False, no_wrap=True)
    record = logging.makeLogRecord({"msg": "%s", "args": (HOSTILE,)})
    assert not set(screen.text + LogFormatter().format(record)) & {"\x1b", "\x07", "\x9b", "\r", "\x08", "\u202e"}


def test_a_pipe_gets_every_byte(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    echo("1", end="")
    echo_bytes(HOSTILE.encode() + b"\xff")
    echo(HOSTILE, end="", err=True, flush=True)
    sys.stdout.flush()
    assert capfdbinary.readouterr() == (b"1" + HOSTILE.encode() + b"\xff", HOSTILE.encode())


def test_a_stream_that_lacks_a_character_gets_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    narrow = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", narrow)
    echo("né \ud800", flush=True)
    assert narrow.buffer.getvalue() == rb"n\xe9 \ud800" + b"\n"


@pytest.mark.parametrize("encoding", ["latin-1", "ascii", "cp1252", "utf-8"])
def test_json_is_json_in_every_encoding(encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    narrow = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    monkeypatch.setattr(sys, "stdout", narrow)
    value = {"text": "né 中 🙂 \ud800"}
    echo(as_json(value, indent=None), flush=True)
    written = str(narrow.buffer.getvalue(), encoding)
    assert json.loads(written) == value and ("中" in written) == (encoding == "utf-8")


@pytest.mark.parametrize(
    ("out", "term", "no_color", "listed"),
    [
        (Screen, "xterm-256color", "", False),
        (io.TextIOWrapper, "xterm-256color", "", True),  # in `--spans > file` the colours are missing
        (Screen, "dumb", "", True),
        (Screen, "xterm-256color", "1", True),
    ],
)
def test_copied_parts_are_listed_where_no_colours_show_them(
    out: type[io.TextIOWrapper], term: str, no_color: str, listed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = on_screen(monkeypatch)
    monkeypatch.setattr(sys, "stdout", out(io.BytesIO(), encoding="utf-8"))
    monkeypatch.setenv("TERM", term)
    monkeypatch.setenv("NO_COLOR", no_color)
    piece = CopiedPiece(2, 5, TextPlace(0, 0, 3))
    print_coloured(Provenance("a cat", (SourceText("one", "reference", 0, "cat"),), (piece,)))
    assert "one" in screen.text and ("2-5 from 1, 0-3: cat" in screen.text) == listed


def test_errors_of_the_command_line_reach_a_terminal_as_text(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = on_screen(monkeypatch)
    assert main(["gec", "--\x1b[2Jdiff"]) == 2
    assert main(["gec", "--quiet", "no\x1b[2Jfile\u202e"]) == 3
    assert "\x1b" not in screen.text and "\u202e" not in screen.text and "␛[2Jfile" in screen.text


def test_the_commands_print_through_one_module() -> None:
    calls = []
    for path in CLI.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call):
                continue
            called = ast.unparse(node.func)
            is_direct = called in ("print", "typer.echo", "Console", "sys.stdout.write", "sys.stderr.write")
            if path.name != "printing.py" and (is_direct or called.startswith("sys.stdout.buffer")):
                calls.append(f"{path.name}:{node.lineno}: {called}")
    assert calls == []


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("gec --html a.txt a.txt", "--html 'a.txt' would replace an input; name another file"),
        ("gec --edits b.txt .", "--edits 'b.txt' would replace an input"),
        ("gec --edits p --html ./p a.txt", "--html 'p' would replace --edits"),
        ("gec --m2 p -o p a.txt", "--m2 'p' would replace --output"),
        ("gec --words a.txt -o a.txt b.txt", "--output 'a.txt' would replace an input"),
        ("generate -f a.txt --html a.txt", "--html 'a.txt' would replace an input"),
        ("generate x -R a.txt --trace link.txt", "--trace 'link.txt' would replace an input"),
        ("compare -f a.txt --html a.txt", "--html 'a.txt' would replace an input"),
        ("trace a.txt --html a.txt", "--html 'a.txt' would replace an input"),
    ],
)
def test_no_output_replaces_an_input_or_another_output(
    command: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in "ab":
        (tmp_path / f"{name}.txt").write_text("He go.\n")
    (tmp_path / "link.txt").symlink_to("a.txt")
    monkeypatch.chdir(tmp_path)
    assert main(command.split()) == 2
    assert message in capsys.readouterr().err and (tmp_path / "a.txt").read_text() == "He go.\n"


def test_streams_that_are_closed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    assert main(["gec", "-q", "-"]) == 0
    sys.stdin.close()
    monkeypatch.setattr(sys, "stdout", None)
    assert main(["models"]) == 3
    assert "Bad file descriptor" in capsys.readouterr().err
    with contextlib.suppress(OSError):
        sys.stdout.close()
    monkeypatch.setattr(sys, "stderr", None)
    assert main(["nonsense"]) == 2
    sys.stderr.close()


def _models(stdout: IO[str], *options: str) -> subprocess.CompletedProcess[str]:
    """Run the command with a buffered stdout, whose last flush is the interpreter's."""
    command = [sys.executable, "-m", "copyspec", *options, "models"]
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    return subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, text=True, check=False, env=buffered)


@pytest.mark.parametrize("options", [[], ["-v"], ["--help"]])
def test_a_full_disk_is_one_error(options: list[str]) -> None:
    with open("/dev/full", "w") as full:
        done = _models(full, *options)
    assert done.returncode == 3 and done.stderr.count("stdout cannot be written: No space left on device") == 1
    assert "Exception ignored" not in done.stderr


def test_a_full_disk_is_an_error_of_stdout_in_rich_output_too() -> None:
    with open("/dev/full", "w") as full, pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdout", full)
        with pytest.raises(StdoutError, match="stdout cannot be written: No space left on device"):
            console().print("text")
        with pytest.raises(OSError, match="No space left"):
            full.flush()
        patch.undo()
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, full.fileno())
        os.close(null)


def test_a_reader_that_has_gone_is_a_failure() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "w") as pipe:
        done = _models(pipe)
    assert done.returncode == 141 and "Exception ignored" not in done.stderr


def test_a_console_escapes_what_its_stream_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    narrow = io.TextIOWrapper(io.BytesIO(), encoding="latin-1")
    monkeypatch.setattr(sys, "stdout", narrow)
    console().print("é \u2588")
    narrow.flush()
    assert narrow.buffer.getvalue() == b"\xe9 \\u2588\n"


def test_lines_of_a_pipe_are_utf8(monkeypatch: pytest.MonkeyPatch) -> None:
    piped = io.TextIOWrapper(io.BytesIO("né\r\n\nlast".encode() + b"\n a\xff\n"), encoding="latin-1")
    monkeypatch.setattr(sys, "stdin", piped)
    assert [read_line() for _ in range(3)] == ["né", "", "last"]
    with pytest.raises(UsageError, match=r"stdin: not UTF-8 \(byte 2\); convert it first"):
        read_line()
    assert read_line() is None
