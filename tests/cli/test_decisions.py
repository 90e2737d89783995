"""Corrections reviewed on an HTML page, and applied later from the decisions that it saved."""

from __future__ import annotations

import json
import re
from contextlib import ExitStack
from pathlib import Path
from time import process_time
from typing import Any

import pytest

from copyspec.cli.reports import PageWriter
from copyspec.pipelines import Done, Edit, FileReport, FunctionCorrector, Part, Segment, Summary, format_of
from copyspec.pipelines.editing.decisions import _checked as checked
from copyspec.pipelines.editing.journal import fingerprint_of
from tests.helpers.commands import run_binary

TEXT = "# A note\r\n\r\nThe childrens <b>came</b> to see the boat.\r\n\r\nThe childrens `childrens` went home.\r\n"


@pytest.fixture
def decisions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]) -> Any:
    """The decisions that the page of two files saves when every change is accepted."""
    monkeypatch.chdir(tmp_path)
    Path("a.md").write_bytes(TEXT.encode())
    Path("b.txt").write_text("</script> The childrens came to see the boat.\n")
    return saved(capfdbinary, "a.md", "b.txt")


def saved(capfdbinary: pytest.CaptureFixture[bytes], *files: str) -> Any:
    code, _, err = run_binary(capfdbinary, "gec", *files, "--check", "--html", "page.html")
    assert code == 1, err
    page = Path("page.html").read_text(encoding="utf-8")
    match = re.search(r'<script type="application/json" id="decisions">(.*?)</script>', page, re.DOTALL)
    assert match is not None and page.count("<script") == 2
    return json.loads(match[1])


def apply(capfdbinary: pytest.CaptureFixture[bytes], data: object, *options: str) -> tuple[int, bytes, str]:
    Path("decisions.json").write_text(data if isinstance(data, str) else json.dumps(data))
    return run_binary(capfdbinary, "gec", "--apply", "decisions.json", *options)


def test_what_was_taken_is_made_and_nothing_else(decisions: Any, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    (first, second), (other,) = (file["edits"] for file in decisions["files"])
    assert [edit["orig"] for edit in (first, second, other)] == ["childrens"] * 3
    first["accept"] = False
    Path("c.txt").write_text("The childrens\n")
    code, out, _ = apply(capfdbinary, decisions, "a.md", "c.txt", "-i")
    assert (code, out) == (0, b"")
    assert Path("a.md").read_bytes() == TEXT.replace("The childrens `", "The children `").encode()
    assert "childrens" in Path("b.txt").read_text()  # not named on the command line
    code, out, err = apply(capfdbinary, decisions, "a.md", "b.txt", "-i")
    assert code == 3 and "a.md: the file has changed since" in err
    assert Path("b.txt").read_text() == "</script> The children came to see the boat.\n"
    assert not list(Path().glob("*copyspec*"))


def test_files_of_the_same_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    monkeypatch.chdir(tmp_path)
    files = [f"{name}/a.txt" for name in ("one", "two", "three")]
    for file in files:
        Path(file).parent.mkdir()
        Path(file).write_text("The childrens came to see the boat.\n")
    Path(files[2]).write_text("The boat came.\n")
    decided = saved(capfdbinary, *files)
    assert [len(file["edits"]) for file in decided["files"]] == [1, 1, 0]
    code, _, err = apply(capfdbinary, decided, *files, "-i")
    assert code == 0, err
    assert [Path(file).read_text()[:12] for file in files] == ["The children", "The children", "The boat cam"]
    for file in files[:2]:
        Path(file).write_text("The childrens came to see the boat.\n")
    decided["files"][0]["edits"][0]["accept"] = False
    code, _, err = apply(capfdbinary, decided, *files, "-i")
    assert code == 3 and "several files of this name and content with other edits each: make a page for each" in err
    assert "childrens" in Path(files[0]).read_text() and "childrens" in Path(files[1]).read_text()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"orig": "children"}, "where it does not occur"),
        ({"start": -1}, "where it does not occur"),
        ({"corr": "x\x1b"}, "which is not text"),
        ({"corr": "<script>"}, "markup"),
        ({"part": 99}, "that the file does not have"),
        ({"start": "1"}, "is not a decisions file"),
        ({"accept": 1}, "is not a decisions file"),
    ],
)
def test_decisions_of_somebody_else(
    decisions: Any, capfdbinary: pytest.CaptureFixture[bytes], change: dict[str, Any], says: str
) -> None:
    first = decisions["files"][0]["edits"][0]
    first |= change
    code, _, err = apply(capfdbinary, decisions, "a.md", "-i")
    assert code in (2, 3) and Path("a.md").read_bytes() == TEXT.encode()
    assert says in err, err


