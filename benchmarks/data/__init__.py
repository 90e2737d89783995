"""Texts that the benchmarks decode and correct."""

from __future__ import annotations

from pathlib import Path

DATA = Path(__file__).parent
SENTENCES = DATA / "sentences.txt"


def lines(file: str | Path = SENTENCES) -> list[str]:
    """Read a file with one text per line, without empty lines."""
    return [line.strip() for line in Path(file).read_text(encoding="utf-8").splitlines() if line.strip()]
