"""`copyspec gec` and `copyspec edit`: what is written where, what stays, exit codes, interruptions."""

from __future__ import annotations

import gzip
import io
import json
import logging
import os
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from copyspec.models.aliases import ALIASES, Alias
from copyspec.pipelines import FunctionCorrector
from copyspec.pipelines.editing.journal import SUFFIX
from tests.helpers.commands import run_binary
from tests.pipelines.test_formats import TEXTS

WORDS = {"goed": "went", "teh": "the", "recieve": "receive"}
ROOT = Path(__file__).parent.parent.parent
CORPUS = ROOT.parent / "shared" / "data" / "gec" / "jfleg_dev.jsonl.gz"


def fix(text: str) -> str:
    return " ".join(WORDS.get(word, word) for word in text.split(" "))


@pytest.fixture(autouse=True)
def stub(monkeypatch: pytest.MonkeyPatch) -> None:
    """Correct known words without loading a model."""
    monkeypatch.setattr("copyspec.cli.gec.corrector_of", lambda *_: FunctionCorrector(fix, name="known words"))


FIXTURES = {
    **{f"{name}.txt": data[:200_000] for name, data in TEXTS.items()},
    "page.md": (
        b'---\ntitle: A  page\n---\n# Title #\n\nText with `code`,  two spaces and [a link](http://x.y/?a=b "t").\r\n'
        b"> quoted\n> lines\n\n1. one\n   - two\n\n| a | b |\n|---|:-:|\n| c `|` d | e |\n\n```python\nteh = 1\n```\n"
        b"<div>teh</div>\n\n$$teh$$ and \\(x\\)\n\n[ref]: http://teh.example\n"
    ),
    "records.jsonl": b'{"id": 1, "text": "He go.",  "x": [1, 2.50]}\r\n\n{"text": "caf\\u00e9\\n\\nTwo", "id": 2}',
}
# Files with a paragraph that is not text: it is not read, so a check cannot say that it is right.
UNREADABLE = ("bad bytes.txt", "bad bytes at the end.txt", "encoded surrogates.txt", "nul.txt")


