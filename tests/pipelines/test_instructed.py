"""Editing by instruction: the model's prompt, how its answer is used, and what is refused."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

import copyspec
from copyspec.cli import main
from copyspec.engine.results import Result, Stats
from copyspec.models.loading import BUNDLED
from copyspec.pipelines import EditOptions, EditPipeline, FormatError, decoded_text
from tests.helpers.texts import new_engine
from tests.helpers.tiny import tiny_engine

CODE = "def f(x):\n    return x + 1\n\n\nprint(f(2))\n"


class Answer:
    """An engine that gives the answers in order and records its prompts."""

    def __init__(self, engine: copyspec.Engine, monkeypatch: pytest.MonkeyPatch) -> None:
        self.engine, self.asked, self.texts = engine, list[copyspec.Input](), list[Result | None]()
        monkeypatch.setattr(engine, "generate_each", self.generate_each)

    def will(self, text: str | None, finish: str = "stop") -> None:
        result = None if text is None else Result(text, (1, 2), finish, None, prompt_tokens=3, stats=Stats())  # type: ignore[arg-type]
        self.texts.append(result)

    def generate_each(self, inputs: Iterable[copyspec.Input], **options: object) -> Iterator[tuple[int, Result | None]]:
        for index, input_ in enumerate(inputs):
            self.asked.append(input_)
            yield index, self.texts.pop(0)


@pytest.fixture
def answer(monkeypatch: pytest.MonkeyPatch) -> Answer:
    return Answer(tiny_engine(), monkeypatch)


def test_the_file_is_the_text_being_edited(answer: Answer) -> None:
    answer.will(CODE.strip().replace("f", "g"))
    edited = EditPipeline(answer.engine)("\ufeff\r\n" + CODE.replace("\n", "\r\n"), "Rename f to g")
    assert edited.text == "\ufeff\r\n" + CODE.replace("f", "g").replace("\n", "\r\n") and edited.changed
    (asked,) = answer.asked
    assert asked.edit_source == CODE.strip() and asked.prompt == f"Rename f to g\n\n{CODE.strip()}"
    assert asked.max_new_tokens is not None and asked.max_new_tokens > len(CODE)
    answer.will(CODE)
    assert not EditPipeline(answer.engine)(CODE, "Keep {text}, all of it").changed
    assert answer.asked[1].prompt == f"Keep {CODE.strip()}, all of it"


def test_wrappers_come_off_and_diffs_are_made(answer: Answer) -> None:
    answer.will(f"Sure! Here is the code:\n\n```python\n{CODE.replace('+ 1', '+ 2')}```\n\nI changed one line.")
    edited = EditPipeline(answer.engine)(CODE, "Add two")
    assert edited.text == CODE.replace("+ 1", "+ 2")
    diff = "".join(edited.diff("f.py"))
    assert diff.startswith("--- a/f.py\n+++ b/f.py\n") and "-    return x + 1\n+    return x + 2\n" in diff
    answer.will("```\nx\n```")
    unstripped = EditPipeline(answer.engine, EditOptions(strip_wrappers=False))(CODE, "Add two")
    assert unstripped.text == "```\nx\n```\n"


@pytest.mark.parametrize(
    ("text", "finish", "reason"), [("half", "length", "cut"), (None, "stop", "length"), (" \n", "stop", "empty")]
)
def test_what_cannot_be_used_leaves_the_text(answer: Answer, text: str | None, finish: str, reason: str) -> None:
    answer.will(text, finish)
    edited = EditPipeline(answer.engine)(CODE, "Do it")
    assert edited.text == CODE and not edited.changed and edited.refusal is not None
    assert edited.refusal.reason == reason


def test_a_limit_on_changed_lines(answer: Answer) -> None:
    for ratio, changed in ((0.2, True), (0.1, False)):
        answer.will(CODE.replace("+ 1", "+ 2"))
        edited = EditPipeline(answer.engine, EditOptions(max_edit_ratio=ratio))(CODE, "Add two")
        assert edited.changed is changed
    assert edited.refusal is not None
    assert edited.refusal.detail == "1 of 5 lines would change, above the limit of 10 % (max_edit_ratio)"


FILES = {
    "a.json": '{"cells": [{"text": "They was here."}, 3], "kind": "x"}',
    "a.ipynb": '{"cells": [{"cell_type": "code", "source": ["x = 1"]}], "nbformat": 4}',
    "a.py": "def f(x):\n    return [x, (1)]\n",
    "a.toml": '[a]\nb = ["c", {d = 1}]\n',
    "a.jsonl": '{"a": "They was"}\n{"b": [1]}\n',
}


@pytest.mark.parametrize("path", FILES)
def test_what_can_no_longer_be_parsed_is_refused(path: str, answer: Answer) -> None:
    """A bracket of the file is lost: one at a time."""
    if path.endswith("toml") and sys.version_info < (3, 11):
        pytest.skip("no parser")
    text = FILES[path]
    for at in [at for at, char in enumerate(text) if char in "()[]{}"]:
        cut = text[:at] + text[at + 1 :]
        answer.will(cut)
        edited = EditPipeline(answer.engine)(text, "Rename", path=path)
        assert edited.refusal is not None and edited.refusal.reason == "syntax" and edited.text == text, cut
        for options, name in ((EditOptions(syntax=False), path), (None, None), (None, "a.txt")):
            answer.will(cut)
            assert EditPipeline(answer.engine, options)(text, "Rename", path=name).text.strip() == cut.strip()
        answer.will(text)  # the old version could not be parsed
        assert EditPipeline(answer.engine)(cut, "Mend it", path=path).text.strip() == text.strip()


@pytest.mark.parametrize("begin", [b"PK\x03\x04", b"%PDF-1.7", b"\xd0\xcf\x11\xe0"])
def test_packed_documents_are_not_to_be_converted(begin: bytes) -> None:
    with pytest.raises(FormatError, match="a Word file, a PDF or an archive"):
        decoded_text(begin + bytes(range(256)))


def test_nothing_to_edit_asks_nothing(answer: Answer) -> None:
    pipeline = EditPipeline(answer.engine)
    assert pipeline(" \n", "Do it").text == " \n" and not answer.asked
    refused = pipeline("caf\udce9", "Do it")
    assert refused.refusal is not None and refused.refusal.reason == "encoding"
    with pytest.raises(ValueError, match="the instruction is empty"):
        pipeline(CODE, " ")
    with pytest.raises(ValueError, match="max_edit_ratio must be a number at least 0"):
        EditPipeline(answer.engine, EditOptions(max_edit_ratio=-1))


def test_edits_equal_plain_decoding() -> None:
    engine = new_engine()
    texts = []
    for drafts in (True, False):
        options = EditOptions(max_new_tokens=20, drafts=drafts)
        edited = EditPipeline(engine, options)("The cat sat on the mat.", "Correct")
        assert edited.result is not None
        texts.append(edited.result.token_ids)
    assert texts[0] == texts[1]


def test_files_that_are_no_text_are_named() -> None:
    assert decoded_text("\ufeffé\r\n".encode()) == "\ufeffé\r\n"
    for data, said in ((b"a\xff", "not UTF-8 .byte 1."), (b"\xff\xfea\0", "UTF-16"), (b"a\0b", "NUL")):
        with pytest.raises(FormatError, match=said):
            decoded_text(data)


def test_the_command_shows_a_diff_or_writes(
    answer: Answer, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("copyspec.cli.edit.pipeline_of", lambda *_: EditPipeline(answer.engine))
    file, missing = tmp_path / "f.py", tmp_path / "missing.py"
    file.write_text(CODE)
    new = CODE.replace("+ 1", "+ 2")

    def run(*options: str, finish: str = "stop", paths: tuple[Path, ...] = (file,)) -> tuple[int, bytes, bytes]:
        answer.will(new, finish)
        code = main(["edit", *map(str, paths), "--instruction", "Add two", *options])
        out, err = capfdbinary.readouterr()
        return code, out, err

    code, out, err = run()
    assert code == 1 and b"-    return x + 1\n+    return x + 2\n" in out and b"changed, 0 tokens" in err
    assert run("--diff") == (code, out, err)
    assert file.read_text() == CODE
    assert run("--whole", "-q") == (0, new.encode(), b"")
    assert run("--check", "-q") == (1, b"", b"")
    code, out, err = run(finish="length")
    assert code == 3 and out == b"" and b"is left unchanged: no end within 2 tokens" in err
    code, out, err = run("-i", "--backup", paths=(missing, file))
    assert code == 3 and out == b"" and b"missing.py: No such file or directory" in err
    assert file.read_text() == new and (tmp_path / "f.py.bak").read_text() == CODE


@pytest.mark.skipif(not (BUNDLED / "config.json").exists(), reason="the bundled model is not in this checkout")
def test_the_bundled_model_refuses_what_it_does_not_know(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pipeline = EditPipeline()
    for known in ("Correct the grammar: {text}", "correct  the grammar:", "Correct the grammar: "):
        pipeline.check(known)
    for unknown in ("Translate to French", "Correct the grammar: {text} Be brief.", "Correct the grammar in {text}"):
        with pytest.raises(
            ValueError, match=r"does not know the instruction .* it knows only 'Correct the grammar: \{text\}'"
        ):
            pipeline("He go.", unknown)
    (tmp_path / "a.txt").write_text("He go.\n", encoding="utf-8")
    assert main(["edit", str(tmp_path / "a.txt"), "--instruction", "Add two"]) == 2
    assert "does not know the instruction 'Add two'" in capsys.readouterr().err
