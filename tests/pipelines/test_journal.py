"""Crash safety: journals, outputs that are complete or absent, and killed runs that are resumed."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from copyspec.engine.results import Change
from copyspec.pipelines import AtomicFile, FileOptions, FunctionCorrector, GECPipeline, JournalError, Outcome, Refusal
from copyspec.pipelines.editing.atomic_file import remove_leftovers, target_of
from copyspec.pipelines.editing.file_state import ChangedFileError
from copyspec.pipelines.editing.journal import SUFFIX, Journal, fingerprint

ROOT = Path(__file__).parent.parent.parent


def journal(path: Path, *, resume: bool | None = True, **identity: object) -> Journal:
    return Journal(path, {"model": "a", **identity}, resume=resume)


OUTCOMES = {
    "He go.": Outcome("He goes."),
    "long": Outcome(None, Refusal("length", "too long")),
    "{x}": Outcome("x", lost="{}"),
    "She like": Outcome("She likes", changes=[Change(3, 8, 2.5)]),
    "ünï\u2028 \U0001f600": Outcome("\n\r\u2028"),
}


def test_outcomes_come_back(tmp_path: Path) -> None:
    with journal(tmp_path / "j", resume=False) as first:
        for text, outcome in OUTCOMES.items():
            first.add(text, outcome)
            assert first.get(text) is None, "it holds what former runs left; this run remembers its own"
    for _ in range(2):
        with journal(tmp_path / "j") as again:
            assert len(again) == len(OUTCOMES)
            assert {text: again.get(text) for text in OUTCOMES} == OUTCOMES
            assert again.get("something else") is None
    with journal(tmp_path / "j", resume=False) as anew:
        assert len(anew) == 0 and anew.get("He go.") is None
    with journal(tmp_path / "none") as absent:
        assert len(absent) == 0


def test_what_an_interrupted_run_left_is_not_lost_unasked(tmp_path: Path) -> None:
    path = tmp_path / "j"
    with journal(path, resume=None) as first:
        first.add("He go.", Outcome("He goes."))
    data = path.read_bytes()
    for identity in ({}, {"input": "another file"}):
        with pytest.raises(
            JournalError, match=r"left by an interrupted run: resume=True continues it, resume=False starts over"
        ):
            journal(path, resume=None, **identity)
    path.write_bytes(data[:-1])  # its only outcome is cut off, so that nothing in it is usable
    with journal(path, resume=None) as empty:
        assert len(empty) == 0
    for resume in (None, False, True):
        path.write_bytes(b"a letter\nto a friend\n")
        with pytest.raises(JournalError, match="is not a journal, but must be one: move it away"):
            journal(path, resume=resume)
        assert path.read_bytes() == b"a letter\nto a friend\n"


def test_a_journal_that_was_cut_anywhere_keeps_its_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "j"
    with journal(path, resume=False) as first:
        for text, outcome in OUTCOMES.items():
            first.add(text, outcome)
    data = path.read_bytes()
    for length in [*range(0, len(data), 7), len(data) - 1, len(data)]:
        path.write_bytes(data[:length])
        with journal(path) as cut:
            assert len(cut) == max(0, data[:length].count(b"\n") - 1)
            for text in list(OUTCOMES)[: len(cut)]:
                assert cut.get(text) == OUTCOMES[text]
            cut.add("new", Outcome("NEW"))
        with journal(path) as repaired:
            assert repaired.get("new") == Outcome("NEW")


def test_texts_with_the_same_head_of_a_key_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = {text: bytes(8) + number.to_bytes(8, "big") for number, text in enumerate("abc")}
    monkeypatch.setattr("copyspec.pipelines.editing.journal._key", keys.__getitem__)
    with journal(tmp_path / "j", resume=False) as first:
        for text in "ab":
            first.add(text, Outcome(text.upper()))
    with journal(tmp_path / "j") as again:
        assert [again.get(text) for text in "abc"] == [Outcome("A"), Outcome("B"), None]


@pytest.mark.skipif(not hasattr(os, "fchmod"), reason="needs permissions of files")
def test_a_journal_is_for_its_owner_only(tmp_path: Path) -> None:
    """It holds the text of a file that may be private."""
    with journal(tmp_path / "j", resume=False) as first:
        first.add("He go.", Outcome("He goes."))
    assert (tmp_path / "j").stat().st_mode & 0o777 == 0o600
    (tmp_path / "j").chmod(0o660)
    journal(tmp_path / "j").close()
    assert (tmp_path / "j").stat().st_mode & 0o777 == 0o660, "one that was there keeps its own"


@pytest.mark.parametrize("broken", [{"changes": "-9:2:1.0"}, {"changes": "3:2:1.0"}, {"changes": "1"}, {"lost": "a b"}])
def test_a_broken_record_is_no_outcome(broken: dict[str, str], tmp_path: Path) -> None:
    path = tmp_path / "j"
    with journal(path, resume=False) as first:
        first.add("He go.", Outcome("He goes."))
    header, record = path.read_bytes().splitlines()
    line = json.dumps({**json.loads(record), **broken}, separators=(",", ":"))
    path.write_bytes(header + b"\n" + line.encode() + b"\n")
    with journal(path) as again:
        assert again.get("He go.") is None


def test_journals_of_other_runs_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "j"
    journal(path, resume=False, input="x").close()
    with pytest.raises(JournalError, match="another run: the file has changed since; undo that, or start over"):
        journal(path, input="y")
    with pytest.raises(JournalError, match="another run: model was 'a' and is now 'b'; undo that"):
        Journal(path, {"model": "b", "input": "x"}, resume=True)
    for version in (1, 99):
        path.write_text(f'{{"copyspec-journal":{version}}}\n')
        with pytest.raises(JournalError, match="another version"):
            journal(path)
    for text in ("a letter to a friend", "a letter\nto a friend\n", "[1]\n"):
        path.write_text(text)
        with pytest.raises(JournalError, match="is not a journal"):
            journal(path)
        assert path.read_text() == text


def test_a_long_list_of_words_loses_no_outcome(tmp_path: Path) -> None:
    path, words = tmp_path / "j", repr(tuple(f"word{number}" for number in range(80_000)))
    with journal(path, resume=None, guards=words) as first:
        first.add("He go.", Outcome("He goes."))
    with pytest.raises(JournalError, match="left by an interrupted run"):
        journal(path, resume=None, guards=words)
    with pytest.raises(JournalError, match=r"another run: guards was .*\.\.\. \(1028890 characters, hash"):
        journal(path, guards=words.replace("word7", "word"))
    with journal(path, guards=words) as again:
        assert again.get("He go.") == OUTCOMES["He go."]
    header, record = path.read_bytes().splitlines()
    long = {**json.loads(header), "guards": "x" * 2000}
    path.write_bytes(json.dumps(long).encode() + b"\n" + record + b"\n")  # as earlier versions wrote it
    with journal(path, guards="x" * 2000) as earlier:
        assert len(earlier) == 1


def test_a_first_line_cut_under_other_options_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "j"
    path.write_bytes(b'{"copyspec-journal":2,"model":"another mod')
    with journal(path, resume=None) as cut:
        assert len(cut) == 0


@pytest.mark.parametrize("content", [b'{"copyspec-journal":', b'{"c', b'{"copyspec-journal":2,"model":"a"}'])
def test_only_the_beginning_of_the_own_first_line_is_replaced(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "j"
    path.write_bytes(content)
    with journal(path, resume=None) as cut:
        assert len(cut) == 0
    for foreign in (content + b" my text", content + b"x" * (1 << 20), content + b"x" * (1 << 20) + b"\n"):
        path.write_bytes(foreign)
        for resume in (None, False, True):
            with pytest.raises(JournalError, match="is not a journal, but must be one: move it away"):
                journal(path, resume=resume)
        assert path.read_bytes() == foreign


def test_one_process_at_a_time(tmp_path: Path) -> None:
    pytest.importorskip("fcntl")
    with journal(tmp_path / "j", resume=False), pytest.raises(BlockingIOError, match="another process is working"):
        journal(tmp_path / "j")
    journal(tmp_path / "j").close()


def test_a_finished_file_is_known_by_its_output(tmp_path: Path) -> None:
    with journal(tmp_path / "j", resume=False, input="old") as first:
        first.finish("new")
    with journal(tmp_path / "j", input="old") as before:
        assert not before.is_done
    with journal(tmp_path / "j", input="new") as after:
        assert after.is_done


# -- outputs ------------------------------------------------------------------------------------------------------


def test_an_output_is_whole_or_not_there(tmp_path: Path) -> None:
    path = tmp_path / "out"
    with pytest.raises(KeyError), AtomicFile(path) as file:
        file.write(b"half")
        raise KeyError
    assert list(tmp_path.iterdir()) == []
    path.write_bytes(b"old")
    with AtomicFile(path, backup="~") as file:
        file.write(b"new")
        assert path.read_bytes() == b"old"
    assert (path.read_bytes(), (tmp_path / "out~").read_bytes()) == (b"new", b"old")
    for suffix in ("", "/x"):
        with pytest.raises(ValueError, match="must be a suffix"):
            AtomicFile(path, backup=suffix)
    with pytest.raises(OSError, match="not a regular file"):
        AtomicFile(tmp_path)
    with pytest.raises(FileNotFoundError):
        AtomicFile(tmp_path / "no" / "such")


def test_links_are_followed_and_circles_refused(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(OSError):
        target_of(tmp_path / "a")
    (tmp_path / "real").write_bytes(b"x")
    (tmp_path / "link").symlink_to("real")
    assert target_of(tmp_path / "link") == (tmp_path / "real").resolve()


def test_leftovers_of_killed_runs_go(tmp_path: Path) -> None:
    path = tmp_path / "a[b]*.txt"
    other = tmp_path / ".ab.txt.copyspec-1.tmp"
    other.touch()
    AtomicFile(path).file.close()
    assert len(list(tmp_path.iterdir())) == 2
    remove_leftovers(path)
    assert list(tmp_path.iterdir()) == [other]


def test_a_second_run_leaves_the_output_of_the_first(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_bytes(b"one\n\ntwo\n\nthree\n")
    reports = []

    def correct(text: str) -> str:
        if not reports:
            reports.extend(GECPipeline(FunctionCorrector(str.title, name="title")).files(file, options))
        return text.upper()

    options = FileOptions(in_place=True)
    (report,) = GECPipeline(FunctionCorrector(correct, name="upper")).files(file, options)
    assert isinstance(reports[0].error, BlockingIOError)
    assert report.error is None and file.read_bytes() == b"ONE\n\nTWO\n\nTHREE\n"


def test_a_file_saved_while_it_is_compared_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "a.txt"
    file.write_bytes(b"one\n")

    def saved(path: Path) -> str:
        digest = fingerprint(path)
        (tmp_path / "new").write_bytes(b"of an editor\n")
        os.replace(tmp_path / "new", path)
        return digest

    monkeypatch.setattr("copyspec.pipelines.editing.atomic_file.fingerprint", saved)
    (report,) = GECPipeline(FunctionCorrector(str.upper, name="upper")).files(file, FileOptions(in_place=True))
    assert isinstance(report.error, ChangedFileError) and file.read_bytes() == b"of an editor\n"


def test_files_that_fail_to_be_written_keep_their_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "a.txt"
    file.write_bytes(b"one\n\ntwo\n")
    pipeline = GECPipeline(FunctionCorrector(str.upper, name="upper"))

    def full(self: AtomicFile) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(AtomicFile, "commit", full)
        (report,) = pipeline.files(file, FileOptions(in_place=True))
    assert isinstance(report.error, OSError) and file.read_bytes() == b"one\n\ntwo\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.txt", f"a.txt{SUFFIX}"]
    (report,) = pipeline.files(file, FileOptions(in_place=True, resume=True))
    assert report.error is None and report.summary.resumed == 2 and file.read_bytes() == b"ONE\n\nTWO\n"


# -- kill -9 ------------------------------------------------------------------------------------------------------

SERVER = """
import json, os, signal, sys, tempfile
from pathlib import Path
from copyspec.cli import main
import copyspec.cli.gec as command
from copyspec.pipelines import FunctionCorrector

