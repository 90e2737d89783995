"""`copyspec gec` as a linter: edits by line, annotations, file names, and a project's settings."""

from __future__ import annotations

import json
import logging
import os
import re
import shlex
import socket
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
import yaml  # type: ignore[import-untyped]

from copyspec.cli.common import UsageError
from copyspec.cli.config import defaults
from copyspec.cli.correcting import LISTS
from copyspec.cli.inputs import without
from copyspec.pipelines import FunctionCorrector
from copyspec.pipelines.editing.paths import Skipped, expand, is_excluded, suffixes_of
from tests.helpers.commands import run_binary

ROOT = Path(__file__).parent.parent.parent
WRONG = "It is late.\nThe childrens came to see the boat.\n"


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text(WRONG)
    (tmp_path / "b.rst").write_text(f"{WRONG}::\n\n    The childrens\n")
    (tmp_path / "c.txt").write_text("It is late.\n")
    return tmp_path


def test_edits_are_listed_by_file_line_and_column(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    code, out, _ = run_binary(capfdbinary, "gec", "a.txt", "b.rst", "c.txt", "--list", "text")
    edit = "'childrens' -> 'children' (replace)"
    assert (code, out.decode()) == (1, f"a.txt:2:5: {edit}\nb.rst:2:5: {edit}\n")
    code, out, _ = run_binary(capfdbinary, "gec", "a.txt", "--list", "github")
    assert (code, out.decode()) == (1, f"::warning file=a.txt,line=2,col=5,title=copyspec::{edit}\n")
    assert run_binary(capfdbinary, "gec", "c.txt", "--list", "text")[:2] == (0, b"")
    assert (Path("a.txt")).read_text() == WRONG


NAMES = ["a.txt", "sub folder/é%.md", "d.jsonl"]
TEXTS = [
    "It is late.\r\nThe childrens came.\r\né The childrens\r\n",
    "Zoë 𐐀 came. The childrens came to see the boat.\n",
    '{"text": "The childrens came."}\n',
]


@pytest.fixture
def linted(project: Path) -> list[str]:
    (project / "sub folder").mkdir()
    for name, text in zip(NAMES, TEXTS, strict=True):
        (project / name).write_bytes(text.encode())
    return NAMES


def listed(capfdbinary: pytest.CaptureFixture[bytes], style: str, names: list[str]) -> Any:
    code, out, _ = run_binary(capfdbinary, "gec", *names, "--list", style)
    assert code == (1 if names != ["c.txt"] else 0)
    return json.loads(out)


def test_reviewdog_gets_suggestions_in_bytes(linted: list[str], capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    report = listed(capfdbinary, "rdjson", linted)
    assert report["source"] == {"name": "copyspec"} and report["severity"] == "WARNING"
    lines = {name: text.encode().split(b"\n") for name, text in zip(NAMES, TEXTS, strict=True)}
    for diagnostic in report["diagnostics"]:
        path, place = diagnostic["location"]["path"], diagnostic["location"].get("range")
        assert path in NAMES and (place is None) == path.endswith("jsonl") == ("suggestions" not in diagnostic)
        assert re.search(r"\((replace|spacing|insert|punctuation)(, margin \d+\.\d)?\)$", diagnostic["message"])
        if place is not None:
            (suggested,) = diagnostic["suggestions"]
            assert suggested["range"] == place and place["start"]["line"] == place["end"]["line"]
            line = lines[path][place["start"]["line"] - 1]
            was = line[place["start"]["column"] - 1 : place["end"]["column"] - 1].decode()
            assert diagnostic["message"].startswith(f"{was!r} -> {suggested['text']!r} (")
    assert {diagnostic["location"]["path"] for diagnostic in report["diagnostics"]} == set(NAMES)
    assert listed(capfdbinary, "rdjson", ["c.txt"])["diagnostics"] == []


def test_code_scanning_gets_fixes_in_characters(linted: list[str], capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    report = listed(capfdbinary, "sarif", linted)
    (run,) = report["runs"]
    rules = {rule["id"] for rule in run["tool"]["driver"]["rules"]}
    assert report["version"] == "2.1.0" and run["columnKind"] == "unicodeCodePoints"
    for result in run["results"]:
        ((place,),) = [[one["physicalLocation"] for one in result["locations"]]]
        path = unquote(place["artifactLocation"]["uri"])
        assert result["ruleId"] in rules and path in NAMES and " " not in place["artifactLocation"]["uri"]
        if "region" in place:
            region = place["region"]
            line = TEXTS[NAMES.index(path)].split("\n")[region["startLine"] - 1]
            was = line[region["startColumn"] - 1 : region["endColumn"] - 1]
            (change,) = result["fixes"][0]["artifactChanges"]
            (replacement,) = change["replacements"]
            assert replacement["deletedRegion"] == region
            new = replacement["insertedContent"]["text"]
            assert result["message"]["text"].startswith(f"{was!r} -> {new!r} ({result['ruleId']}")
    assert listed(capfdbinary, "sarif", ["c.txt"])["runs"][0]["results"] == []


@pytest.mark.parametrize("style", ["rdjson", "sarif"])
def test_a_run_that_fails_lists_nothing(
    style: str, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(*_: object) -> FunctionCorrector:
        raise UsageError("no model")

    monkeypatch.setattr("copyspec.cli.gec.corrector_of", load)
    assert run_binary(capfdbinary, "gec", "a.txt", "--list", style)[:2] == (2, b"")


def test_edits_have_a_kind_and_a_margin(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    _, out, _ = run_binary(capfdbinary, "gec", "a.txt", "--edits", "-")
    (row,) = map(json.loads, out.splitlines())
    assert row["kind"] == "replace" and row["margin"] > 0


def test_a_page_shows_changed_paragraphs_under_the_names_of_their_files(
    project: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    (project / "a.txt").write_text("Birds sing.\n\nThe childrens came to see the boat.\nIt was red.\n\nFish swim.\n")
    code, out, _ = run_binary(capfdbinary, "gec", "a.txt", "c.txt", "b.rst", "--html", "page.html")
    page = (project / "page.html").read_text(encoding="utf-8")
    assert (code, out) == (0, b"")
    assert "<h2>a.txt: 1 change</h2>" in page and "<h2>b.rst: 1 change</h2>" in page and "c.txt" not in page
    assert "It was red." in page and "Birds sing." not in page and "Fish swim." not in page
    assert page.count("[...]") >= 1


def test_quiet_checks_name_the_files(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    assert run_binary(capfdbinary, "gec", "--check", "-q", "a.txt", "c.txt") == (1, b"a.txt\n", "")


def test_the_hook_of_pre_commit_lists_and_changes_nothing(
    project: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"))
    program, *arguments = shlex.split(hook["entry"])
    assert (program, hook["language"]) == ("copyspec", "python") and hook["require_serial"]
    for files, passes in ((["c.txt"], True), (["c.txt", "a.txt"], False)):
        code, out, _ = run_binary(
            capfdbinary, *arguments, *files
        )  # a pre-commit hook fails if its exit status is not 0
        assert (code == 0, out == b"") == (passes, passes)
    assert Path("a.txt").read_text() == WRONG and len(list(project.iterdir())) == 3
    suffixes = {suffix for suffix in suffixes_of(None) if re.search(hook["files"], f"a{suffix}")}
    assert suffixes == suffixes_of(None) - {".docx", ".odt"}, "what folders give, but for what is no text"
    for name in ("CMakeLists.txt", "requirements.txt", "dev-requirements.txt", "requirements_test.txt", "robots.txt"):
        skipped = Skipped()
        (project / name).write_text("childrens\n")
        assert name not in map(os.path.basename, expand([str(project)], suffixes=suffixes_of(None), skipped=skipped))
        assert (str(project / name), "data") in skipped.found and re.search(hook["exclude"], f"x/{name}")
    for name in ("notes.txt", "functional-requirements.txt"):
        assert not re.search(hook["exclude"], name)


def test_a_folder_says_what_it_leaves_out_and_loads_no_model_for_nothing(
    project: Path,
    capfdbinary: pytest.CaptureFixture[bytes],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    loaded = []

    def load(*_: object) -> FunctionCorrector:
        loaded.append(1)
        return FunctionCorrector(lambda text: text, name="nothing")

    monkeypatch.setattr("copyspec.cli.gec.corrector_of", load)
    for left in (".git/x.md", "vendor/v.md", "node_modules/n.md", "film.srt", "data.csv", "x.md.copyspec-journal"):
        (project / left).parent.mkdir(exist_ok=True)
        (project / left).write_text("The childrens.\n")
    Path("link.md").symlink_to("a.txt")
    for path in project.glob("*.txt"):
        path.unlink()
    Path("b.rst").write_text("::\n\n    The childrens\n")
    with caplog.at_level(logging.INFO, "copyspec"):  # as -v sets it
        code, _, err = run_binary(capfdbinary, "gec", ".", "--exclude", "vendor", "--check")
    assert code == 0 and not loaded, "no prose, no model"
    assert (
        "skipped: 2 of other formats (.csv, .srt), 1 hidden, 1 links, 1 folders that nobody writes by hand, "
        "1 excluded, 1 of copyspec's own (journals, results, backups)"
    ) in err
    for named in ("./film.srt (format)", "./.git/ (hidden)", "./link.md (link)", "./vendor/ (exclude)"):
        assert f"skipped: {named}" in caplog.messages
    Path("b.rst.bak").touch()
    _, _, err = run_binary(
        capfdbinary, "gec", ".", "film.srt", *sorted(map(str, Path().glob("*.*"))), "--format", "txt"
    )
    assert "1 of other formats (.csv)" not in err and "2 of copyspec's own" in err, "what is named is not left out"
    Path("c.txt").write_text("It is late.\n")
    assert run_binary(capfdbinary, "gec", "c.txt", "--check")[0] == 0 and len(loaded) == 1


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--list", "x"], "name one of text, github, rdjson, sarif"),
        (["--list", "text", "--check"], "--check and --list both only report"),
        (["--list", "text", "-i"], "--list writes nothing"),
        (["--list", "text", "--diff"], "--diff and --list both only report"),
    ],
)
def test_lists_stand_alone(options: list[str], says: str, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    code, out, err = run_binary(capfdbinary, "gec", "a.txt", *options)
    assert (code, out) == (2, b"") and says in err


def test_a_project_says_what_stays(project: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    """Settings also apply in subfolders; the command line overrides them."""
    (project / "pyproject.toml").write_text('[project]\nname = "x"\n[tool.copyspec]\nprotect = ["childrens"]\n')
    assert run_binary(capfdbinary, "gec", "a.txt", "--check", "-q")[:2] == (0, b"")
    assert run_binary(capfdbinary, "gec", "a.txt", "--check", "-q", "--protect", "boat")[0] == 1
    (project / "docs").mkdir()
    assert defaults(project / "docs") == {"protect": ["childrens"]}
    (project / "docs" / ".copyspec.toml").write_text('words = ["my.txt"]\nany-language = true\n')
    assert defaults(project / "docs") == {"words": [str(project / "docs" / "my.txt")], "any_language": True}


@pytest.mark.parametrize("words", ["my.txt", "docs/my.txt", "./my.txt", "docs/../my.txt", "link.txt", "new.txt"])
def test_a_projects_word_lists_are_its_own_files(project: Path, words: str) -> None:
    (project / "docs").mkdir()
    for name in ("my.txt", "docs/my.txt"):
        (project / name).write_text("childrens")
    (project / "link.txt").symlink_to("docs/my.txt")
    (project / ".copyspec.toml").write_text(f"words = [{words!r}]")
    assert defaults(project) == {"words": [str(project / words)]}


@pytest.mark.parametrize(
    "words",
    [
        *("/dev/stdin", "/dev/zero", "/dev/fd/0", "/proc/self/fd/0", "/proc/self/environ", "/etc/passwd", "/dev/tty"),
        *("../other.txt", "docs/../../other.txt", "link.txt", "far/passwd", "pipe", "socket", ".", "", "docs"),
        *("loop", "a\\u0000b", "x" * 5000, "{folder}/../other.txt"),
    ],
)
def test_a_projects_word_lists_name_nothing_else(
    project: Path, words: str, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    home = project / "home"
    (home / "docs").mkdir(parents=True)
    (project / "other.txt").write_text("childrens")
    (home / "link.txt").symlink_to("../other.txt")
    (home / "far").symlink_to("/etc")
    (home / "loop").symlink_to("loop")
    os.mkfifo(home / "pipe")
    with socket.socket(socket.AF_UNIX) as unix:
        monkeypatch.chdir(home)
        unix.bind("socket")
    named = words.replace("{folder}", str(home))
    (home / ".copyspec.toml").write_text(f'words = ["{named}"]')
    (home / "a.txt").write_text(WRONG)
    code, out, err = run_binary(capfdbinary, "gec", "a.txt", "--check", "-q")
    assert (code, out) == (2, b"") and "is no file in this folder" in err and len(err) < 500


@pytest.mark.parametrize(("started_in", "named"), [("", "docs"), ("docs", "."), ("docs", "{project}/docs")])
def test_a_project_excludes_what_it_names_wherever_copyspec_starts(
    project: Path,
    started_in: str,
    named: str,
    monkeypatch: pytest.MonkeyPatch,
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    """Names of folders above the project exclude nothing."""
    home = project / "vendor" / "[my] project"
    for name in ("docs/a.txt", "docs/old/b.txt", "docs/new/vendor/c.txt", "docs/new/d.txt"):
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(WRONG)
    (home / ".copyspec.toml").write_text('exclude = ["docs/old", "vendor"]')
    corrector = FunctionCorrector(lambda text: text.replace("childrens", "children"), name="words")
    monkeypatch.setattr("copyspec.cli.gec.corrector_of", lambda *_: corrector)
    monkeypatch.chdir(home / started_in)
    code, out, _ = run_binary(capfdbinary, "gec", "--check", "-q", named.format(project=home))
    assert code == 1 and sorted(os.path.basename(name) for name in out.decode().split("\n")) == ["", "a.txt", "d.txt"]
    assert run_binary(capfdbinary, "gec", "--check", "-q", str(home / "docs" / "old" / "b.txt"))[:2] == (0, b"")
    link = project / "link"
    link.symlink_to(home)
    assert run_binary(capfdbinary, "gec", "--check", "-q", str(link / "docs" / "old" / "b.txt"))[:2] == (0, b"")


def test_what_is_excluded_on_the_command_line_adds_to_what_the_project_excludes(
    project: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    (project / ".copyspec.toml").write_text('exclude = ["a.txt"]')
    assert run_binary(capfdbinary, "gec", ".", "--check", "-q", "--exclude", "b.rst") == (0, b"", "")
    assert run_binary(capfdbinary, "gec", ".", "--check", "-q", "--exclude", "c.txt")[1] == b"./b.rst\n"


@pytest.mark.skipif(os.name != "posix", reason="names POSIX locks")
def test_a_file_that_another_run_writes_is_left_to_it(project: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    import fcntl

    with open(project / "a.txt.copyspec-journal", "wb") as journal:
        fcntl.flock(journal, fcntl.LOCK_EX)
        for options in ([], ["--resume"], ["--no-resume"]):
            code, out, err = run_binary(capfdbinary, "gec", "a.txt", "-i", *options)
            assert (code, out) == (3, b"") and "another process is working on this file" in err
    assert (project / "a.txt").read_text() == WRONG


def test_the_examples_for_hooks_and_workflows_can_be_read() -> None:
    page = (ROOT / "docs" / "continuous_integration.md").read_text(encoding="utf-8")
    for block in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL):
        read = yaml.safe_load(block)
        for repo in read.get("repos", ()) if isinstance(read, dict) else ():
            assert [hook["id"] for hook in repo["hooks"]] == ["copyspec"]
    assert set(re.findall(r"^\| `(\w+)` ", page, re.MULTILINE)) == set(LISTS)


def test_what_excludes_all_files_is_named(
    project: Path, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("copyspec.cli.gec.corrector_of", lambda *_: FunctionCorrector(str, name="nothing"))
    settings, nothing = project.resolve() / ".copyspec.toml", "copyspec: no files to correct\n"
    settings.write_text('exclude = ["a.txt"]')
    code, out, err = run_binary(capfdbinary, "gec", "a.txt")
    pattern = str(settings.with_name("a.txt"))
    assert (code, out) == (0, b"")
    assert err.endswith(f"copyspec: a.txt: left out by the pattern {pattern!r} of exclude in {settings}\n{nothing}")
    for paths in (["a.txt", "c.txt", "b.rst"], ["*.txt", "b.rst"], ["."]):
        code, out, err = run_binary(capfdbinary, "gec", *paths, "--exclude", "*.txt", "--exclude", "b.rst")
        assert (code, out) == (0, b"") and "3 excluded" in err and err.endswith(nothing)
        before = "." + os.sep if paths == ["."] else ""
        assert f"copyspec: {before}a.txt, {before}c.txt: left out by the pattern '*.txt' of --exclude\n" in err
        assert f"copyspec: {before}b.rst: left out by the pattern 'b.rst' of --exclude\n" in err
    assert run_binary(capfdbinary, "gec", "a.txt", "-q") == (0, b"", "")
    code, _, err = run_binary(capfdbinary, "gec", "a.txt", "c.txt", "--check")
    assert code == 0 and "skipped: 1 excluded" in err and "left out by" not in err


def test_patterns_are_compared_from_the_working_folder(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = project / "build" / "docs"
    here.mkdir(parents=True)
    monkeypatch.chdir(here)
    assert not is_excluded(str(here / "a.txt"), ["build", "docs/*.txt"])
    assert is_excluded(str(here / "old" / "a.txt"), ["old"]) and is_excluded("old/a.txt", [str(here / "o*")])


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ("in-place = true", "a project cannot set 'in-place'"),
        ('model = "x"', "a project cannot set 'model'"),
        ("max-edit-ration = 1", "did you mean 'max-edit-ratio'"),
        ('exclude = "a"', "must be a list of strings"),
        ("precision = [1]", "must be a single value"),
        ("precision = {a = 1}", "must be a single value"),
    ],
)
def test_what_a_project_may_not_say(project: Path, table: str, says: str) -> None:
    (project / "pyproject.toml").write_text(f"[tool.copyspec]\n{table}\n")
    with pytest.raises(UsageError, match=says):
        defaults(project)


def test_a_file_that_is_no_toml(project: Path) -> None:
    """An invalid pyproject.toml is reported if it has settings for copyspec, and its own settings file always."""
    (project / "pyproject.toml").write_text("x = [")
    assert defaults(project) == {}
    (project / ".copyspec.toml").write_text("x = [")
    with pytest.raises(UsageError, match=r"copyspec\.toml"):
        defaults(project)
    (project / ".copyspec.toml").unlink()
    (project / "pyproject.toml").write_text('[tool.copyspec\nexclude = ["docs"]')
    with pytest.raises(UsageError, match=r"pyproject\.toml"):
        defaults(project)


def test_word_lists_are_not_corrected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words, text = Path("docs/words [a].txt"), Path("docs/words a.txt")
    words.parent.mkdir()
    for path in (words, text):
        path.write_text("frobnix\n")
    for exclude in (without([words]), without([tmp_path / words])):
        skipped = Skipped()
        assert expand(["docs", str(words)], suffixes={".txt"}, exclude=exclude, skipped=skipped) == [str(text)]
        assert {reason for _, reason in skipped.found} == {"exclude"}


def test_changes_in_a_line_are_explained(
    project: Path, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    def correct(text: str) -> str:
        return text.replace("failover are", "failure is").replace("was", "were")

    monkeypatch.setattr("copyspec.cli.gec.corrector_of", lambda *_: FunctionCorrector(correct, name="words"))
    (project / "a.txt").write_text("They was late.\n\nThe failover are read.\n\nEach failover is one.\n")
    code, out, _ = run_binary(capfdbinary, "gec", "--explain", "a.txt:3")
    lines = out.decode().splitlines()
    assert code == 0 and len(lines) == 4 and all(line.startswith("a.txt:3: ") for line in lines[::2])
    assert "refused (evidence): 'failover' would become 'failure'" in lines[0]
    assert "'failover': in no word list, 2 times in the document" in lines[1]
    assert "made: 'are' would become 'is'" in lines[2] and lines[3].startswith("  form: margin unknown of 4.")
    assert b"model changes nothing" in run_binary(capfdbinary, "gec", "--explain", "a.txt:5")[1]
    for end in ("", "\n", "\n\n"):
        (project / "a.txt").write_text(f"They was late.\n\nThe failover are read.\n\nEach failover is one.{end}")
        last = max(5, 4 + len(end))
        for line in range(2, 99):
            out = (
                run_binary(capfdbinary, "gec", "--explain", f"a.txt:{line}")[1]
                if line in (2, last, last + 1, 98)
                else b""
            )
            assert (f"the file ends at line {last}".encode() in out) == (line in (last + 1, 98))
            assert (b"nothing here is given to the model" in out) == (line == 2 or line == last > 5)
    for wrong, message in ((["a.txt"], "as in README.md:12"), (["a.txt:1", "a.txt"], "leave 'a.txt' out")):
        code, _, err = run_binary(capfdbinary, "gec", "--explain", *wrong)
        assert code == 2 and message in " ".join(err.split())
