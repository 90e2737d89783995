"""Edits of several files: all are written or none, also after a kill, and nothing outside of the folder is touched."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from copyspec.pipelines import (
    ApplyPipeline,
    EditError,
    FormatError,
    JournalError,
    apply_to_files,
    finish_writing,
    write_files,
)
from copyspec.pipelines.applying import files
from copyspec.pipelines.applying.files import JOURNAL, FileChange
from kit.oracle_model import OracleModel

EDIT = """\
--- a/a.py
+++ b/a.py
@@ -1 +1 @@
-a = 1
+a = 2
--- a/sub/b.txt
+++ b/sub/b.txt
@@ -1,2 +1,2 @@
 b
-c
+d
--- /dev/null
+++ b/new/deep/n.txt
@@ -0,0 +1 @@
+n
--- a/old.txt
+++ /dev/null
@@ -1 +0,0 @@
-o
"""
BEFORE = {"a.py": "a = 1\n", "sub/b.txt": "b\r\nc", "old.txt": "o\n"}
AFTER = {"a.py": "a = 2\n", "sub/b.txt": "b\r\nd", "new/deep/n.txt": "n\n"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "sub").mkdir()
    for name, text in BEFORE.items():
        (tmp_path / name).write_bytes(text.encode())
    return tmp_path


def content(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes().decode()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def changes(folder: Path, edit: str = EDIT) -> list[FileChange]:
    return [
        outcome.change for outcome in apply_to_files(ApplyPipeline(), edit, folder) if outcome.applied.refusal is None
    ]


def test_all_files_are_written(folder: Path) -> None:
    (folder / "a.py").chmod(0o751)
    (folder / "link.py").symlink_to("a.py")
    outcomes = list(
        apply_to_files(ApplyPipeline(), EDIT.replace("a/a.py", "a/link.py").replace("b/a.py", "b/link.py"), folder)
    )
    assert all(outcome.applied.how == "applied without a model" for outcome in outcomes) and content(folder) == {
        **BEFORE,
        "link.py": "a = 1\n",
    }
    saved = write_files([outcome.change for outcome in outcomes], folder, ".bak")
    assert (folder / "link.py").is_symlink() and (folder / "a.py").stat().st_mode & 0o777 == 0o751
    (folder / "link.py").unlink()
    backups = {path.relative_to(folder).as_posix(): path.read_bytes().decode() for path in saved}
    assert backups == {f"{name}.bak": text for name, text in BEFORE.items()}
    for path in saved:
        path.unlink()
    assert content(folder) == AFTER


def test_a_model_is_told_the_part_of_its_file(folder: Path) -> None:
    oracle = OracleModel("b\nd\n")
    list(apply_to_files(ApplyPipeline(oracle), EDIT.replace("-c\n", "-c;\n"), folder))
    assert oracle.asked[0].references == ["<<<<<<< SEARCH\nb\nc;\n=======\nb\nd\n>>>>>>> REPLACE"]


@pytest.mark.parametrize("number", range(4))
def test_a_file_that_cannot_be_written_leaves_all_as_they_were(
    folder: Path, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, commits, commit = changes(folder), 0, files._commit

    def fails(*arguments: object) -> list[Path]:
        nonlocal commits
        commits += 1
        if commits == number + 1:
            raise OSError("no more")
        return commit(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(files, "_commit", fails)
    with pytest.raises(OSError, match="no more"):
        write_files(made, folder)
    assert content(folder) == BEFORE and not (folder / "new").exists()


def test_a_single_file_leaves_the_journal_of_another_run_alone(folder: Path) -> None:
    (folder / JOURNAL).write_text("[]")
    write_files(changes(folder, edit_of("a.py")), folder)
    assert (folder / JOURNAL).exists() and (folder / "a.py").read_text() == "a = 2\n"


def test_a_deletion_shows_the_whole_file(folder: Path) -> None:
    (folder / "old.txt").write_text("o\nmore\n")
    outcomes = list(apply_to_files(ApplyPipeline(), EDIT, folder))
    assert [outcome.applied.refusal.reason for outcome in outcomes if outcome.applied.refusal] == ["rest"]
    (folder / "old.txt").write_text("other\n")
    outcomes = list(apply_to_files(ApplyPipeline(), EDIT, folder))
    assert [outcome.applied.refusal.reason for outcome in outcomes if outcome.applied.refusal] == ["absent"]
    patch = "*** Begin Patch\n*** Delete File: old.txt\n*** End Patch"
    write_files(changes(folder, patch), folder)
    assert not (folder / "old.txt").exists()


def test_a_file_that_another_program_saves_meanwhile_leaves_all_as_they_were(folder: Path) -> None:
    for name in ("a.py", "old.txt"):
        made = changes(folder)
        (folder / name).write_text("mine\n")
        with pytest.raises(OSError, match="was changed meanwhile"):
            write_files(made, folder)
        left = content(folder)
        assert [left[path] for path in BEFORE] == ["mine\n" if path == name else BEFORE[path] for path in BEFORE]
        (folder / name).write_bytes(BEFORE[name].encode())


KILLED = """
import os, signal, sys
from pathlib import Path
from copyspec.pipelines import ApplyPipeline, apply_to_files, write_files
from copyspec.pipelines.applying import files
commit, count = files._commit, int(sys.argv[2])
def killed(*arguments):
    global count
    if count == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    count -= 1
    return commit(*arguments)
