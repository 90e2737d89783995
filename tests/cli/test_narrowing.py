"""Restricted runs: changed lines only, certain kinds of change, marks in files, changes confirmed one by one."""

from __future__ import annotations

import io
import random
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from copyspec.cli.common import UsageError
from copyspec.cli.git_changes import changed_lines
from copyspec.cli.narrowing import kinds_of
from copyspec.pipelines import (
    KINDS,
    ChangedLines,
    Edit,
    FileOptions,
    FunctionCorrector,
    GuardOptions,
    Kinds,
    Marks,
    Part,
    Runner,
    RunOptions,
    Segment,
    colored_diff,
    correct_files,
    unified_diff,
)
from copyspec.pipelines.editing.selection import Selection, kind_of
from tests.helpers.commands import run_binary

WRONG = "It is late.\nThe childrens came to see the boat.\n"
LOOSE = RunOptions(GuardOptions(allow_new_words=True, allow_swaps=True, any_language=True))


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def git(*arguments: str) -> None:
    """Run git in the current folder."""
    identity = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
    subprocess.run(["git", *identity, *arguments], check=True, capture_output=True)


def corrected(path: Path, *selections: Selection) -> str:
    """Return the file with every "teh" corrected that the run may change."""
    runner = Runner(FunctionCorrector(lambda text: text.replace("teh", "the")), LOOSE)
    (report,) = correct_files(runner, [path], FileOptions(in_place=True), selections=selections)
    assert report.error is None
    return path.read_bytes().decode()


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_only_changed_lines(folder: Path, end: str) -> None:
    lines = [f"This is teh line of number {number}, as you see." for number in range(1, 40)]
    path = folder / "a.txt"
    path.write_bytes(end.join(lines).encode())
    changed = {str(path): [range(1, 2), range(7, 9), range(39, 40)], "other": [range(1, 99)]}
    wanted = [line.replace("teh", "the") if n in (1, 7, 8, 39) else line for n, line in enumerate(lines, start=1)]
    assert corrected(path, ChangedLines(changed)) == end.join(wanted)


@pytest.mark.parametrize(
    ("name", "comment"),
    [
        ("a.md", "<!-- {} -->"),
        ("a.html", "<!-- {} -->"),
        ("a.rst", ".. {}"),
        ("a.tex", "% {}"),
        ("a.adoc", "// {}"),
        ("a.py", "# {}"),
        ("a.c", "// {}"),
        ("a.po", "# {}"),
        ("a.txt", "{}"),
    ],
)
def test_marks_in_every_format(folder: Path, name: str, comment: str) -> None:
    line = "We came to teh house in the evening."
    frames = {"a.py": "# {}", "a.c": "// {}", "a.po": 'msgid "x"\nmsgstr "{}"', "a.html": "<p>{}</p>"}
    text = frames.get(name, "{}").format(line) + "\n"
    off, on = comment.format("copyspec: off"), comment.format("copyspec: on")
    parts = [text, off, "", text, on, "", text]
    (folder / name).write_text("\n".join(parts))
    assert corrected(folder / name).count("the house") == 2
    right = text.replace("teh", "the")
    assert (folder / name).read_text() == "\n".join([right, *parts[1:6], right])
    if name == "a.txt":
        (folder / name).write_text(f"{line} copyspec: ignore\n\n{line}\n")
        assert corrected(folder / name).count("the house") == 1
    alone = [text, comment.format("copyspec: ignore"), *([] if name == "a.po" else [""]), text, text]
    (folder / name).write_text("\n".join(alone))
    corrected(folder / name)
    assert (folder / name).read_text() == "\n".join([right, *alone[1:-1], right])


def test_a_mark_alone_protects_the_next_line_in_whatever_pieces_a_file_comes() -> None:
    text = "He go.\n\n# copyspec: ignore\n\n\nHe go.\n\nHe go.\n\nHe go. # copyspec: ignore\n\nHe go.\n"
    places = [place for place in range(len(text)) if text.startswith("He go.", place)]
    ends = [at + 1 for at, char in enumerate(text) if char == "\n"]
    for cuts in ([], ends, *([end] for end in ends), *(random.Random(seed).sample(ends, 4) for seed in range(20))):
        marks, left, start = Marks(), list[int](), 0
        for end in dict.fromkeys([*sorted(cuts), len(text)]):
            own = [Segment(at - start, at - start + 6) for at in places if start <= at < end]
            left += [start + segment.start for segment in marks.part("a", Part(text[start:end], own)).segments]
            start = end
        assert left == [places[0], places[2], places[4]]


