"""A sample of `tests.fuzz.hybrids`."""

from __future__ import annotations

import pytest
import torch

from copyspec.targets.recurrent import recurrences
from tests.fuzz import hybrids


@pytest.mark.parametrize("family", ["nemotron_h", "kimi_linear"])
def test_random_calls_are_equal(family: str) -> None:
    counts = hybrids.examine(family, 6, seed=1)
    assert counts["equal"] >= 6 and not counts["differs"] and counts["accepted"]


def test_wrong_states_are_found(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Of accepted nodes, which no test of a model at its loading sees."""
    memory = recurrences.Memory
    after = memory.__call__
    engines = hybrids.copyspec.Engine

    def spoiled(*arguments: object, **options: object) -> object:
        engine = engines(*arguments, **options)  # type: ignore[arg-type]
        engine.max_length  # noqa: B018  the model is tested
        monkeypatch.setattr(memory, "__call__", lambda written, token: torch.zeros_like(after(written, token)))
        return engine

    monkeypatch.setattr(hybrids.copyspec, "Engine", spoiled)
    assert hybrids.main(["--only", "nemotron_h", "--calls", "6"]) == 1
    assert "differs: {'repetition_penalty'" in capsys.readouterr().out