def test_files_that_hold_no_decisions(decisions: Any, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    for data in ("", "[]", "{}", '{"copyspec-decisions": 2, "files": []}', '{"copyspec-decisions": 1}', "[" * 100_000):
        code, out, err = apply(capfdbinary, data, "a.md", "-i")
        assert (code, out) == (2, b"") and "is not a decisions file" in err
    code_block = decisions["files"][0]
    code_block["edits"] = [{"part": 0, "start": 0, "end": 1, "orig": "#", "corr": "##", "accept": True}]
    code, _, err = apply(capfdbinary, decisions, "a.md", "-i")
    assert code == 3 and "that is not prose" in err and Path("a.md").read_bytes() == TEXT.encode()


def test_a_file_that_fails_leaves_nothing_on_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = ["a.txt", "b.txt"]
    form = format_of("a.txt")
    for name in names:
        Path(name).write_text(f"In {name}, teh boat.\n")
    with ExitStack() as files:
        page = PageWriter(Path("page.html"), names, files, with_decisions=True)
        for name in names:
            with open(name, "rb") as stream:
                for part in form.read(stream):
                    page.part(name, form, Done(None, part, edits=[Edit(10, 13, "the")]))  # type: ignore[arg-type]
            error = OSError("the disk is gone") if name == "a.txt" else None
            page.end(FileReport(name, Summary(files_changed=int(error is None)), error))
    html = Path("page.html").read_text(encoding="utf-8")
    match = re.search(r'<script type="application/json" id="decisions">(.*?)</script>', html, re.DOTALL)
    assert match is not None and "In a.txt" not in html and "In b.txt" in html
    (only,) = json.loads(match[1])["files"]
    assert only["name"] == "b.txt" and [edit["part"] for edit in only["edits"]] == [0]


def test_many_decisions_on_one_part_take_no_longer_each() -> None:
    """A Word file is one part; a file of decisions may come from anybody."""
    words = ["word "] * 40_000
    segments = [Segment(start, start + 100, protected=[(start + 5, start + 9)] * 2) for start in range(0, 200_000, 100)]
    part = Part("".join(words), segments)
    decided = [(Edit(start, start, "x"), "") for start in range(0, 200_000, 10)]
    begun = process_time()
    assert len(checked(part, decided)) == len(decided)
    assert process_time() - begun < 2
    for wrong in (Edit(107, 107, "x"), Edit(199_999, 200_001, "x")):
        with pytest.raises(ValueError, match=r"protected|does not occur"):
            checked(part, [(wrong, part.text[wrong.start : wrong.end])])


@pytest.mark.parametrize("happens", ["saved", "deleted"])
def test_a_file_that_changes_during_the_run(
    happens: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """The decisions are about what was read."""
    monkeypatch.chdir(tmp_path)
    text, other = "We came to teh house in the evening.\n", "We left teh house in the morning.\n"
    Path("a.txt").write_text(text)
    Path("b.txt").write_text(other)

    def correct(text: str) -> str:
        if "evening" in text and happens == "saved":
            Path("a.txt").write_text(f"It is late. {text}\n")
        elif "evening" in text:
            Path("a.txt").unlink()
        return text.replace("teh", "the")

    monkeypatch.setattr("copyspec.cli.gec.corrector_of", lambda *_: FunctionCorrector(correct))
    data = saved(capfdbinary, "a.txt", "b.txt")
    assert [file["digest"] for file in data["files"]] == [fingerprint_of(content.encode()) for content in (text, other)]
    if happens == "saved":
        now = Path("a.txt").read_bytes()
        code, _, err = apply(capfdbinary, data, "a.txt", "b.txt", "-i")
        assert code == 3 and "a.txt: the file has changed since" in err and Path("a.txt").read_bytes() == now
        assert Path("b.txt").read_text() == other.replace("teh", "the")
