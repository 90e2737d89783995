"""Runs the command line in this process."""

from __future__ import annotations

import pytest

from copyspec.cli import main


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Return exit code, stdout and stderr."""
    code = main(list(arguments))
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def run_binary(capfdbinary: pytest.CaptureFixture[bytes], *arguments: object) -> tuple[int, bytes, str]:
    """As `run`, for output that need not be text."""
    code = main([str(argument) for argument in arguments])
    out, err = capfdbinary.readouterr()
    return code, out, err.decode()
