"""The command line in this process: its exit code, and what it wrote."""

from __future__ import annotations

import pytest

from copyspec.cli import main


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr."""
    code = main(list(arguments))
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def run_binary(capfdbinary: pytest.CaptureFixture[bytes], *arguments: object) -> tuple[int, bytes, str]:
    """The same for output that need not be text."""
    code = main([str(argument) for argument in arguments])
    out, err = capfdbinary.readouterr()
    return code, out, err.decode()
