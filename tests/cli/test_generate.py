"""The command line: stdout has only results, an error is one line, and exit codes are as documented."""

from __future__ import annotations

import importlib.util
import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import copyspec
from copyspec.cli import main
from copyspec.cli.doctor import _faiss
from tests.helpers.commands import run
from tests.helpers.texts import CORPUS, engine

LENGTH = ["--max-new-tokens", "16"]


pytestmark = pytest.mark.usefixtures("named_model")


def expected(prompt: str = "the cat", **options: object) -> str:
    return engine().generate(prompt, max_new_tokens=16, **options).text  # type: ignore[call-overload, no-any-return]


def test_the_prompt_comes_from_argument_file_or_stdin(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "prompt.txt"
    file.write_bytes(b"the cat\r\n")
    assert run(capsys, "generate", "the cat", *LENGTH) == (0, expected() + "\n", "")
    assert run(capsys, "generate", "--file", str(file), *LENGTH) == (0, expected("the cat\r\n") + "\n", "")
    for arguments in (["-"], ["--file", "-"]):
        monkeypatch.setattr(sys, "stdin", io.StringIO("the cat"))
        assert run(capsys, "generate", *arguments, *LENGTH) == (0, expected() + "\n", "")


def test_references_and_edited_text_from_arguments_and_files(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "reference.txt"
    file.write_text(expected(), encoding="utf-8", newline="")
    options = ["-r", "a", "--reference", "b", "-R", str(file), "--edit-file", str(file)]
    code, out, err = run(capsys, "generate", "the cat", *options, "--json", "--stats", *LENGTH)
    result = json.loads(out)
    assert code == 0 and result["text"] == expected()
    assert {span["place"]["source"] for span in result["spans"]} & {"edit_source", "references[2]"}
    assert result["stats"]["num_accepted_tokens"] > 0
    assert "passes of the model" in err and "from edit" in err
    assert run(capsys, "generate", "the cat", "--edit", "the", *LENGTH)[1] == expected() + "\n"


@pytest.mark.parametrize("name", ["nofile.txt", "held"])
def test_a_text_that_may_name_a_file_is_taken_and_told(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "held").write_text("the cat")
    for what, options, instead in (
        ("--reference", ["the cat", "-r", "a cat.txt", "-r", name], "--reference-file"),
        ("--edit", ["the cat", "--edit", name], "--edit-file"),
        ("the prompt", [name], "--file"),
    ):
        code, out, err = run(capsys, "generate", *options, *LENGTH)
        assert code == 0 and (out == expected() + "\n" or what == "the prompt")
        assert err == f"copyspec: {what} {name!r} is taken as the text itself; {instead} reads a file\n"
    assert run(capsys, "generate", "the cat", "-r", "cat", "-r", "3.14", "-r", "mat.", *LENGTH)[2] == ""


def test_options_reach_the_model(capsys: pytest.CaptureFixture[str]) -> None:
    sampled = ["--temperature", "0.9", "--top-k", "30", "--top-p", "0.95", "--min-p", "0.01", "--seed", "4"]
    out = run(capsys, "generate", "the cat", *sampled, *LENGTH)[1]
    assert out == expected(temperature=0.9, top_k=30, top_p=0.95, min_p=0.01, seed=4) + "\n"
    stop = expected()[4:6]
    assert run(capsys, "generate", "the cat", "--stop", stop, *LENGTH)[1] == expected(stop=stop) + "\n"
    for options, same in (
        (["--system", "Hi."], {"system": "Hi."}),
        (["--chat"], {"chat": True}),
        (["--no-chat"], {"chat": False}),
    ):
        assert run(capsys, "generate", "the cat", *options, *LENGTH)[1] == expected(**same) + "\n"
    for same in (["--max-draft-nodes", "0"], ["--stream"], ["--no-stream"], ["--dtype", "float32", "--device", "cpu"]):
        assert run(capsys, "generate", "the cat", *same, *LENGTH)[1] == expected() + "\n"
    penalised = run(capsys, "generate", "the cat", "--repetition-penalty", "1.5", *LENGTH)[1]
    assert penalised == expected(repetition_penalty=1.5) + "\n"


def test_compare_prints_both_and_whether_they_are_equal(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "generate", "the cat", "--compare", *LENGTH)
    assert code == 0 and out.startswith(expected()) and "outputs equal" in out
    assert "tokens per pass of the model" in out
    code, out, _ = run(capsys, "generate", "the cat", "--compare", "--json", *LENGTH)
    comparison = json.loads(out)
    assert code == 0 and comparison["equal"] and comparison["difference"] is None
    assert comparison["plain"]["text"] == comparison["copied"]["text"] == expected()


@pytest.mark.usefixtures("named_model")
def test_compare_writes_its_page_and_shows_nothing_else(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    code, _, _ = run(capsys, "generate", "the cat", "--compare", "--html", str(page), *LENGTH)
    assert code == 0 and "Side by side" in page.read_text(encoding="utf-8")
    for option in ("--spans", "--watch", "--stream"):
        code, _, err = run(capsys, "generate", "the cat", "--compare", option, *LENGTH)
        assert code == 2 and f"leave {option} out" in err


def test_compare_fails_where_outputs_differ(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from dataclasses import replace

    comparison = copyspec.compare("the cat", model=engine(), max_new_tokens=8)
    assert isinstance(comparison, copyspec.Comparison)
    difference = copyspec.Difference(3, 4, 5, "a", "b", None, None)
    monkeypatch.setattr("copyspec.api.compare", lambda *_, **__: replace(comparison, difference=difference))
    code, out, err = run(capsys, "generate", "the cat", "--compare", "--stats")
    assert code == 1 and "passes of the model" in err
    assert out.startswith("plain:  ") and "\ncopied: " in out
    assert "outputs differ at token 3: plain 4 'a', copied 5 'b'" in out


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["generate"], 2, "no prompt; give it as an argument, with --file PATH, or - for stdin"),
        (["generate", "a", "--file", "b"], 2, "a prompt and --file are given; give one"),
        (["generate", "--file", "/no/such"], 2, "--file /no/such: no such file or directory"),
        (["generate", "a", "-R", "/no/such"], 2, "--reference-file /no/such: no such file or directory"),
        (["generate", "a", "--edit", "b", "--edit-file", "c"], 2, "--edit and --edit-file both name the edited text"),
        (["generate", "a", "--json", "--stream"], 2, "--json prints at the end; leave --stream out"),
        (["generate", "a", "--compare", "--logprobs", "2"], 2, "--logprobs are in the output of --json: add it"),
        (
            ["generate", "a", "--temperature", "-1"],
            2,
            "copyspec: --temperature must be a number at least 1e-06 and at most 1e+06 (or 0: greedy), got -1.0",
        ),
        (["generate", "a", "--seed", "-1"], 2, "copyspec: --seed must be an integer >= 0, got -1"),
        (["generate", "a", "--stop", ""], 2, "copyspec: --stop must be a non-empty string"),
        (["generate", "a", "-m", ""], 2, "copyspec: --model must be a hub id"),
        (["generate", "a", "--system", "\udcff"], 2, "copyspec: --system holds a lone surrogate at character 0"),
        (["generate", "a", "-r", "b", "-r", "\udcff"], 2, "copyspec: --reference holds a lone surrogate"),
        (["generate", "a", "--edit", "\udcff"], 2, "copyspec: --edit holds a lone surrogate"),
        (["generate", "a", "--rendered", "--chat"], 2, "--rendered says that the prompt went through a chat template"),
        (["generate", "a", "--rendered", "--chat"], 2, "leave out --system and --chat"),
        (["generate", "a", "--drafter", "model"], 2, "copyspec: --drafter 'model' needs a model to draft with: give"),
        (["generate", "a", "--temprature", "1"], 2, "--temperature"),
        (["generate", "a", "--dtype", "float9"], 2, "copyspec: --dtype must be one of auto, float32"),
        (["generate", ""], 2, "prompt is an empty string"),
        (["generate", "a" * 400], 2, "but the model's context is 256; shorten it"),
        (["genrate"], 2, "Did you mean 'generate'? See copyspec --help"),
        (["generate", "a", "-v"], 2, "-v goes before the command: copyspec -v generate ..."),
        (["doctor", "--verbose"], 2, "--verbose goes before the command: copyspec --verbose doctor ..."),
        (["generate", "a", "-m", "/no/such"], 2, "model '/no/such' is a path, but there is no such folder"),
    ],
)
def test_errors_are_one_line(arguments: list[str], code: int, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run(capsys, *arguments)
    assert (status, out) == (code, "")
    assert said in err and err.startswith("copyspec: ") and err.count("\n") == 1


def test_a_file_that_is_no_text_is_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "bytes"
    file.write_bytes(b"ab\xff")
    code, _, err = run(capsys, "generate", "--file", str(file))
    assert code == 2 and f"--file {file}: not UTF-8 (byte 2); convert it first" in err


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_a_file_that_is_a_pipe_is_named_as_it_is_written(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "Pipe")
    code, _, err = run(capsys, "generate", "--file", str(tmp_path / "Pipe"))
    assert code == 2 and f"{str(tmp_path / 'Pipe')!r} is a named pipe" in err


def test_stdin_is_utf8_with_its_line_ends(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("é\r\n".encode()), encoding="ascii"))
    assert run(capsys, "generate", "-", *LENGTH) == (0, expected("é\r\n") + "\n", "")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"ab\xff")))
    code, _, err = run(capsys, "generate", "-")
    assert code == 2 and "stdin: not UTF-8 (byte 2); convert it first" in err