def test_further_marks_between_off_and_on_change_nothing() -> None:
    text = "copyspec: off\n\nHe go.\n\ncopyspec: ignore\n\nx y\n\ncopyspec: off\n\nHe go.\n\ncopyspec: on\n\nHe go.\n"
    places = [place for place in range(len(text)) if text.startswith("He go.", place)]
    part = Part(text, [Segment(place, place + 6) for place in places])
    assert [segment.start for segment in Marks().part("a", part).segments] == places[2:]


def test_a_selection_without_an_identity_is_known_by_its_class(folder: Path) -> None:
    class Nothing:
        def part(self, path: str, part: Part) -> Part:
            return part

        def edits(self, path: str, part: Part, edits: Sequence[Edit]) -> Sequence[Edit]:
            return []

    (folder / "a.txt").write_text("We saw teh boat.\n")
    assert corrected(folder / "a.txt", Nothing()) == "We saw teh boat.\n"  # type: ignore[arg-type]


def test_kinds_of_change() -> None:
    pairs = {("a  b", "a b"): "spacing", ("he", "He"): "case", ("its", "it's"): "punctuation", ("", "a "): "insert"}
    pairs |= {
        ("the ", ""): "delete",
        ("childrens", "children"): "replace",
        ("", ","): "punctuation",
        ("", " "): "spacing",
    }
    for (before, after), kind in pairs.items():
        assert kind_of(before, after) == kind
        edit = Edit(0, len(before), after)
        assert Kinds({kind}).edits("a", Part(before), [edit]) == [edit]
        assert Kinds({*KINDS} - {kind}).edits("a", Part(before), [edit]) == []
    assert kinds_of("-case, -spacing") == {"punctuation", "insert", "delete", "replace"} and kinds_of("case") == {
        "case"
    }
    for wrong in ("cases", "case,-insert"):
        with pytest.raises(UsageError, match="--kinds"):
            kinds_of(wrong)
    with pytest.raises(ValueError, match="kinds has 'spelling', which is not one of spacing, case, punctuation"):
        Kinds({"case", "spelling"})
    with pytest.raises(TypeError, match="kinds must be a list of kinds of changes; got str: 'case'"):
        Kinds("case")