files._commit = killed
root = Path(sys.argv[1])
write_files([each.change for each in apply_to_files(ApplyPipeline(), sys.stdin.read(), root)], root)
"""


def killed(folder: Path, after: int) -> None:
    command = [sys.executable, "-c", KILLED, str(folder), str(after)]
    assert subprocess.run(command, input=EDIT.encode(), check=False).returncode == -signal.SIGKILL
    assert (folder / JOURNAL).exists()


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="no such signal on this system")
@pytest.mark.parametrize("after", range(4))
def test_a_killed_run_is_finished(folder: Path, after: int) -> None:
    killed(folder, after)
    with pytest.raises(JournalError, match="was left by an interrupted run: finish that first"):
        write_files([FileChange(folder / letter, None, b"") for letter in "xy"], folder)
    assert finish_writing(folder) == 4 - after
    assert content(folder) == AFTER and finish_writing(folder) == 0


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="no such signal on this system")
def test_a_killed_run_is_not_finished_over_what_others_wrote(folder: Path) -> None:
    killed(folder, 1)
    (folder / "sub" / "b.txt").write_text("mine")
    with pytest.raises(OSError, match="was changed since an interrupted run left"):
        finish_writing(folder)
    assert (folder / "sub" / "b.txt").read_text() == "mine" and (folder / "old.txt").exists()
    (folder / JOURNAL).write_text("[[1]]")
    with pytest.raises(JournalError, match="is not a journal"):
        finish_writing(folder)


def edit_of(path: str) -> str:
    return f"{path}\n<<<<<<< SEARCH\na = 1\n=======\na = 2\n>>>>>>> REPLACE\n"


@pytest.mark.parametrize(
    ("edit", "paths", "said"),
    [
        (edit_of("../a.py"), (), "lies outside of"),
        (edit_of("/etc/hostname.py"), (), "lies outside of"),
        (edit_of("out/a.py"), (), "lies outside of"),
        (edit_of("none.py"), (), "there is no file"),
        (edit_of("b.py"), ("a.py",), "is for 'b.py', which is none of the given files"),
        (edit_of("").lstrip(), (), "names no file, and no files are given"),
        (edit_of("").lstrip(), ("a.py", "old.txt"), "names no file, and 2 files are given"),
        (edit_of("").lstrip() + edit_of("old.txt"), (), "a part of the edit names no file"),
        ("*** Begin Patch\n*** Delete File: none.py\n*** End Patch", (), "there is no file"),
        ("*** Begin Patch\n*** Add File: a\n+x\n*** Add File: a\n+y\n*** End Patch", (), "names 'a' twice"),
    ],
)
def test_edits_of_other_files_are_errors(folder: Path, edit: str, paths: Sequence[str], said: str) -> None:
    (folder / "out").symlink_to(folder.parent)
    with pytest.raises(EditError, match=said):
        list(apply_to_files(ApplyPipeline(), edit, folder, [folder / path for path in paths]))


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"a = 1\n\0", "holds NUL characters"),
        (b"a = 1\n\xff", "not UTF-8"),
        (b"\xff\xfea\0", "UTF-16"),
        (b"a = 1\n" * 12_000_000, "bytes: edit it by other means"),
    ],
)
def test_what_is_no_text_is_an_error(folder: Path, data: bytes, said: str) -> None:
    (folder / "a.py").write_bytes(data)
    with pytest.raises(FormatError, match=said):
        list(apply_to_files(ApplyPipeline(), edit_of("a.py"), folder))
    assert (folder / "a.py").read_bytes() == data


def test_large_texts_are_refused_and_long_ones_are_quick() -> None:
    edit = edit_of("").lstrip()
    text = "b = 1\n" * 400_000 + "a = 1\n"
    assert ApplyPipeline()(text, edit).text == text.replace("a = 1", "a = 2")
    refusal = ApplyPipeline()("b" * (1 << 24) + "\na = 1\n", edit).refusal
    assert refusal is not None and refusal.reason == "size"


def test_a_file_that_is_there_is_not_made_anew(folder: Path) -> None:
    edit = "*** Begin Patch\n*** Add File: a.py\n+x = 1\n*** End Patch"
    (outcome,) = apply_to_files(ApplyPipeline(), edit, folder)
    assert outcome.applied.refusal is not None and outcome.applied.refusal.reason == "exists"
    for same in (b"x = 1\n", b"x = 1\r\n", b"\xef\xbb\xbfx = 1\r\n"):  # as other systems write it
        (folder / "a.py").write_bytes(same)
        (outcome,) = apply_to_files(ApplyPipeline(), edit, folder)
        assert outcome.applied.refusal is None and not outcome.is_changed
    (folder / "a.py").write_bytes(b"")
    (outcome,) = apply_to_files(ApplyPipeline(), edit, folder)
    assert outcome.applied.text == "x = 1\n"
    os.remove(folder / "a.py")
    write_files(changes(folder, edit), folder)
    assert (folder / "a.py").read_text() == "x = 1\n"
