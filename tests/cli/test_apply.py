"""`copyspec apply`: what it prints and writes, and its exit codes."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from copyspec.cli import main
from kit.oracle_model import OracleModel

BLOCK = "a.py\n<<<<<<< SEARCH\nx = 1\n=======\nx = 2\n>>>>>>> REPLACE\n"
LAZY = "# ... existing code ...\nz = 3\n"
MERGED = "import os\nx = 1\ny = 2\nz = 3\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("COPYSPEC_MODEL", raising=False)
    (tmp_path / "a.py").write_text("import os\nx = 1\ny = 2\n")
    (tmp_path / "b.py").write_text("x = 1\n")
    (tmp_path / "edit.txt").write_text(BLOCK)
    (tmp_path / "lazy.txt").write_text(LAZY)
    return tmp_path


def run(capfdbinary: pytest.CaptureFixture[bytes], *arguments: str, stdin: str | None = None) -> tuple[int, str, str]:
    monkeypatch = pytest.MonkeyPatch()
    if stdin is not None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode()), encoding="utf-8"))
    code = main(["apply", *arguments])
    monkeypatch.undo()
    out, err = capfdbinary.readouterr()
    return code, out.decode(), err.decode()


def test_a_diff_is_shown_or_files_are_written(folder: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    code, out, err = run(capfdbinary, "-e", "edit.txt")
    assert code == 1 and out.startswith("--- a/a.py\n+++ b/a.py\n@@ ") and "-x = 1\n+x = 2\n" in out
    assert err == "a.py: applied without a model\n"
    assert run(capfdbinary, "a.py", stdin=BLOCK) == (code, out, err)
    assert run(capfdbinary, "--diff", "-q", stdin=BLOCK) == (1, out, "")
    assert run(capfdbinary, "--check", "-q", ".", stdin=BLOCK) == (1, "", "")
    assert run(capfdbinary, "--whole", "-q", stdin=BLOCK) == (0, "import os\nx = 2\ny = 2\n", "")
    assert run(capfdbinary, "--stream", "-q", "a.py", stdin=BLOCK) == (0, "import os\nx = 2\ny = 2\n", "")
    assert (folder / "a.py").read_text() == "import os\nx = 1\ny = 2\n"
    code, out, err = run(capfdbinary, "-i", "--backup", stdin=BLOCK)
    assert (code, out) == (0, "") and "an old file is kept as" in err and (folder / "a.py.bak").exists()
    assert (folder / "a.py").read_text() == "import os\nx = 2\ny = 2\n"
    code, out, err = run(capfdbinary, "-i", stdin=BLOCK)
    assert code == 3 and "copyspec: a.py is left unchanged: " in err and "seems to be made already" in err


def test_a_pipe_gives_the_file_and_takes_the_new_one(folder: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    assert run(capfdbinary, "-", "-e", "edit.txt", "--whole", "-q", stdin="x = 1") == (0, "x = 2", "")
    code, out, err = run(capfdbinary, "-", "-e", "edit.txt", stdin="x = 3\n")
    assert code == 3 and out == "" and err.startswith("copyspec: - is left unchanged: the part at line 2 of the edit")
    assert run(capfdbinary, "-", "-e", "edit.txt", stdin="x = 3\0")[0] == 3


def test_all_files_or_none(folder: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    both = BLOCK + BLOCK.replace("a.py", "b.py").replace("x = 1", "x = 7")
    code, _, err = run(capfdbinary, "-i", stdin=both)
    assert code == 3 and "a.py: could be applied without a model, and is left unchanged too" in err
    assert (folder / "a.py").read_text() == "import os\nx = 1\ny = 2\n"
    assert run(capfdbinary, "-i", stdin=both.replace("x = 7", "x = 1"))[0] == 0
    assert (folder / "b.py").read_text() == "x = 2\n"


def test_new_files_are_made_once(folder: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    (folder / "latin.txt").write_bytes(b"caf\xe9\n")
    _, _, err = run(capfdbinary, "latin.txt", stdin=BLOCK.partition("\n")[2])
    assert err.startswith("copyspec: 'latin.txt': not UTF-8")
    patch = "*** Begin Patch\n*** Add File: new.py\n+x = 1\n*** End Patch\n"
    for arguments, edit in (((), patch), (("whole.py", "--form", "whole"), "x = 1\n")):
        assert run(capfdbinary, "-i", *arguments, stdin=edit)[0] == 0
        code, _, err = run(capfdbinary, "-i", *arguments, stdin=edit)
        assert code == 0 and err.endswith(".py: unchanged\n"), err
    gone = "*** Begin Patch\n*** Add File: other.py\n+x = 1\n*** Delete File: whole.py\n*** End Patch\n"
    code, diff, _ = run(capfdbinary, stdin=gone)
    assert code == 1 and "--- /dev/null\n+++ b/other.py\n" in diff and "--- a/whole.py\n+++ /dev/null\n" in diff
    assert (folder / "new.py").read_text() == (folder / "whole.py").read_text() == "x = 1\n"
    assert "is there already" in run(capfdbinary, "-i", stdin=patch.replace("x", "y"))[2]


def test_a_model_merges_what_is_not_exact(
    folder: Path, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    code, _, err = run(capfdbinary, "a.py", "-e", "lazy.txt")
    assert (
        code == 3 and "leaves open where its lines belong: name a model (--model or --server) that can merge it" in err
    )
    monkeypatch.setattr("copyspec.cli.apply.loader", lambda *_: OracleModel(MERGED))
    code, out, err = run(capfdbinary, "a.py", "-e", "lazy.txt", "-m", "some", "--instruction", "Add z")
    assert code == 1 and "+z = 3" in out and err == "a.py: merged by the model, 0 tokens in 0 passes\n"
    assert run(capfdbinary, "a.py", "-e", "lazy.txt", "--stream", "-q", "-m", "some") == (0, MERGED, "")
    assert run(capfdbinary, "a.py", "--instruction", "Add z", "--whole", "-q") == (0, MERGED, "")
    monkeypatch.setattr("copyspec.cli.apply.loader", lambda *_: OracleModel("import os\nz = 3\n"))
    code, out, err = run(capfdbinary, "a.py", "-e", "lazy.txt", "--stream", "-m", "some")
    assert code == 3 and out == "import os\nz = 3\n" and "lines 2 to 3 of the file would go" in err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("-",), "- is stdin: it must be the only file"),
        (("-", "-i", "-e", "edit.txt"), "- is stdin"),
        (("-i", "--check"), "are different outputs; give one"),
        (("a.py", "."), "'.' is a folder: give it alone"),
        ((".", "--instruction", "x"), "'.' is a folder"),
        (("--instruction", "x"), "--instruction needs a file: name one"),
        (("--stream",), "--stream needs a file"),
        (("--form", "x"), "--form 'x' must be one of"),
        (("--preset", "x"), "--preset 'x' must be one of"),
        (("-e", "none.txt"), "--edit none.txt"),
        (("none.py",), "there is no file 'none.py'"),
        (("-m", "no/such/model", "a.py", "-e", "lazy.txt"), "no/such/model"),
    ],
)
def test_wrong_usage(
    folder: Path, capfdbinary: pytest.CaptureFixture[bytes], arguments: tuple[str, ...], said: str
) -> None:
    code, out, err = run(capfdbinary, *arguments, stdin=BLOCK)
    assert code == 2 and out == "" and said in err, err


@pytest.mark.parametrize(
    "edit", ["", " \n", "<<<<<<< SEARCH\nx = 1\n=======\n", "../b.py\n" + BLOCK.partition("\n")[2]]
)
def test_a_bad_edit_writes_nothing(folder: Path, capfdbinary: pytest.CaptureFixture[bytes], edit: str) -> None:
    before = {path: path.read_bytes() for path in folder.iterdir()}
    code, out, err = run(capfdbinary, "-i", stdin=edit)
    assert code == 3 and out == "" and err.startswith("copyspec: ") and err.count("\n") == 1
    assert {path: path.read_bytes() for path in folder.iterdir()} == before


@pytest.mark.parametrize(
    ("path", "edit", "said"),
    [
        ("new.py", " \n", "the edit is empty"),
        ("new.py", "<<<<<<< SEARCH\nx = 1\n=======\n", "the block at line 1 of the edit has no end"),
        ("a.py/new.py", "x = 1\n", "a.py"),
    ],
)
def test_a_file_that_an_edit_would_make_hides_no_other_error(
    folder: Path, capfdbinary: pytest.CaptureFixture[bytes], path: str, edit: str, said: str
) -> None:
    form = "blocks" if "<" in edit else "whole"
    code, out, err = run(capfdbinary, "-i", "--form", form, path, stdin=edit)
    assert code == 3 and out == "" and said in err and "there is no file" not in err