def test_a_file_that_is_no_text_is_named_once(tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    file = tmp_path / "image.txt"
    file.write_bytes(b"\x89PNG goed\n\nteh \xff\n\nHe goed home.\n")
    code, out, err = run_binary(capfdbinary, "gec", file)
    assert (code, out) == (0, b"\x89PNG goed\n\nteh \xff\n\nHe went home.\n")
    assert (
        err.count(f"{file} holds the byte 0x89, which is not UTF-8: name its encoding (--encoding 'cp1252'), or") == 1
    )
    assert err.count("image.txt") == 1


@pytest.mark.parametrize("name", FIXTURES)
def test_a_model_that_returns_its_input_changes_no_byte(
    name: str, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("copyspec.cli.gec.corrector_of", lambda *_: FunctionCorrector(lambda text: text))
    file = tmp_path / name.replace(" ", "_").replace(",", "")
    file.write_bytes(FIXTURES[name])
    code, out, _ = run_binary(capfdbinary, "gec", file)
    assert (code, out) == (0, FIXTURES[name])
    before = file.stat().st_mtime_ns
    assert run_binary(capfdbinary, "gec", "-i", file)[:2] == (0, b"")
    assert file.read_bytes() == FIXTURES[name] and file.stat().st_mtime_ns == before
    assert run_binary(capfdbinary, "gec", file, "-o", tmp_path / "out")[:2] == (0, b"")
    assert (tmp_path / "out").read_bytes() == FIXTURES[name]
    assert run_binary(capfdbinary, "gec", file, "-o", "-")[:2] == (0, FIXTURES[name])
    checked = 3 if name in UNREADABLE else 0
    assert run_binary(capfdbinary, "gec", "--check", file)[:2] == (checked, b"")
    assert run_binary(capfdbinary, "gec", "--diff", file)[:2] == (checked, b"")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([file.name, "out"])


TABLE = b'id,text\r\n1,"He goed twice, so"\r\n2,He  stays\r\n'


@pytest.mark.parametrize(
    ("name", "data", "options", "expected"),
    [
        ("a.txt", b"He goed  home.\r\n\r\nteh end\xff\n", [], b"He went  home.\r\n\r\nteh end\xff\n"),
        ("a.txt", b"He goed\n\nteh cat\n", ["--line-mode"], b"He went\n\nthe cat\n"),
        ("a.md", b"He goed to `teh` end.\n\n    teh\n", [], b"He went to `teh` end.\n\n    teh\n"),
        ("a.csv", TABLE, ["--column", "text"], TABLE.replace(b"goed", b"went")),
        ("a.jsonl", b'{"b": "teh x", "t": 1}\n', ["--field", "b", "--untracked"], b'{"b": "the x", "t": 1}\n'),
        ("a.src", b"teh end .\nok\n", ["--format", "parallel"], b"the end .\nok\n"),
    ],
)
def test_only_mistakes_change(
    name: str,
    data: bytes,
    options: list[str],
    expected: bytes,
    tmp_path: Path,
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    file = tmp_path / name
    file.write_bytes(data)
    code, out, err = run_binary(capfdbinary, "gec", file, *options)
    assert (code, out) == (0, expected)
    assert "1 file: 1 changed" in err and ("0xff" in err) == (b"\xff" in data)
    assert run_binary(capfdbinary, "gec", file, *options, "-q")[2] == ""


@pytest.mark.parametrize("options", [["--line-mode"], ["--format", "parallel"]])
def test_every_line_of_a_corpus_stays(
    options: list[str], tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of JFLEG dev, with blank lines between, and a corrector whose context is shorter than half of the lines."""
    if not CORPUS.exists():
        pytest.skip(f"{CORPUS.name} is not there")
    with gzip.open(CORPUS, "rt", encoding="utf-8") as rows:
        lines = [json.loads(row)["source"].rstrip("\n") for row in rows]
    assert len(lines) == 754
    lines = [line for number, text in enumerate(lines) for line in ([text, ""] if number % 100 == 0 else [text])]
    lines.append("x" * 200)
    corrector = FunctionCorrector(lambda text: " ".join("was" if word == "is" else word for word in text.split(" ")))
    corrector.limit = 80
    monkeypatch.setattr("copyspec.cli.gec.corrector_of", lambda *_: corrector)
    (tmp_path / "dev.txt").write_text("\n".join(lines) + "\n", encoding="utf-8", newline="")
    code, out, err = run_binary(capfdbinary, "gec", tmp_path / "dev.txt", *options)
    output = out.decode().split("\n")
    assert code == 0 and len(output) == len(lines) + 1 and "left as they were: " in err and "1 length" in err
    assert output[:-1] == [" ".join("was" if word == "is" else word for word in line.split(" ")) for line in lines]


def test_stdin_goes_to_stdout(capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"He goed\r\n\xff")))
    assert run_binary(capfdbinary, "gec", "-")[:2] == (0, b"He goed\r\n\xff")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"He goed home\r\n")))
    assert run_binary(capfdbinary, "gec", "-")[:2] == (0, b"He went home\r\n")


def test_in_place_keeps_permissions_backup_and_links(tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    file, link = tmp_path / "a.txt", tmp_path / "link.txt"
    file.write_bytes(b"He goed home\n")
    file.chmod(0o640)
    link.symlink_to(file.name)
    code, out, err = run_binary(capfdbinary, "gec", "-i", "--backup", link)
    assert (code, out) == (0, b"") and "1 changed" in err
    assert link.is_symlink() and file.read_bytes() == b"He went home\n"
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    assert (tmp_path / "a.txt.bak").read_bytes() == b"He goed home\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.txt", "a.txt.bak", "link.txt"]


def test_no_backup_is_overwritten_and_shells_name_our_own_files(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    texts = [b"He goed home\n", b"teh cat\n", b"recieve it\n"]
    for number, text in enumerate(texts):
        Path("a.txt").write_bytes(text)
        for left in ("b.md.copyspec-journal", "b.md.copyspec-result", "b.md.copyspec-result-2"):
            Path(left).write_bytes(b"teh\n")
        code, out, err = run_binary(capfdbinary, "gec", "-i", "--backup", *sorted(os.listdir()))
        assert (code, out) == (0, b""), err
        assert f"skipped: {3 + number} of copyspec's own (journals, results, backups)" in err
        assert "the old files are kept as FILE.bak" in err
        assert ("an older backup exists and is kept" in err) == bool(number)
    backups = [Path(name).read_bytes() for name in ("a.txt.bak", "a.txt.bak.1", "a.txt.bak.2")]
    assert backups == texts
    Path("a.txt").write_bytes(texts[-1])  # undone and corrected again: this backup exists already
    assert run_binary(capfdbinary, "gec", "-i", "--backup", "a.txt")[0] == 0
    assert not Path("a.txt.bak.3").exists() and Path("a.txt.bak.2").read_bytes() == texts[-1]
    Path("a.txt.bak").replace(
        "a.txt"
    )  # undo the first run: the gap is not reused, since higher numbers mean later backups
    assert "or the backup named above instead" in run_binary(capfdbinary, "gec", "-i", "--backup", "a.txt")[2]
    assert not Path("a.txt.bak").exists() and Path("a.txt.bak.3").read_bytes() == texts[0]
    Path("a.txt.bak.3").rename("a.txt.bak")
    assert (
        b"He went" in run_binary(capfdbinary, "gec", "a.txt.bak", "--format", "txt")[1]
    )  # a backup named explicitly is corrected


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
@pytest.mark.parametrize("here", [".", "docs", "docs/deep"])
@pytest.mark.parametrize("named", ["{}", "./{}", "{root}/{}", "."])
def test_git_applies_a_diff(
    here: str, named: str, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ["a.md", "docs/b c.md", "docs/deep/caf\u00e9 \u6587.md", 'docs/q"uo\\te\t.md']
    for name in names:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"He goed home\n")
    monkeypatch.chdir(tmp_path / here)
    paths = [named.format(os.path.relpath(tmp_path / name), root=tmp_path / here) for name in names]
    if named == ".":
        names = [name for name in names if (tmp_path / name).is_relative_to(tmp_path / here)]
    code, diff, err = run_binary(capfdbinary, "gec", "--diff", *paths)
    assert code == 1
    is_outside = here != "." and named != "."
    assert ("the diff names files from" in err) == is_outside
    subprocess.run(["git", "apply", "-"], input=diff, cwd=tmp_path if is_outside else tmp_path / here, check=True)
    assert {(tmp_path / name).read_bytes() for name in names} == {b"He went home\n"}


def test_check_and_diff_are_exit_codes(tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    wrong, right = tmp_path / "wrong.txt", tmp_path / "right.txt"
    wrong.write_bytes(b"He goed home\r\nok\r\n")
    right.write_bytes(b"fine\n")
    code, out, err = run_binary(capfdbinary, "gec", "--check", wrong, right)
    assert (code, out) == (1, b"") and f"would change {wrong}: 1 edit\n" in err and "right.txt" not in err
    assert run_binary(capfdbinary, "gec", "--check", right)[0] == 0
    code, out, _ = run_binary(capfdbinary, "gec", "--diff", wrong, right)
    assert code == 1 and b"-He goed home\r\n+He went home\r\n ok\r\n" in out and out.count(b"--- a/") == 1
    assert wrong.read_bytes() == b"He goed home\r\nok\r\n"
    patched = subprocess.run(["patch", "-p0", str(wrong)], input=out, capture_output=True) if _has_patch() else None
    assert patched is None or wrong.read_bytes() == b"He went home\r\nok\r\n"


def _has_patch() -> bool:
    return any(os.access(Path(folder) / "patch", os.X_OK) for folder in os.environ["PATH"].split(os.pathsep) if folder)


def test_bad_files_are_named_and_the_others_done(tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    good, wide, table, last = (tmp_path / name for name in ("good.txt", "wide.txt", "table.csv", "last.txt"))
    good.write_bytes(b"He goed home\n")
    wide.write_bytes("He goed".encode("utf-16"))
    table.write_bytes(b"a,b\n1,2\n")
    last.write_bytes(b"teh end\n")
    missing, unknown, packed = tmp_path / "missing.txt", tmp_path / "a.xyz", tmp_path / "a.pdf"
    unknown.write_bytes(b"x")
    packed.write_bytes(b"%PDF-1.7")
    code, out, err = run_binary(
        capfdbinary, "gec", "-i", good, missing, wide, table, unknown, packed, tmp_path / "no*match.txt", last
    )
    assert (code, out) == (3, b"")
    assert good.read_bytes() == b"He went home\n" and last.read_bytes() == b"the end\n"
    for path, said in (
        (missing, "No such file"),
        (wide, "UTF-16"),
        (table, "name the column"),
        (unknown, "no format for '.xyz' is known; --format 'txt' reads it as plain text"),
        (packed, "no format for '.pdf' is known; such files hold bytes that are not text"),
        (tmp_path / "no*match.txt", "No such file"),
    ):
        (line,) = [line for line in err.splitlines() if str(path) in line]
        assert line.startswith("copyspec: ") and said in line
    assert "8 files: 2 changed" in err and "6 failed" in err
    assert not list(tmp_path.glob(f"*{SUFFIX}")) and not list(tmp_path.glob(".*"))


@pytest.mark.parametrize(
    ("name", "data", "options"),
    [
        ("a.csv", TABLE, []),
        ("a.csv", TABLE, ["--column", "body"]),
        ("a.tsv", b"a\tb\n", ["--column", "3"]),
        ("a.jsonl", b'{"b": "teh"}\n', []),
        ("a.xyz", b"teh end\n", []),
        ("a.srt", b"teh end\n", ["--format", "txt"]),
    ],
)
def test_options_that_fit_no_file_are_wrong_usage(
    name: str, data: bytes, options: list[str], tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """If they fit some, these are done, as with other files that fail."""
    file, good = tmp_path / name, tmp_path / "good.txt"
    file.write_bytes(data)
    good.write_bytes(b"teh end\n")
    code, _, err = run_binary(capfdbinary, "gec", "-q", file, *options)
    assert code == 2 and str(file) in err and err.count("\n") == 1
    assert run_binary(capfdbinary, "gec", "-i", file, good, *options)[0] == 3
    assert good.read_bytes() == b"the end\n" and file.read_bytes() == data
    assert run_binary(capfdbinary, "gec", "-i", file, tmp_path / "missing.txt", *options)[0] == 3


def test_folders_patterns_and_excludes(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a.txt", "b/c.md", "b/d.py", ".git/e.txt", "node_modules/f.md", "b/skip/g.txt", "h.csv"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"teh end\n")
    (tmp_path / "b" / "round").symlink_to(tmp_path)
    monkeypatch.chdir(tmp_path)
    changed = run_binary(capfdbinary, "gec", "--check", ".", "--exclude", "skip")[2]
    assert [line.split()[2] for line in changed.splitlines() if line.startswith("would")] == ["./a.txt:", "./b/c.md:"]
    for pattern in ("b/skip", "b/skip/"):  # a folder's pattern fits files that are named, too
        named = run_binary(capfdbinary, "gec", "--check", "**/*.txt", "a.txt", "--exclude", pattern)[2]
        assert [line.split()[2] for line in named.splitlines() if line.startswith("would")] == ["a.txt:"]
    changed = run_binary(capfdbinary, "gec", "--check", "**/*.txt", "a.txt", "--exclude", "b/skip/*")[2]
    assert [line.split()[2] for line in changed.splitlines() if line.startswith("would")] == ["a.txt:"]
    (tmp_path / "empty").mkdir()
    assert run_binary(capfdbinary, "gec", "empty") == (0, b"", "copyspec: no files to correct\n")


def test_edits_page_m2_and_stats(tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    file = tmp_path / "a.txt"
    file.write_text("Né.\n\nHe goed to teh sea.\n", encoding="utf-8")
    code, out, err = run_binary(
        capfdbinary, "gec", file, "--edits", "-", "--html", tmp_path / "a.html", "--stats", "json"
    )
    rows = [json.loads(line) for line in out.splitlines()]
    assert code == 0 and [(row["orig"], row["corr"], row["line"], row["col"]) for row in rows] == [
        ("goed", "went", 3, 4),
        ("teh", "the", 3, 12),
    ]
    data = file.read_bytes()
    assert all(data[row["byte_start"] : row["byte_end"]].decode() == row["orig"] for row in rows)
    page = (tmp_path / "a.html").read_text(encoding="utf-8")
    assert "goed" in page and page.endswith("</html>\n") and "2 changes" in page
    stats = json.loads(err)
    assert (stats["segments"], stats["changed"], stats["edits"], stats["files_changed"]) == (2, 1, 2, 1)
    for name in (
        "tokens_per_second",
        "calls",
        "estimated_speedup",
        "mean_acceptance_length",
        "calls_saved",
        "skipped",
        "dropped_edits",
    ):
        assert name in stats
    code, out, err = run_binary(capfdbinary, "gec", file, "--m2", "-", "--stats", "text")
    assert out.decode().splitlines()[3:6] == [
        "S He goed to teh sea.",
        "A 1 2|||UNK|||went|||REQUIRED|||-NONE-|||0",
        "A 3 4|||UNK|||the|||REQUIRED|||-NONE-|||0",
    ]
    assert "passes of the model" in err
    m2 = run_binary(capfdbinary, "gec", file, "--m2", "-", "--kinds", "insert")[1]
    assert b"|||went|||" not in m2 and b"|||noop|||" in m2, "the edits that are written, and no others"


def test_guards_are_options(
    tmp_path: Path,
    capfdbinary: pytest.CaptureFixture[bytes],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    file = tmp_path / "a.txt"
    file.write_bytes(b"He has 7 cats at home\n")
    corrector = FunctionCorrector(lambda text: text.replace("7", "8"))
    monkeypatch.setattr("copyspec.cli.gec.corrector_of", lambda *_: corrector)
    _, out, err = run_binary(capfdbinary, "gec", file)
    assert out == b"He has 7 cats at home\n" and "edits left out: 1 numbers" in err and "left as" not in err
    with caplog.at_level(logging.INFO, "copyspec"):  # as -v sets it
        run_binary(capfdbinary, "gec", file)
    assert f"{file}:1: left out (numbers): '7' would become '8', but numbers may not change" in caplog.messages
    assert run_binary(capfdbinary, "gec", file, "--allow-numbers")[1] == b"He has 8 cats at home\n"
    assert (
        run_binary(capfdbinary, "gec", file, "--allow-numbers", "--protect", "[0-9]")[1] == b"He has 7 cats at home\n"
    )


@pytest.mark.parametrize(
    ("output", "option"),
    [("She lives near a big lake now today.", "--max-edit-ratio"), ("He has cats.", "--max-lost-ratio")],
)
def test_limits_are_named_as_options(
    output: str,
    option: str,
    tmp_path: Path,
    capfdbinary: pytest.CaptureFixture[bytes],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    file = tmp_path / "a.txt"
    file.write_bytes(b"He has seven old cats at home.\n")
    monkeypatch.setattr("copyspec.cli.gec.corrector_of", lambda *_: FunctionCorrector(lambda text: output))
    with caplog.at_level(logging.INFO, "copyspec"):  # as -v sets it
        run_binary(capfdbinary, "gec", file)
    assert [line for line in caplog.messages if line.endswith(f" % ({option})")], caplog.messages


def test_options_that_errors_name_exist() -> None:
    from copyspec.cli.app import _options_of
    from copyspec.cli.correcting import _options
    from copyspec.cli.reports import LIMITS

    assert {*_options().values(), *LIMITS.values()} <= set(_options_of(["gec"]).values())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["gec"], "paths"),
        (["gec", "a", "-i", "-o", "b"], "--in-place and --output 'b'"),
        (["gec", "a", "-i", "-o", "-"], "--output - is stdout: give one file, without --in-place and --patch"),
        (["gec", "a", "--patch", "-o", "-"], "--output - is stdout"),
        (["gec", "a", "b", "-o", "-"], "--output - is stdout"),
        (["edit", "a", "-i", "--instruction", "x", "-o", "-"], "--output is for one file, without -i"),
        (["gec", "a", "--check", "--diff"], "--diff and --check both"),
        (["gec", "a", "--check", "-i"], "--check writes nothing"),
        (["gec", "a", "--resume"], "--resume continues an output; give --in-place or --output"),
        (["gec", "a", "--backup"], "--backup needs files to be replaced; give --in-place too"),
        (
            ["gec", "a", "-i", "--backup", ".bak"],
            "--backup takes no suffix, and there is no file '.bak': give --backup-s",
        ),
        (["gec", "a", "-i", "--backup-suffix", "/b"], "--backup-suffix '/b' must be a suffix"),
        (["gec", "a", "--instruction", "Fix it"], "the instruction 'Fix it' has no {text}"),
        (["gec", "a", "--batch-size", "0"], "--batch-size must be an integer >= 1, got 0"),
        (["gec", "a", "--segment-tokens", "0"], "--segment-tokens must be an integer >= 1, got 0"),
        (["gec", "a", "--max-new-tokens", "0"], "--max-new-tokens must be an integer >= 1, got 0"),
        (["gec", "a", "--encoding", "utf-9"], "unknown encoding 'utf-9'"),
        (
            ["edit", "a", "--instruction", "x", "--max-edit-ratio", "-1"],
            "--max-edit-ratio must be a number at least 0",
        ),
        (["edit", "a", "--instruction", "x", "--check", "-i"], "--diff and --check are different outputs"),
        (
            ["edit", "a", "--instruction", "x", "--max-new-tokens", "0"],
            "--max-new-tokens must be an integer >= 1, got 0",
        ),
        (["gec", "a", "b", "-o", "c"], "--output 'c' is for one file, got 2"),
        (["gec", "-", "-i"], "--in-place cannot write to standard input"),
        (["gec", "-", "a"], "- is stdin and must be the only input"),
        (["gec", "a", "--format", "word"], "--format 'word': name one of txt"),
        (["gec", "a", "--stats", "xml"], "--stats 'xml': text or json"),
        (["gec", "a", "--max-edit-ratio", "-1"], "--max-edit-ratio -1.0"),
        (["gec", "a", "--protect", "("], "'(' is not a valid regular expression"),
        (["gec", "a", "--segmenter", "spacy"], "unknown segmenter 'spacy'"),
        (["gec", "a", "--edits", "-", "--html", "-"], "can use stdout"),
        (["gec", "a", "--instructon", "x"], "--instruction"),
        (["gec", "a", "-o", "/no/such/b"], "--output '/no/such/b': there is no folder '/no/such'; make it first"),
        (["gec", "a", "--html", "/no/such/b"], "--html '/no/such/b': there is no folder '/no/such'"),
        (["edit", "a", "--instruction", "x", "-o", "/no/such/b"], "--output '/no/such/b': there is no folder"),
        (["edit", "a"], "--instruction"),
        (["edit", "a", "--instruction", " "], "--instruction is empty"),
        (["edit", "a", "b", "--instruction", "x", "-o", "c"], "--output is for one file"),
        (["edit", "-", "--instruction", "x", "-i"], "- is stdin"),
    ],
)
def test_wrong_usage_is_told_before_anything_is_loaded(
    arguments: list[str], said: str, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    code, out, err = run_binary(capfdbinary, *arguments)
    assert (code, out) == (2, b"") and said in err and err.count("\n") == 1


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="needs a folder in which not even root can make a file")
@pytest.mark.parametrize(
    "arguments",
    [
        *(["gec", "a", option] for option in ("--output", "--html", "--edits", "--m2")),
        ["edit", "a", "--instruction", "x", "--output"],
        *(["generate", "x", option] for option in ("--html", "--trace")),
        *([command, "x", "--html"] for command in ("compare", "trace")),
        ["rag", "x", "--index", "x", "--html"],
    ],
)
def test_an_output_that_cannot_be_written_is_told_before_anything_is_loaded(
    arguments: list[str], capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    code, out, err = run_binary(capfdbinary, *arguments, "/proc/b")
    assert (code, out) == (2, b"")
    assert f"{arguments[-1]} '/proc/b': no file can be made in the folder '/proc'" in err and "write elsewhere" in err


def test_a_file_that_cannot_be_replaced_is_told_before_the_model_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    def refuse(**options: object) -> tuple[int, str]:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("copyspec.cli.edit.pipeline_of", lambda *_: FakePipeline())
    monkeypatch.setattr("copyspec.cli.gec.corrector_of", lambda *_: pytest.fail("the model is loaded"))
    monkeypatch.setattr("copyspec.pipelines.editing.atomic_file.tempfile.mkstemp", refuse)
    (tmp_path / "a.txt").write_text("goed")
    for command in (["gec"], ["edit", "--instruction", "x"]):
        code, out, err = run_binary(capfdbinary, *command, "-i", tmp_path / "a.txt")
        assert (code, out) == (3, b"")
        assert "a.txt: no file can be made in the folder" in err and "Permission denied" in err


class FakePipeline:
    def check(self, instruction: str) -> None:
        pass

    def __call__(self, text: str, instruction: str) -> object:
        pytest.fail("the model runs")


def test_a_model_that_cannot_be_loaded_is_wrong_usage(
    capfdbinary: pytest.CaptureFixture[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from copyspec.cli.correcting import corrector_of

    monkeypatch.setattr("copyspec.cli.gec.corrector_of", corrector_of)
    (tmp_path / "a.txt").write_bytes(b"teh\n")
    code, out, err = run_binary(capfdbinary, "gec", tmp_path / "a.txt", "-m", "/no/such")
    assert (code, out) == (2, b"") and "there is no such folder" in err


def test_a_model_says_which_one_was_trained_for_corrections(
    tmp_path: Path,
    capfdbinary: pytest.CaptureFixture[bytes],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    from copyspec.cli.correcting import corrector_of

    base = replace(ALIASES["smollm2"], name="base")
    tuned = replace(base, name="tuned", about="a corrector", base="base", corrects=True)
    monkeypatch.setattr("copyspec.cli.gec.corrector_of", corrector_of)
    monkeypatch.setattr("copyspec.api.load_corrector", lambda model, **_: SimpleNamespace(name=model))
    monkeypatch.setattr("copyspec.pipelines.ModelCorrector", lambda *_: FunctionCorrector(fix))
    (tmp_path / "a.txt").write_bytes(b"teh end\n")

    def told(aliases: list[Alias], *options: str) -> list[str]:
        monkeypatch.setattr("copyspec.models.aliases.ALIASES", {alias.name: alias for alias in aliases})
        caplog.clear()
        assert run_binary(capfdbinary, "gec", tmp_path / "a.txt", *options)[:2] == (0, b"the end\n")
        return caplog.messages

    hint = "base was not trained for corrections; --model tuned was: a corrector"
    assert told([base, tuned], "-m", "base") == [hint]
    assert told([base, tuned], "-m", "base", "-q") == told([base, tuned], "-m", "tuned") == []
    assert told([base, tuned], "-m", "base", "--adapter", "x") == told([base], "-m", "base") == []


def test_an_interruption_leaves_files_and_says_how_to_go_on(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "a.txt"
    file.write_bytes(b"He goed home\n\nteh end\n\nteh sea\n")
    seen: list[str] = []

    def interrupted(text: str) -> str:
        seen.append(text)
        if len(seen) == 2:
            signal.raise_signal(signal.SIGINT)
        return fix(text)

    monkeypatch.setattr("copyspec.cli.gec.corrector_of", lambda *_: FunctionCorrector(interrupted, name="words"))
    code, out, err = run_binary(capfdbinary, "gec", "-i", file)
    assert (code, out) == (130, b"") and "the same command with --resume continues" in err
    assert file.read_bytes() == b"He goed home\n\nteh end\n\nteh sea\n"
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["a.txt", f"a.txt{SUFFIX}"]
    assert run_binary(capfdbinary, "gec", "-i", "--resume", file)[0] == 0
    assert file.read_bytes() == b"He went home\n\nthe end\n\nthe sea\n"
    assert sorted(seen[2:]) == sorted({"He goed home", "teh end", "teh sea"} - {seen[0]})
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]


def test_a_journal_of_another_run_is_refused(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "a.txt"
    file.write_bytes(b"He goed home\n")

    def interrupt(text: str) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr("copyspec.cli.gec.corrector_of", lambda *_: FunctionCorrector(interrupt, name="words"))
    assert run_binary(capfdbinary, "gec", "-i", file)[0] == 130
    monkeypatch.setattr("copyspec.cli.gec.corrector_of", lambda *_: FunctionCorrector(fix, name="words"))
    end = "; undo that, or start over with --no-resume\n"
    for options, said in (
        (["--max-edit-ratio", "0.9"], "--max-edit-ratio was 0.7 and is now 0.9"),
        (
            ["--precision", "0.95", "--allow-names"],
            "--allow-names was False and is now True, --precision was 0.9 and is now 0.95",
        ),
        (["--protect", "x"], "--protect was [] and is now ['x']"),
        (["--line-mode"], "--line-mode was False and is now True"),
        (["--untracked"], "--untracked was False and is now True"),
        (
            ["--kinds", "case"],
            "selections was ['marks', 'linked headings'] and is now ['marks', 'linked headings', 'kinds case']",
        ),
        (["-p"], "selections was ['marks', 'linked headings'] and is now ['marks', 'linked headings', 'asks']"),
    ):
        code, _, err = run_binary(capfdbinary, "gec", "-i", "--resume", file, *options)
        assert code == 3 and f"belongs to another run: {said}{end}" in err, err
    left = tmp_path / f"a.txt{SUFFIX}"
    journal = left.read_bytes()
    left.write_bytes(journal.replace(b'"guards.all_or_nothing":false', b'"guards.all_or_nothing":true'))
    code, _, err = run_binary(capfdbinary, "gec", "-i", "--resume", file)
    assert code == 3 and "another run: guards.all_or_nothing was True and is now False" in err, "it is no option"
    left.write_bytes(journal)
    file.write_bytes(b"He goed away\n")
    code, _, err = run_binary(capfdbinary, "gec", "-i", "--resume", file)
    assert code == 3 and f"belongs to another run: the file has changed since{end}" in err
    assert file.read_bytes() == b"He goed away\n"
    assert run_binary(capfdbinary, "gec", "-i", "--no-resume", file)[0] == 0 and file.read_bytes() == b"He went away\n"


GERMAN = "Das ist ein Satz, und wir werden ihn nicht mit dem Auto fahren."


@pytest.mark.parametrize(
    ("text", "options", "found"),
    [
        (GERMAN, ["--language", "de"], "'de'"),
        (GERMAN, ["--any-language"], "'de'"),
        ("我们昨天去学校学习。", ["--any-language"], "'zh'"),
        ("私たちは昨日学校に行きました。", ["--any-language"], "'ja'"),
        ("We went home, and it was late when they came.", ["--any-language"], None),
        ("We went home, and it was late when they came.", ["--language", "de"], None),  # left alone, and counted
        (GERMAN, [], None),
        ("We went home, and it was late when they came.", [], None),
    ],
)
def test_a_language_that_the_model_was_not_trained_for_is_told_once(
    text: str,
    options: list[str],
    found: str | None,
    tmp_path: Path,
    capfdbinary: pytest.CaptureFixture[bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    files = [tmp_path / "a.txt", tmp_path / "b.txt"]
    for file in files:
        file.write_text(f"{text}\n\n{text}\n", encoding="utf-8")
    corrector = FunctionCorrector(fix)
    monkeypatch.setattr("copyspec.cli.gec.corrector_of", lambda *_: corrector)
    said = "which the model was not trained to correct"
    assert said not in run_binary(capfdbinary, "gec", "--check", *options, *files)[2], "its languages are unknown"
    monkeypatch.setattr(corrector, "languages", ("en",), raising=False)
    err = run_binary(capfdbinary, "gec", "--check", *options, *files)[2]
    assert [line for line in err.splitlines() if said in line] == (
        [] if found is None else [f"copyspec: {files[0]} holds text in {found}, {said}: name one that was with --model"]
    )
    assert said not in run_binary(capfdbinary, "gec", "--check", "-q", *options, *files)[2]


def test_another_model_is_named_alone(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "a.txt"
    file.write_bytes(b"He goed home\n")

    def use(function: Callable[[str], str], **identity: object) -> None:
        corrector = FunctionCorrector(function)
        corrector.identity = identity
        monkeypatch.setattr("copyspec.cli.gec.corrector_of", lambda *_: corrector)

    def interrupt(text: str) -> str:
        raise KeyboardInterrupt

    use(interrupt, model="default", weights="80a97b13", segment_tokens=3245)
    assert run_binary(capfdbinary, "gec", "-i", file)[0] == 130
    use(fix, model="smollm2-correct", weights="c9cf8c3f", segment_tokens=380)
    code, _, err = run_binary(capfdbinary, "gec", "-i", "--resume", "--precision", "0.95", file)
    said = "belongs to another run: model was 'default' and is now 'smollm2-correct'; undo that, or start over"
    assert code == 3 and said in err
    use(fix, model="default", weights="c9cf8c3f", segment_tokens=3245)
    code, _, err = run_binary(capfdbinary, "gec", "-i", "--resume", file)
    assert code == 3 and "another run: the model's weights have changed since; undo that" in err
    assert file.read_bytes() == b"He goed home\n"


def test_a_file_that_was_finished_under_another_selection_is_not_skipped(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [tmp_path / "a.txt", tmp_path / "b.txt"]
    files[0].write_bytes(b"He goed home,and he see it.\n")
    files[1].write_bytes(b"teh end\n")  # the shorter text is asked about later

    def interrupted(text: str) -> str:
        if "end" in text:
            raise KeyboardInterrupt
        return fix(text).replace(",and", ", and")

    monkeypatch.setattr("copyspec.cli.gec.corrector_of", lambda *_: FunctionCorrector(interrupted, name="words"))
    assert run_binary(capfdbinary, "gec", "-i", "--kinds", "spacing", *files)[0] == 130
    assert files[0].read_bytes() == b"He goed home, and he see it.\n"
    monkeypatch.setattr("copyspec.cli.gec.corrector_of", lambda *_: FunctionCorrector(fix, name="words"))
    code, _, err = run_binary(capfdbinary, "gec", "-i", "--resume", *files)
    assert (
        code == 3
        and "selections was ['marks', 'linked headings', 'kinds spacing'] and is now ['marks', 'linked headings']"
        in err
    )
    assert run_binary(capfdbinary, "gec", "-i", "--resume", "--kinds", "spacing", *files)[0] == 0
    assert run_binary(capfdbinary, "gec", "-i", *files)[0] == 0
    assert [file.read_bytes() for file in files] == [b"He went home, and he see it.\n", b"the end\n"]


def test_an_interruption_before_the_first_answer_promises_nothing(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "a.txt"
    file.write_bytes(b"He goed home\n")

    def interrupted(*_: object) -> FunctionCorrector:
        raise KeyboardInterrupt

    monkeypatch.setattr("copyspec.cli.gec.corrector_of", interrupted)  # while the model is loaded
    code, _, err = run_binary(capfdbinary, "gec", "-i", file)
    assert code == 130 and "unfinished files are untouched" in err and "--resume" not in err
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]


def test_what_an_interrupted_run_left_is_refused_and_the_other_files_done(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    files = [tmp_path / name for name in ("a.txt", "b.txt")]
    for file in files:
        file.write_bytes(b"He goed home\n")
    left = tmp_path / f"a.txt{SUFFIX}"
    left.write_bytes(b'{"copyspec-journal":2,"input":"x"}\n{"key":"00","text":"y"}\n')
    before = left.read_bytes()
    code, _, err = run_binary(capfdbinary, "gec", "-i", *files)
    assert code == 3 and f"{str(left)!r} was left by an interrupted run: --resume continues it, --no-resume" in err
    assert left.read_bytes() == before
    assert [file.read_bytes() for file in files] == [b"He goed home\n", b"He went home\n"]
    assert run_binary(capfdbinary, "gec", "-i", "--no-resume", *files)[0] == 0
    assert files[0].read_bytes() == b"He went home\n" and not left.exists()