def run(log, moment, arguments):
    count = 0

    def correct(text):
        nonlocal count
        with open(log, "a") as file:
            file.write(text.replace(chr(10), " ") + chr(10))
        count += 1
        if count == moment:
            os.kill(os.getpid(), signal.SIGKILL)
        return text.replace("goed", "went")

    def kill_at(name, number):
        real = getattr(os, name)
        calls = []

        def wrapped(*args, **options):
            calls.append(name)
            if len(calls) == number:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*args, **options)

        setattr(os, name, wrapped)
        if hasattr(Path, "_accessor"):  # in Python 3.10 paths keep os's functions
            setattr(Path._accessor, name, wrapped)

    if isinstance(moment, list):
        kill_at(*moment)
    command.corrector_of = lambda *_: FunctionCorrector(correct, name="words")
    return main(arguments)

with tempfile.TemporaryDirectory() as folder:  # once, not in every process: imports and word lists
    file = Path(folder) / "a.txt"
    file.write_text("He goed home.")
    assert run(os.path.join(folder, "log"), 0, ["gec", "-i", "-q", str(file)]) == 0

for line in sys.stdin:
    child = os.fork()
    if child == 0:
        code = 99
        try:
            code = run(*json.loads(line))
        finally:
            os._exit(code)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""

Moment = int | tuple[str, int]
"""When the process dies: while correcting the text of this number, or before a system call; 0: never."""
Run = Callable[..., int]


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    """Runs the command in a separate process, forked from one that has imported everything."""
    if not hasattr(os, "fork"):
        pytest.skip("no fork")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", SERVER]
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        assert server.stdin is not None and server.stdout is not None
        to, back = server.stdin, server.stdout

        def ask(log: Path, moment: Moment, *arguments: object) -> int:
            to.write(json.dumps([str(log), moment, list(map(str, arguments))]).encode() + b"\n")
            to.flush()
            return int(back.readline())

        yield ask


