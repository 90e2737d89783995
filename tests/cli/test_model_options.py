"""`--adapter` and related options: every command that loads a model passes them on."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from copyspec import api
from copyspec.engine.engine import Engine
from copyspec.models.errors import LoadError
from copyspec.models.files import ADAPTER
from copyspec.models.loading import ModelChoice
from copyspec.text.codec import Codec, Encoded
from tests.helpers.commands import run
from tests.helpers.texts import engine

COMMANDS = {
    "generate": ["generate", "The cat"],
    "compare": ["compare", "The cat"],
    "chat": ["chat"],
    "gec": ["gec", "essay.txt"],
    "edit": ["edit", "essay.txt", "--instruction", "Fix"],
    "serve": ["serve", "--port", "0"],
    "rag": ["rag", "When did the cat sit?", "--index", "town", "--dir", "."],
}

Chosen = Callable[..., ModelChoice]


@pytest.fixture(params=COMMANDS)
def chosen(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Chosen:
    """Runs each command, with further options, and returns the choice that it gives to the loader."""
    if request.param == "serve":
        pytest.importorskip("fastapi")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "essay.txt").write_text("The cat sat on the mat. It were there since Monday.\n", encoding="utf-8")
    if request.param == "rag":
        assert run(capsys, "index", "add", "town", "essay.txt", "--dir", ".")[0] == 0
    seen: list[ModelChoice] = []

    def refuse(choice: ModelChoice) -> Engine:
        seen.append(choice)
        raise LoadError("nothing is loaded in this test")

    monkeypatch.setattr(api._STATE.registry, "engine", refuse)
    monkeypatch.setattr(api._STATE, "defaults", {})
    monkeypatch.setattr(api._STATE, "named_default", True)

    def chosen(*options: str) -> ModelChoice:
        code, _, err = run(capsys, *COMMANDS[request.param], *options)
        assert "nothing is loaded in this test" in err and code in (2, 3)
        return seen.pop()

    return chosen


def test_an_adapter_reaches_the_loader(chosen: Chosen) -> None:
    choice = chosen("-m", "base", "--adapter", "tuned", "--device", "cpu", "--dtype", "bf16")
    assert (choice.model, choice.adapter, choice.device, choice.dtype) == ("base", "tuned", "cpu", "bfloat16")


def test_an_adapter_alone_belongs_to_the_base_that_it_names(
    chosen: Chosen, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tuned").mkdir()
    (tmp_path / "tuned" / ADAPTER).write_text('{"base_model_name_or_path": "base"}')
    monkeypatch.setenv("COPYSPEC_MODEL", "base")
    choice = chosen("--adapter", "tuned")
    assert (choice.model, choice.adapter) == ("base", "tuned")
    monkeypatch.delenv("COPYSPEC_MODEL")
    choice = chosen("--adapter", "tuned", "--dtype", "bf16")
    assert (choice.model, choice.adapter, choice.dtype) == ("tuned", None, "bfloat16")
    assert chosen("--adapter", "nowhere").adapter == "nowhere", "what is no adapter is refused as one"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("{", "'{' is no JSON object"),
        ("[]", "got list: []"),
        ("3", "got int: 3"),
        ("", "is no JSON object"),
        ('{"messages": []}', "holds 'messages'"),
        ('{"a b": 1}', "holds 'a b'"),
        ('{"x": NaN}', "must be JSON data"),
        ("enable_thinking=false", "is no JSON object"),
    ],
)
@pytest.mark.parametrize("command", COMMANDS)
def test_variables_of_the_template_that_are_none(
    command: str, given: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(capsys, *COMMANDS[command], "--chat-template-kwargs", given)
    assert (code, out) == (2, "") and words in err and "--chat-template-kwargs" in err


def test_variables_of_the_template_reach_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Each command gives them to the engine, or to the call."""
    seen: list[object] = []

    def note(self: Codec, messages: object, tools: object = (), variables: Mapping[str, object] = {}) -> Encoded:
        seen.append({**self.chat_template_kwargs, **variables})
        return self.encode("The cat")

    tiny = engine()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(api._STATE.registry, "engine", lambda _: tiny)
    monkeypatch.setattr(api._STATE, "defaults", {})
    monkeypatch.setattr(Codec, "encode_chat", note)
    monkeypatch.setattr("sys.stdin", io.StringIO("The cat\n"))
    (tmp_path / "essay.txt").write_text("The cat sat on the mat. It were there since Monday.\n", encoding="utf-8")
    for command in (
        ["generate", "The cat", "--chat", "--max-new-tokens", "2"],
        ["compare", "The cat", "--chat", "--max-new-tokens", "2"],
        ["chat", "--max-new-tokens", "2"],
        ["edit", "essay.txt", "--instruction", "Fix", "--max-new-tokens", "2", "-m", "tiny"],
    ):
        seen.clear()
        run(capsys, *command, "--chat-template-kwargs", '{"enable_thinking": false}')
        assert seen and all(variables == {"enable_thinking": False} for variables in seen), command
    tiny.chat_template_kwargs = {}
