"""The drafting options of the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.drafters.test_heads import write
from tests.helpers.commands import run
from tests.helpers.texts import byte_level, llama

LENGTH = ["--max-new-tokens", "16"]


pytestmark = pytest.mark.usefixtures("named_model")


def test_a_draft_model_changes_no_output(capsys: pytest.CaptureFixture[str], steady_drafts: None) -> None:
    plain = run(capsys, "generate", "the cat", "--drafter", "none", "--json", *LENGTH)
    for model in ("layers:1",):
        code, out, _ = run(capsys, "generate", "the cat", "--draft-model", model, "--json", *LENGTH)
        drafted = json.loads(out)
        assert code == 0 and drafted["text"] == json.loads(plain[1])["text"]
    assert drafted["stats"]["decisions"]
    several = ["--draft-model", "layers:1", "--draft-model", "layers:1", "--drafter", "model"]
    assert json.loads(run(capsys, "generate", "the cat", *several, "--json", *LENGTH)[1])["text"] == drafted["text"]


def test_a_datastore_changes_no_output(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steady_drafts: None
) -> None:
    monkeypatch.setenv("COPYSPEC_CORPORA", str(tmp_path / "corpora"))
    plain = run(capsys, "generate", "the cat", *LENGTH)
    (tmp_path / "said.txt").write_text("the cat" + plain[1], encoding="utf-8")
    assert run(capsys, "index", "add", "said", str(tmp_path / "said.txt"), "--kind", "tokens")[0] == 0
    assert run(capsys, "index", "add", "words", str(tmp_path / "said.txt"))[0] == 0
    for datastore in ("said", str(tmp_path / "corpora" / "said")):
        code, out, err = run(capsys, "generate", "the cat", "--datastore", datastore, "--stats", *LENGTH)
        assert (code, out) == plain[:2] and "from datastore" in err
    for wrong, status, message in (("nowhere", 2, "--datastore 'nowhere' is neither"), ("words", 3, "not 'tokens'")):
        code, out, err = run(capsys, "generate", "the cat", "--datastore", wrong, *LENGTH)
        assert (code, out) == (status, "") and message in err and len(err.splitlines()) == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--draft-model", "layers:no"], "layers:2"),
        (["--drafter", "modell"], "'auto', 'copy', 'model', 'none'"),
        (["--drafter", "model"], "--draft-model"),
    ],
)
def test_wrong_options_say_what_is_meant(capsys: pytest.CaptureFixture[str], options: list[str], message: str) -> None:
    code, out, err = run(capsys, "generate", "the cat", *options, *LENGTH)
    assert (code, out) == (2, "") and message in err and len(err.splitlines()) == 1


def test_files_are_corrected_with_a_draft_model(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, steady_drafts: None
) -> None:
    file = tmp_path / "text.txt"
    file.write_text("the cat sat on the mat.\n", encoding="utf-8")
    heads = write(tmp_path / "heads", llama(len(byte_level())))
    options = ["--max-new-tokens", "24", "--instruction", "Fix: {text}"]
    for command in ("gec", "edit"):
        alone = run(capsys, command, str(file), *options)
        assert alone[0] != 2
        for drafts in ("layers:1", f"heads:{heads}"):
            assert run(capsys, command, str(file), *options, "--draft-model", drafts)[:2] == alone[:2], drafts