def test_verbose_errors_have_tracebacks(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(copyspec.LoadError):
        main(["-v", "generate", "a", "-m", "/no/such"])


def test_doctor_shows_what_is_there_and_tests_it(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    code, out, err = run(capsys, "doctor")
    assert (code, err) == (0, "")
    for word in (
        "copyspec",
        "Python",
        "torch",
        "transformers",
        "faiss",
        "drafting",
        "devices",
        "layers",
        "default model",
        "model cache",
    ):
        assert f"{word} " in out
    assert str(folder) in out and "self-test       passed in float32: " in out and "outputs equal" in out


def test_doctor_shows_a_faiss_that_cannot_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str) -> object:
        raise ImportError("numpy.core.multiarray failed to import")

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    monkeypatch.setattr(importlib, "import_module", broken)
    assert _faiss() == "installed, but it cannot be imported: numpy.core.multiarray failed to import"


def test_version_and_help_fit_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    environment = {**os.environ, "COLUMNS": "80", "TERM": "dumb"}
    for arguments, word in ((["--version"], copyspec.__version__), (["--help"], "doctor"), ([], "generate")):
        done = subprocess.run(
            [sys.executable, "-m", "copyspec", *arguments], capture_output=True, text=True, env=environment, timeout=120
        )
        assert done.returncode == 0 and word in done.stdout and done.stderr == ""
    done = subprocess.run(
        [sys.executable, "-m", "copyspec", "generate", "--help"],
        capture_output=True,
        text=True,
        env=environment,
        timeout=120,
    )
    assert max(map(len, done.stdout.splitlines())) <= 80
    for option in ("--reference-file", "--edit-file", "--max-new-tokens", "--stream", "--compare", "--system"):
        assert option in done.stdout


def test_an_interrupted_run_says_so() -> None:
    code = (
        "import sys, time; import copyspec.cli.prompt_options as g;"
        "g.read_prompt = lambda *a: (print('ready', flush=True), time.sleep(60));"
        "from copyspec.cli import main; sys.exit(main(['generate', 'a']))"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err == "copyspec: interrupted\n"


def test_reading_a_prompt_with_text_of_a_corpus(capsys: pytest.CaptureFixture[str]) -> None:
    for text in CORPUS:
        assert run(capsys, "generate", text, *LENGTH)[1] == expected(text) + "\n"


def test_a_datastore_of_another_folder_is_named_by_dir(
    capsys: pytest.CaptureFixture[str], folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "text.txt").write_text("the cat sat on the mat")
    made = ["index", "add", "mine", str(tmp_path / "text.txt"), "--kind", "tokens", "--model", str(folder)]
    assert run(capsys, *made, "--dir", str(tmp_path / "corpora"))[0] == 0
    asked = ["generate", "the cat", "--model", str(folder), "--max-new-tokens", "4", "--datastore", "mine"]
    assert run(capsys, *asked, "--dir", str(tmp_path / "corpora"))[0] == 0
    code, _, said = run(capsys, *asked, "--dir", str(tmp_path / "none"))
    assert code == 2 and "none" in said and "'mine' is neither a folder nor a corpus" in said
