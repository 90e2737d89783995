"""`copyspec gec` where something is wrong around the files: redirected stdout, outputs, names, signals."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from copyspec.pipelines import FunctionCorrector
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
        code, _, told = run_binary(capfdbinary, *command, tmp_path / "." / "a.txt")
        sys.stdout.close()
    assert code == 2 and "a.txt" in told and "is read, and stdout is redirected into it" in told
    assert file.read_bytes() == b"teh end\n" * 100_000


def test_an_encoding_that_loses_bytes_is_refused(tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    file = tmp_path / "a.txt"
    file.write_bytes(b"teh end\n")
    for encoding in ("idna", "punycode"):
        code, _, told = run_binary(capfdbinary, "gec", file, "--encoding", encoding)
        assert code == 2 and f"encoding '{encoding}'" in told and "convert the file to UTF-8" in told
    for encoding in ("cp1252", "shift_jis", "gb18030", "koi8-r"):
        assert run_binary(capfdbinary, "gec", file, "--encoding", encoding)[:2] == (0, b"the end\n")
