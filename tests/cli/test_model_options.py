"""`--adapter` and related options: every command that loads a model passes them on."""

from __future__ import annotations

from pathlib import Path

import pytest

from copyspec import api
from copyspec.engine.engine import Engine
from copyspec.models.errors import LoadError
from copyspec.models.loading import ModelChoice
from tests.helpers.commands import run

COMMANDS = {
    "generate": ["generate", "The cat"],
    "compare": ["compare", "The cat"],
    "chat": ["chat"],
    "gec": ["gec", "essay.txt"],
    "edit": ["edit", "essay.txt", "--instruction", "Fix"],
    "serve": ["serve", "--port", "0"],
    "rag": ["rag", "When did the cat sit?", "--index", "town", "--dir", "."],
}


@pytest.mark.parametrize("command", COMMANDS)
def test_an_adapter_reaches_the_loader(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if command == "serve":
        pytest.importorskip("fastapi")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "essay.txt").write_text("The cat sat on the mat. It were there since Monday.\n", encoding="utf-8")
    if command == "rag":
        assert run(capsys, "index", "add", "town", "essay.txt", "--dir", ".")[0] == 0
    seen: list[ModelChoice] = []

    def refuse(choice: ModelChoice) -> Engine:
        seen.append(choice)
        raise LoadError("nothing is loaded in this test")

    monkeypatch.setattr(api._STATE.registry, "engine", refuse)
    options = ["-m", "base", "--adapter", "tuned", "--device", "cpu", "--dtype", "bf16"]
    code, _, err = run(capsys, *COMMANDS[command], *options)
    assert "nothing is loaded in this test" in err and code in (2, 3)
    (choice,) = seen
    assert (choice.model, choice.adapter, choice.device, choice.dtype) == ("base", "tuned", "cpu", "bfloat16")