def test_lines_that_changed_since_a_revision(folder: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    git("init", "-q")
    (folder / "a b.txt").write_text(WRONG)
    (folder / "same.txt").write_text(WRONG)
    git("add", ".")
    git("commit", "-qm", "first")
    (folder / "a b.txt").write_text(WRONG + "The childrens went home.\n")
    (folder / "new.txt").write_text(WRONG)
    code, out, _ = run_binary(capfdbinary, "gec", "a b.txt", "same.txt", "new.txt", "--since", "HEAD", "--list", "text")
    assert code == 1
    assert [line.split(b":")[:2] for line in out.splitlines()] == [[b"a b.txt", b"3"], [b"new.txt", b"2"]]
    for paths, revision, says in (
        (["same.txt"], "nothing", "no revision there"),
        (["same.txt"], "--output=x", "is not a revision"),
        (["-"], "HEAD", "standard input"),
    ):
        with pytest.raises(UsageError, match=says):
            changed_lines(paths, revision)
    for paths in (["same.txt"], ["same.txt", "-o", "out.txt"]):
        assert run_binary(capfdbinary, "gec", *paths, "--since", "HEAD")[:2] == (
            0,
            b"" if "-o" in paths else WRONG.encode(),
        )
    assert (folder / "out.txt").read_text() == WRONG
    git("config", "core.fsmonitor", f"touch {folder}/ran;")
    git("config", "core.hooksPath", str(folder / "hooks"))
    (folder / "hooks").mkdir()
    (folder / "hooks" / "post-index-change").write_text(f"#!/bin/sh\ntouch {folder}/ran\n")
    (folder / "hooks" / "post-index-change").chmod(0o755)
    (folder / ".gitattributes").write_text("*.txt filter=a=b\n")
    for name in ("clean", "process"):
        git("config", f"filter.a=b.{name}", f"touch {folder}/ran; cat")
    git("config", "filter.a=b.required", "true")
    (folder / "same.txt").touch()
    assert changed_lines(["same.txt"], "HEAD") == {} and not (folder / "ran").exists()
    assert list(changed_lines(["a b.txt"], "HEAD").values()) == [[range(3, 4)]] and not (folder / "ran").exists()


def test_what_is_not_text_fails_a_check_of_changed_lines_only_there(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    monkeypatch.setattr("copyspec.cli.gec.corrector_of", lambda *_: FunctionCorrector(lambda text: text))
    git("init", "-q")
    path, old = folder / "a.txt", b"It is late.\n\ncaf\xe9\n"
    path.write_bytes(old)
    git("add", ".")
    git("commit", "-qm", "first")
    for new, code in ((old + b"\nWe saw the boat.\n", 0), (old + b"\n\0 boats\n", 3), (old + b"A\n", 3)):
        path.write_bytes(new)
        for looking in (["--check"], ["--diff"], ["--list", "text"]):
            status, _, err = run_binary(capfdbinary, "gec", "a.txt", "-q", "--since", "HEAD", *looking)
            assert status == code and (err == "") == (code == 0)
    assert run_binary(capfdbinary, "gec", "a.txt", "-q", "--check")[0] == 3


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (b"copyspec: off\n\ncaf\xe9\n\ncopyspec: on\n\nWe saw it.\n", 0),
        (b"copyspec: off\n\nIt is.\n\ncopyspec: on\n\ncaf\xe9\n", 3),
        (b"caf\xe9 copyspec: ignore\n\nWe saw it.\n", 0),
        (b"caf\xe9\n\nWe saw it. copyspec: ignore\n", 3),
    ],
)
@pytest.mark.parametrize("name", ["a.txt", "a.csv", "a.ipynb"])
def test_what_is_not_text_fails_no_check_where_a_mark_leaves_it_out(
    folder: Path,
    name: str,
    text: bytes,
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    monkeypatch.setattr("copyspec.cli.gec.corrector_of", lambda *_: FunctionCorrector(lambda text: text))
    lines = b", ".join(b'"%s\\n"' % line for line in text.splitlines())
    frames = {"a.csv": b'text\n"%s"\n' % text}
    frames["a.ipynb"] = b'{"cells": [{"cell_type": "markdown", "source": [%s]}]}' % lines
    (folder / name).write_bytes(frames.get(name, text))
    status, _, err = run_binary(capfdbinary, "gec", name, "--check", *(["--column", "text"] if name == "a.csv" else []))
    assert status == code and ("0xe9" in err) == (code == 3)
    assert "ignored" in err


@pytest.mark.parametrize(
    ("answers", "wanted"),
    [
        ("y\nn\n", ["children", "childrens"]),
        ("n\ny\n", ["childrens", "children"]),
        ("?\na\n", ["children", "children"]),
        ("d\n", ["childrens", "childrens"]),
        ("e\nkids\nq\n", ["kids", "childrens"]),
        ("e\nq\nd\n", ["q", "childrens"]),
        ("e\nki\x1b[Dds\ne\nkids\nn\n", ["kids", "childrens"]),  # an arrow key was pressed
        ("e\nki\x1b[Dds\ny\nn\n", ["children", "childrens"]),
        ("y\ne\nki\x1b[Dds\n", ["children", "childrens"]),
        ("e\n", ["childrens", "childrens"]),
        ("", ["childrens", "childrens"]),
    ],
)
def test_changes_are_asked_for(
    folder: Path,
    answers: str,
    wanted: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    text = "The {} came to see the boat.\n\nThe {} went home.\n"
    (folder / "a.txt").write_text(text.format("childrens", "childrens"))
    monkeypatch.setattr("sys.stdin", io.StringIO(answers))
    code, out, _ = run_binary(capfdbinary, "gec", "a.txt", "-p")
    assert code == 0 and b"[-childrens-]{+children+}" in out and b"Make this change [y,n,e,a,d,q,?]?" in out
    assert (folder / "a.txt").read_text() == text.format(*wanted)
    assert (b"leave it out, and all" in out) == ("?" in answers)


@pytest.mark.parametrize(
    ("name", "text", "typed", "is_written"),
    [
        ("a.md", "# What in teh boat\n", "is new?", True),
        ("a.md", "We came to teh boat.\n", "the #12 for $5 in C#,", True),
        ("a.tex", "We came to teh boat.\n", r"the \$5", True),
        ("a.py", "# We came to teh boat.\n", "yes/no", True),
        ("a.c", "/* We came to teh boat. */\n", "yes/no *", True),
        ("a.c", "/* We came to teh boat. */\n", "the */", False),
        ("a.c", "/* We came to *teh boat. */\n", "/", False),
        ("a.po", 'msgid "x"\nmsgstr "We came to teh boat."\n', r"the \"old\"", True),
        ("a.po", 'msgid "x"\nmsgstr "We came to teh boat."\n', 'the "old"', False),
        ("a.po", 'msgid "x"\nmsgstr "We came to the \\"teh boat\\"."\n', '"the', False),
        ("a.po", 'msgid "x"\nmsgstr "We came to the boat and to teh"\n', "the\\", False),
        ("a.py", 'def f():\n    """We came to the boat and to teh."""\n', r"C:\users", False),
        ("a.txt", "We came to teh caf\xe9.\n", "€", False),
    ],
)
def test_what_is_typed_may_bring_markup_that_ends_nothing(
    folder: Path,
    name: str,
    text: str,
    typed: str,
    is_written: bool,
    monkeypatch: pytest.MonkeyPatch,
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    corrector = FunctionCorrector(lambda text: text.replace("teh", "the"))
    monkeypatch.setattr("copyspec.cli.gec.corrector_of", lambda *_: corrector)
    (folder / name).write_text(text, encoding="latin-1")
    monkeypatch.setattr("sys.stdin", io.StringIO(f"e\n{typed}\nn\n"))
    code, out, err = run_binary(capfdbinary, "gec", name, "-p", "--encoding", "latin-1")
    assert code == 0, err
    assert out.count(b"Make this change") == 2 - is_written, "what is refused is asked again"
    assert (b"This cannot be written" in out) != is_written
    assert (folder / name).read_text(encoding="latin-1") == (text.replace("teh", typed) if is_written else text)


@pytest.mark.parametrize(
    ("text", "correct", "typed", "written"),
    [
        ("We saw the the boat.\n", ("the the", "the"), "big", "We saw the big boat.\n"),  # " the" is shown as deleted
        ("We saw the the boat.\n", ("the the", "the"), " big", "We saw the big boat.\n"),
        ("We saw the the boat.\n", ("the the", "the"), "", "We saw the boat.\n"),
        ("We saw the\nthe boat.\n", ("the the", "the"), "big", "We saw the\nbig boat.\n"),  # "the "
        ("We went sea.\n", ("went sea", "went to the sea"), "by", "We went by sea.\n"),  # " to the" is added
        ("We saw teh boat.\n", ("teh", "the"), "a", "We saw a boat.\n"),
        ("We went sea.\n", ("went sea", "went to the sea"), ",", "We went, sea.\n"),
        ("We went sea.\n", ("went sea", "went to the sea"), "!\u201d", "We went!\u201d sea.\n"),
        ("We saw the the boat.\n", ("the the", "the"), ", and", "We saw the, and boat.\n"),
        ("We went sea.\n", ("went sea", "went to the sea"), ".com", "We went .com sea.\n"),
    ],
)
def test_what_is_typed_keeps_the_spaces_of_what_is_shown(
    folder: Path,
    text: str,
    correct: tuple[str, str],
    typed: str,
    written: str,
    monkeypatch: pytest.MonkeyPatch,
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    corrector = FunctionCorrector(lambda text: text.replace(*correct))
    monkeypatch.setattr("copyspec.cli.gec.corrector_of", lambda *_: corrector)
    (folder / "a.txt").write_bytes(text.encode())
    monkeypatch.setattr("sys.stdin", io.StringIO(f"e\n{typed}\n"))
    code, out, err = run_binary(capfdbinary, "gec", "a.txt", "-p")
    assert code == 0 and out.count(b"Instead: ") == 1, err
    assert (folder / "a.txt").read_bytes() == written.encode()


@pytest.mark.parametrize(("answers", "asked"), [("q\n", [1, 0]), ("d\nq\n", [1, 1]), ("y\nd\nn\nd\n", [2, 2])])
def test_no_model_is_asked_for_what_is_left_out(
    folder: Path,
    answers: str,
    asked: list[int],
    monkeypatch: pytest.MonkeyPatch,
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    texts: list[str] = []
    corrector = FunctionCorrector(lambda text: texts.append(text) or text.replace("teh", "the"))  # type: ignore[func-returns-value]
    monkeypatch.setattr("copyspec.cli.gec.corrector_of", lambda *_: corrector)
    names = ["a.txt", "b.txt"]
    for name in names:
        lines = [f"We came to teh house {number} of {name}.\n" for number in range(100)]
        (folder / name).write_text("\n".join(lines))
    monkeypatch.setattr("sys.stdin", io.StringIO(answers))
    code, _, err = run_binary(capfdbinary, "gec", *names, "-p")
    assert code == 0, err
    assert [sum(name in text for text in texts) for name in names] == asked
    assert sum((folder / name).read_text().count("the") for name in names) == answers.count("y")


def test_a_long_line_is_shown_from_word_to_word(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    corrector = FunctionCorrector(lambda text: text.replace("teh", "the"))
    monkeypatch.setattr("copyspec.cli.gec.corrector_of", lambda *_: corrector)
    words = " ".join(f"number{number}" for number in range(40))  # many more characters than are shown
    (folder / "a.txt").write_text(f"It is {words} at teh boat and {words} is it.\n")
    monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))
    code, out, _ = run_binary(capfdbinary, "gec", "a.txt", "-p", "--any-language")
    shown = out.decode().partition("a.txt\n")[2].partition("Make this change")[0].split()
    assert code == 0 and shown[0] == shown[-1] == "…" and "[-teh-]{+the+}" in shown
    assert set(shown) <= {"…", "at", "[-teh-]{+the+}", "boat", "and", *words.split()}
    assert "number0" in shown and "number39" in shown


def test_questions_need_stdout_and_files(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    for options in (["-", "-p"], ["a.txt", "-p", "--diff"], ["a.txt", "-p", "--edits", "-"]):
        code, out, err = run_binary(capfdbinary, "gec", *options)
        assert (code, out) == (2, b"") and err


def test_diffs_in_colour() -> None:
    before, after = "a\nThe childrens came.\nb\x1b[2J\n", "a\nThe children came.\nb\x1b[2J\nnew\n"
    shown = "".join(colored_diff(unified_diff([(before, after)], "a.txt")))
    assert "\x1b[31m-The \x1b[7mchildrens\x1b[27m came.\x1b[0m\n" in shown
    assert "\x1b[32m+The \x1b[7mchildren\x1b[27m came.\x1b[0m\n" in shown
    assert "\x1b[32m+new\x1b[0m\n" in shown and "\x1b[2J" not in shown


def test_no_packed_document_goes_to_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    Path("a.docx").write_bytes(b"PK")
    monkeypatch.setattr("copyspec.cli.correcting.sys.stdout.isatty", lambda: True)
    code, out, err = run_binary(capfdbinary, "gec", "a.docx")
    assert code == 2 and out == b"" and "-o FILE, -i or --diff" in err


def test_names_of_files_are_no_patterns_of_git(folder: Path) -> None:
    git("init", "-q")
    (folder / "a.txt").write_text(WRONG)
    git("add", ".")
    git("commit", "-qm", "first")
    (folder / "[a].txt").write_text(WRONG)
    (folder / "a.txt").write_text(WRONG + WRONG)
    assert changed_lines(["[a].txt"], "HEAD")["[a].txt"][0].start == 1
    blob = subprocess.run(["git", "rev-parse", "HEAD:a.txt"], check=True, capture_output=True, cwd=folder)
    name = blob.stdout.decode().strip()
    (folder / ".git" / "objects" / name[:2] / name[2:]).unlink()
    with pytest.raises(UsageError, match=r"git diff fails for a\.txt"):
        changed_lines(["a.txt"], "HEAD")


def test_a_file_behind_a_link_counts_as_changed(folder: Path) -> None:
    git("init", "-q")
    (folder / "docs").mkdir()
    (folder / "docs" / "a.txt").write_text("It is late.\n")
    (folder / "a.txt").symlink_to("docs/a.txt")
    (folder / "linked").symlink_to("docs")
    git("add", ".")
    git("commit", "-qm", "first")
    paths = ["a.txt", "linked/a.txt", "docs/a.txt"]
    assert changed_lines(paths, "HEAD") == {}
    (folder / "docs" / "a.txt").write_text(f"It is late.\n{WRONG}")
    assert changed_lines(paths, "HEAD") == {path: [range(2, 4)] for path in paths}


@pytest.mark.parametrize("end", ["\r", "\r\n"])
def test_lone_carriage_returns_end_lines_that_git_does_not_count(folder: Path, end: str) -> None:
    lines = [f"This is teh line of number {number}, as you see.{end}" for number in range(1, 6)]
    lines[1] = lines[1].replace("as", "as\ras")
    path = folder / "a.txt"
    path.write_bytes("".join(lines).encode())
    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "first")
    lines[3] = lines[3].replace("see", "can see")
    path.write_bytes("".join(lines).encode())
    changed = changed_lines([str(path)], "HEAD")
    assert changed == {str(path): [range(1, 8) if end == "\r" else range(5, 6)]}
    wanted = [line if end == "\r\n" and n != 3 else line.replace("teh", "the") for n, line in enumerate(lines)]
    assert corrected(path, ChangedLines(changed)) == "".join(wanted)


def test_settings_of_the_user_do_not_widen_what_changed(folder: Path) -> None:
    lines = [f"This is line number {number}.\n" for number in range(1, 21)]
    (folder / "a.txt").write_text("".join(lines))
    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "first")
    git("config", "diff.interHunkContext", "9")
    lines[4] = lines[8] = "This is new.\n"
    (folder / "a.txt").write_text("".join(lines))
    assert changed_lines(["a.txt"], "HEAD") == {"a.txt": [range(5, 6), range(9, 10)]}
