"""`copyspec gec` where something is wrong around the files: redirected stdout, outputs, names, signals."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from copyspec.pipelines import FunctionCorrector
from copyspec.pipelines.editing.journal import SUFFIX
from tests.helpers.commands import run_binary

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(autouse=True)
def stub(monkeypatch: pytest.MonkeyPatch) -> None:
    """Correct known words without loading a model."""
    corrector = FunctionCorrector(lambda text: text.replace("teh", "the"), name="known words")
    monkeypatch.setattr("copyspec.cli.gec.corrector_of", lambda *_: corrector)


@pytest.mark.parametrize("command", [["gec"], ["gec", "--diff"], ["edit", "--whole", "--instruction", "Fix: {text}"]])
def test_a_file_that_stdout_is_redirected_into_is_not_read(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """A run that appended to its own input would go on until the disk is full."""
    file = tmp_path / "a.txt"
    file.write_bytes(b"teh end\n" * 100_000)
    with file.open("ab") as out, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", os.fdopen(os.dup(out.fileno()), "w"))
        code, _, err = run_binary(capfdbinary, *command, tmp_path / "." / "a.txt")
        sys.stdout.close()
    assert code == 2 and "a.txt" in err and "is read, and stdout is redirected into it" in err
    assert file.read_bytes() == b"teh end\n" * 100_000


def test_errors_of_an_output_name_the_output(tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    file, link, loop = tmp_path / "a.txt", tmp_path / "link", tmp_path / "loop"
    file.write_bytes(b"teh end\n")
    link.symlink_to("nowhere")
    loop.symlink_to("loop")
    for out in (link, loop):
        code, _, err = run_binary(capfdbinary, "gec", file, "-o", out)
        assert code == 2 and f"copyspec: --output '{out}': the symbolic link leads to no file" in err
        code, _, err = run_binary(capfdbinary, "gec", "-i", out)
        assert code == 3 and f"copyspec: {out}: the symbolic link leads to no file" in err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.txt", "link", "loop"]


def test_a_folder_that_takes_no_file_is_named_and_no_temporary_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    def refuse(**options: object) -> tuple[int, str]:
        raise PermissionError(13, "Permission denied", f"{options['dir']}/{options['prefix']}x.tmp")

    monkeypatch.setattr("tempfile.mkstemp", refuse)
    file, page = tmp_path / "a.txt", tmp_path / "page.html"
    file.write_bytes(b"teh end\n")
    for option in ("--html", "-o"):
        code, _, err = run_binary(capfdbinary, "gec", "-q", file, option, page)
        assert code == 2
        assert str(page) in err and f"no file can be made in the folder '{tmp_path}' (Permission denied)" in err
        assert ".tmp" not in err
    assert file.read_bytes() == b"teh end\n"


def test_an_empty_name_and_missing_decisions_are_named(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    code, _, err = run_binary(capfdbinary, "gec", "")
    assert code == 3 and "copyspec: '': No such file" in err
    code, _, err = run_binary(capfdbinary, "gec", "such")
    assert code == 3 and "copyspec: such: No such file" in err
    file = tmp_path / "a.txt"
    file.write_bytes(b"teh end\n")
    code, _, err = run_binary(capfdbinary, "gec", "-i", file, "--apply", tmp_path / "none.json")
    assert code == 2 and f"--apply '{tmp_path / 'none.json'}': no such file" in err


def test_an_encoding_that_loses_bytes_is_refused(tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    file = tmp_path / "a.txt"
    file.write_bytes(b"teh end\n")
    for encoding in ("idna", "punycode"):
        code, _, err = run_binary(capfdbinary, "gec", file, "--encoding", encoding)
        assert code == 2 and f"encoding '{encoding}'" in err and "convert the file to UTF-8" in err
    for encoding in ("cp1252", "shift_jis", "gb18030", "koi8-r"):
        assert run_binary(capfdbinary, "gec", file, "--encoding", encoding)[:2] == (0, b"the end\n")


@pytest.mark.parametrize("looking", [["--check"], ["--diff"], ["--list", "text"]])
def test_what_was_not_read_is_not_called_right(
    looking: list[str], tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    file = tmp_path / "a.txt"
    file.write_bytes("He is in teh café.\n".encode("latin-1"))
    for quiet in ([], ["-q"]):
        code, out, err = run_binary(capfdbinary, "gec", *looking, *quiet, file)
        assert (code, out) == (3, b"")
        assert (
            err.count(f"{file} holds the byte 0xe9, which is not UTF-8: name its encoding (--encoding 'cp1252')") == 1
        )
    assert run_binary(capfdbinary, "gec", *looking, "-q", "--encoding", "latin-1", file)[::2] == (1, "")
    file.write_bytes(b"teh end\n\ncaf\xe9\n")
    assert run_binary(capfdbinary, "gec", *looking, file)[0] == 3
    assert run_binary(capfdbinary, "gec", "-i", "-q", file) == (0, b"", "")
    assert file.read_bytes() == b"the end\n\ncaf\xe9\n"


@pytest.mark.parametrize("options", [["--check"], ["--check", "-q"], ["-i"], ["-q"]])
def test_a_folder_that_may_not_be_read_fails_the_run(
    options: list[str], tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "closed").mkdir()
    scandir = os.scandir

    def refusing(path: str) -> object:
        if str(path).endswith("closed"):
            raise PermissionError(13, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refusing)
    for text in (None, "the end\n", "teh end\n"):
        if text is not None:
            (tmp_path / "a.txt").write_text(text)
        code, _, err = run_binary(capfdbinary, "gec", *options, tmp_path)
        assert code == 3 and f"{tmp_path / 'closed'}{os.sep}: this folder cannot be read" in err
    assert (tmp_path / "a.txt").read_text() == ("the end\n" if "-i" in options else "teh end\n")


def test_what_the_encoding_lacks_stays_out_and_the_rest_is_written(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(dont: str) -> None:
        corrector = FunctionCorrector(lambda text: text.replace("dont", dont).replace("teh", "the"), name="words")
        monkeypatch.setattr("copyspec.cli.gec.corrector_of", lambda *_: corrector)

    file = tmp_path / "a.txt"
    file.write_bytes("We dont see teh café.\n".encode("latin-1"))
    write("don’t")
    code, _, err = run_binary(capfdbinary, "gec", "-i", "--encoding", "latin-1", file)
    assert code == 0 and "edits left out: 1 characters" in err
    assert file.read_bytes() == "We dont see the café.\n".encode("latin-1")
    write("do not")
    monkeypatch.setattr("sys.stdin", io.StringIO("e\ndon’t\ne\ndon\x1b[D't\ne\ndon't\n"))
    code, out, _ = run_binary(capfdbinary, "gec", "-p", "--encoding", "latin-1", file)
    assert code == 0 and out.count(b"This cannot be written") == 2
    assert file.read_bytes() == "We don't see the café.\n".encode("latin-1")


@pytest.mark.skipif(sys.platform != "linux", reason="other systems refuse names that are not text")
def test_names_are_listed_byte_for_byte(tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    name = os.fsencode(tmp_path) + b"/caf\xe9.txt"
    Path(os.fsdecode(name)).write_bytes(b"teh end\n")
    listed = b": 'teh' -> 'the' (replace)\n"
    assert run_binary(capfdbinary, "gec", "--list", "text", os.fsdecode(name))[1] == name + b":1:1" + listed
    assert run_binary(capfdbinary, "gec", "--list", "github", os.fsdecode(name))[1].startswith(
        b"::warning file=" + name + b",line=1,"
    )
    assert run_binary(capfdbinary, "gec", "--check", "-q", os.fsdecode(name))[1] == name + b"\n"


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="Windows has no such signals")
@pytest.mark.parametrize("number", ["SIGTERM", "SIGHUP"])
def test_a_signal_leaves_only_the_journal(number: str, tmp_path: Path) -> None:
    """As Ctrl-C does; the parent sees that the signal ended the process."""
    program = f"""
        import signal, sys
        import copyspec.cli.gec as gec
        from copyspec.cli import main
        from copyspec.pipelines import FunctionCorrector
        def correct(text):
            if "sea" in text:
                signal.raise_signal(signal.{number})
            return text.replace("teh", "the")
        gec.corrector_of = lambda *_: FunctionCorrector(correct, name="words")
        signal.signal(signal.{number}, signal.SIG_DFL)  # under nohup, the tests' own processes ignore it
        sys.exit(main(["gec", "-i", "a.txt", "--edits", "edits"]))
    """
    file = tmp_path / "a.txt"
    file.write_bytes(b"teh end\n\nteh sea\n" + b"\nmore of it\n" * 20)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", textwrap.dedent(program)]
    ended = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert ended.returncode == -getattr(signal, number), ended.stderr
    assert "--resume continues" in ended.stderr and "Traceback" not in ended.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.txt", f"a.txt{SUFFIX}"]