def texts(rng: random.Random, count: int, name: str = "") -> bytes:
    pieces = [f"Number {i} {name} goed" + " on" * rng.randint(0, 5) for i in range(count)]
    return "\r\n\r\n".join(pieces).encode()


MOMENTS: list[Moment] = [
    1,
    2,
    17,
    40,
    41,
    79,
    ("link", 1),
    ("link", 2),
    ("unlink", 1),
    ("fsync", 1),
    ("fsync", 2),
    ("fsync", 5),
]


@pytest.mark.parametrize("moment", MOMENTS, ids=str)
def test_a_killed_run_goes_on_and_gives_the_same_bytes(moment: Moment, tmp_path: Path, run: Run) -> None:
    first, second, log = tmp_path / "first.txt", tmp_path / "second.txt", tmp_path / "log"
    rng = random.Random(str(moment))
    before = {path: texts(rng, 40, path.name) for path in (first, second)}
    for path, data in before.items():
        path.write_bytes(data)
    assert run(log, moment, "gec", "-i", "-q", "--backup", first, second) == -9
    for path, data in before.items():
        assert path.read_bytes() in (data, data.replace(b"goed", b"went"))
    assert isinstance(moment, tuple) or len(log.read_text().splitlines()) == moment
    assert run(log, 0, "gec", "-i", "-q", "--backup", "--resume", first, second) == 0
    for path, data in before.items():
        assert path.read_bytes() == data.replace(b"goed", b"went")
        assert path.with_name(path.name + ".bak").read_bytes() == data
    asked = log.read_text().splitlines()
    assert len(asked) - len(set(asked)) <= 1, "only what was in flight is asked again"
    left = ["first.txt", "first.txt.bak", "log", "second.txt", "second.txt.bak"]
    assert sorted(path.name for path in tmp_path.iterdir()) == left


