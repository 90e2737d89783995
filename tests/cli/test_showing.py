"""`--html`, `--spans` and `--watch`: the same text, with the sources of its parts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from copyspec.cli import main
from copyspec.models.loading import BUNDLED

pytestmark = [
    pytest.mark.skipif(not (BUNDLED / "config.json").exists(), reason="the bundled model is not in this checkout"),
    pytest.mark.usefixtures("steady_drafts"),
]
EDITED = "we has time."
COMMAND = ["generate", f"Correct the grammar: {EDITED}", "--edit", EDITED, "--max-new-tokens", "20"]


def test_the_same_text_is_shown_in_every_way(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(COMMAND) == 0
    plain = capsys.readouterr().out
    assert main([*COMMAND, "--spans"]) == 0
    shown = capsys.readouterr()
    assert shown.out == plain and "edit_source" in shown.err and "\x1b" not in shown.out + shown.err
    assert main([*COMMAND, "--watch"]) == 0
    assert capsys.readouterr().out == plain
    page = tmp_path / "page.html"
    assert main([*COMMAND, "--html", str(page)]) == 0
    assert capsys.readouterr().out == plain
    assert "edit_source" in page.read_text(encoding="utf-8")
    assert main([*COMMAND, "--html", "-"]) == 0
    assert capsys.readouterr().out.startswith("<!DOCTYPE html>")
    assert main([*COMMAND, "--stream"]) == 0
    assert capsys.readouterr().out == plain
    assert main([*COMMAND, "--compare"]) == 0
    assert capsys.readouterr().out.startswith(plain)
    assert main([*COMMAND, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["text"] + "\n" == plain and not plain[0].isspace(), "the space before it is the chat template's"
    copied = [span for span in report["spans"] if span["place"]["source"] == "edit_source"]
    for span in copied:
        source = EDITED[span["place"]["start_char"] : span["place"]["end_char"]]
        assert report["text"][span["start_char"] : span["end_char"]].strip() == source.strip()
    assert copied


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--spans", "--json"], "--json and --spans show the output in two ways"),
        (["--spans", "--stream"], "--spans prints at the end"),
        (["--html", "-", "--spans"], "--html - writes the page to stdout"),
        (["--html", "no/such/folder/page.html"], "no folder 'no/such/folder'"),
        (["--html", "."], "is a folder"),
    ],
)
def test_wrong_ways_are_told_before_the_model_runs(
    options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*COMMAND, *options]) == 2
    assert message in capsys.readouterr().err
