"""The benchmark beside other work."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.speed import busy
from copyspec.engine.logits.language import Language


@pytest.fixture(autouse=True)
def _no_ngrams(monkeypatch: pytest.MonkeyPatch) -> None:
    """They would take a third of a second per engine, and do not matter here."""
    monkeypatch.setattr(Language, "ngrams", None)


def test_the_benchmark_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = ["--rounds", "1", "--calls", "1", "--tokens", "4", "--threads", "1"]
    assert busy.main([*small, "--json", str(tmp_path / "busy.json")]) in (0, 1)  # depends on how busy this machine is
    assert "| measured (1) |" in capsys.readouterr().out
    assert (tmp_path / "busy.json").read_text().startswith("{")