def test_resuming_twice_and_into_an_output(tmp_path: Path, run: Run) -> None:
    file, out, log = tmp_path / "a.txt", tmp_path / "out.txt", tmp_path / "log"
    data = texts(random.Random(0), 30)
    file.write_bytes(data)
    assert run(log, 5, "gec", "-q", file, "-o", out) == -9
    assert not out.exists() and len((tmp_path / f"out.txt{SUFFIX}").read_text().splitlines()) == 5
    assert run(log, 7, "gec", "-q", file, "-o", out, "--resume") == -9
    assert run(log, 0, "gec", "-q", file, "-o", out, "--resume") == 0
    assert out.read_bytes() == data.replace(b"goed", b"went") and file.read_bytes() == data
    asked = log.read_text().splitlines()
    assert len(asked) == 32 and len(set(asked)) == 30
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.txt", "log", "out.txt"]


MEMORY = r"""
import re, sys
from pathlib import Path
from copyspec.pipelines import FileOptions, FunctionCorrector, GECPipeline
pipeline = GECPipeline(FunctionCorrector(lambda text: text, name="identity"))
def peak():
    # Not ru_maxrss, which begins with the memory of the process that started this one.
    return int(re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[1])
list(pipeline.files([sys.argv[1]], FileOptions(output=sys.argv[2])))
small = peak()
list(pipeline.files([sys.argv[3]], FileOptions(output=sys.argv[2])))
print(peak() - small)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    small, large = tmp_path / "small.txt", tmp_path / "large.txt"
    # All differ, in words of the list: other words are kept for the guards, up to 10 MB of them.
    digits = ("nought", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
    paragraph = "He goed home and nobody have seen him since. " * 20 + "Number {}.\n\n"
    for path, count in ((small, 500), (large, 2500)):
        path.write_text("".join(paragraph.format(" ".join(digits[int(d)] for d in str(n))) for n in range(count)))
    command = [sys.executable, "-c", MEMORY, str(small), str(tmp_path / "out"), str(large)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 1_000, f"{done.stdout} KiB more for {large.stat().st_size >> 10} KiB"
    assert (tmp_path / "out").read_bytes() == large.read_bytes()


def test_records_are_lines_of_json(tmp_path: Path) -> None:
    with journal(tmp_path / "j", resume=False) as first:
        first.add("a\nb", Outcome("c\nd"))
    header, record = map(json.loads, (tmp_path / "j").read_text().splitlines())
    assert header == {"copyspec-journal": 2, "model": "a"} and record["text"] == "c\nd"
