"""`copyspec edit`: what others save meanwhile stays, and a failing stdout ends the run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from copyspec.cli import main
from copyspec.pipelines import EditPipeline
from tests.pipelines.test_instructed import CODE, Answer, answer  # noqa: F401  a fixture

NEW = CODE.replace("+ 1", "+ 2")


@pytest.fixture
def edited(answer: Answer, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:  # noqa: F811
    """Runs the command with a model that gives NEW, after a call of `meanwhile`."""

    def run(*arguments: object, meanwhile: Callable[[], object] = lambda: None) -> int:
        pipeline = EditPipeline(answer.engine)

        def call(text: str, instruction: str, path: str | None = None) -> object:
            meanwhile()
            return pipeline(text, instruction)

        call.check = pipeline.check  # type: ignore[attr-defined]
        monkeypatch.setattr("copyspec.cli.edit.pipeline_of", lambda *_: call)
        answer.will(NEW)
        return main(["edit", "--instruction", "Add two", *map(str, arguments)])

    return run


@pytest.mark.parametrize("output", ["f.py", "./f.py", "link.py", "other.py", "new.py"])
def test_a_file_saved_while_the_model_runs_is_left_alone(
    output: str, edited: Callable[..., int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("f.py").write_text(CODE)
    Path("other.py").write_text("old")
    Path("link.py").symlink_to("f.py")
    assert edited("f.py", "-o", output) == 0 and Path(output).read_text() == NEW
    Path("f.py").write_text(CODE)
    Path("new.py").unlink(missing_ok=True)
    assert edited("f.py", "-o", output, meanwhile=lambda: Path(output).write_text("saved")) == 3
    assert Path(output).read_text() == "saved"


def test_a_failing_stdout_is_not_the_failure_of_a_file(
    edited: Callable[..., int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    calls = []
    for name in ("a.py", "b.py"):
        (tmp_path / name).write_text(CODE)

    def show(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("copyspec.cli.edit.echo_bytes", show)
    assert edited(tmp_path / "a.py", tmp_path / "b.py", meanwhile=lambda: calls.append(1)) == 3
    assert len(calls) == 1 and "a.py" not in (said := capsys.readouterr().err) and "No space left" in said


@pytest.mark.parametrize("present", [[], ["f.py"]])
def test_files_that_do_not_exist_are_named_before_the_model_is_loaded(
    present: list[str],
    edited: Callable[..., int],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link.py").symlink_to("nowhere.py")
    for name in present:
        Path(name).write_text(CODE)
    seen: list[str] = []
    code = edited("none.py", *present, "link.py", "-i", meanwhile=lambda: seen.append(capsys.readouterr().err))
    said = "".join(f"copyspec: {name}: No such file or directory\n" for name in ("none.py", "link.py"))
    assert code == 3 and (seen or [capsys.readouterr().err]) == [said]
    assert all(Path(name).read_text() == NEW for name in present)


def test_a_file_in_another_encoding_is_told_what_to_do(
    edited: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.txt").write_bytes(b"caf\xe9\n")
    assert edited(tmp_path / "a.txt") == 3
    assert "not UTF-8 (byte 3): convert it first (iconv -f CP1252 -t UTF-8)" in capsys.readouterr().err
