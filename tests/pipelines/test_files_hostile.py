"""Files that others write at the same time, full disks, long names: no file is lost."""

from __future__ import annotations

import ctypes
import errno
import io
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from copyspec.cli import main
from copyspec.common.filesystem import read_input
from copyspec.pipelines import (
    AtomicFile,
    Done,
    Edit,
    FileOptions,
    FileReport,
    FormatOptions,
    FunctionCorrector,
    GECPipeline,
    Part,
    Segment,
    Summary,
)
from copyspec.pipelines.editing import file_state, files
from copyspec.pipelines.editing.file_state import RESULT, ChangedFileError, FileState, exchanged, sibling_path
from copyspec.pipelines.editing.journal import SUFFIX, Journal
from copyspec.pipelines.editing.paths import Skipped, expand, suffixes_of
from copyspec.pipelines.editing.runner import Piece
from copyspec.pipelines.guards.guards import Checked
from tests.fuzz.files import fuzz
from tests.fuzz.files_cases import FORMATS
from tests.fuzz.files_marked_up import MARKED_UP

OLD, NEW, MINE = b"one\n\ntwo\n", b"ONE\n\nTWO\n", b"what I saved\n"


def correct(path: Path, while_it_runs: Callable[[], object] = lambda: None, **options: object) -> FileReport:
    """Run a correction during which `while_it_runs` is called, after the first text; return its report."""
    calls = iter([while_it_runs])

    def upper(text: str) -> str:
        next(calls, lambda: None)()
        return text.upper()

    pipeline = GECPipeline(FunctionCorrector(upper, name="upper"))
    arguments = {"in_place": "output" not in options, **options}
    (report,) = pipeline.files(path, FileOptions(**arguments))  # type: ignore[arg-type]
    return report


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "a.txt"
    path.write_bytes(OLD)
    return path


# -- saved meanwhile ----------------------------------------------------------------------------------------------


def saved_by_rename(file: Path) -> None:
    other = file.with_name("other")
    other.write_bytes(MINE)
    other.replace(file)


def saved_with_the_same_size_and_time(file: Path) -> None:
    before = file.stat()
    file.write_bytes(OLD.replace(b"one", b"uno"))
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.parametrize("backup", [None, ".bak"])
@pytest.mark.parametrize(
    "save", [lambda file: file.write_bytes(MINE), saved_by_rename, saved_with_the_same_size_and_time]
)
def test_a_file_that_was_saved_meanwhile_stays(save: Callable[[Path], object], backup: str | None, file: Path) -> None:
    saved = []

    def meanwhile() -> None:
        save(file)
        saved.append(file.read_bytes())

    report = correct(file, meanwhile, backup=backup)
    result = file.with_name(file.name + RESULT)
    assert (
        isinstance(report.error, ChangedFileError)
        and str(result) in str(report.error)
        and str(file) in str(report.error)
    )
    assert [file.read_bytes()] == saved and result.read_bytes() == NEW
    assert names(file.parent) == ["a.txt", result.name], "no journal, nothing half done"
    report = correct(file, lambda: file.write_bytes(b"again\n"))
    assert f"{result}-2" in str(report.error) and result.read_bytes() == NEW, "no result is overwritten"


def test_a_file_that_was_deleted_or_became_something_else_meanwhile_is_told(file: Path) -> None:
    report = correct(file, file.unlink)
    assert isinstance(report.error, ChangedFileError) and names(file.parent) == [f"a.txt{RESULT}"]
    for make in (file.mkdir, lambda: file.symlink_to("elsewhere"), lambda: os.mkfifo(file)):
        file.write_bytes(OLD)

        def become(make: Callable[[], object] = make) -> None:
            file.unlink()
            make()

        assert isinstance(correct(file, become).error, ChangedFileError)
        assert not file.is_file()
        file.rmdir() if file.is_dir() else file.unlink()


def test_a_file_saved_again_without_a_change_is_replaced(file: Path) -> None:
    assert correct(file, lambda: file.write_bytes(OLD)).error is None
    assert file.read_bytes() == NEW and names(file.parent) == ["a.txt"]


@pytest.mark.parametrize("was_there", [True, False])
def test_an_output_that_was_written_meanwhile_stays(was_there: bool, file: Path) -> None:
    out = file.with_name("out.txt")
    if was_there:
        out.write_bytes(b"before")
    report = correct(file, lambda: out.write_bytes(MINE), output=out)
    assert isinstance(report.error, ChangedFileError) and out.read_bytes() == MINE
    assert out.with_name(out.name + RESULT).read_bytes() == NEW


def test_a_file_saved_in_the_moment_of_the_switch_comes_back(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = file.with_name("other")
    other.write_bytes(b"x")
    if not exchanged(file, other):
        pytest.skip("this system cannot exchange two files")
    exchanged(file, other)
    other.unlink()
    first = iter([True])

    def late(left: Path, right: Path) -> bool:
        if next(first, False):
            saved_by_rename(file)
        return exchanged(left, right)

    monkeypatch.setattr("copyspec.pipelines.editing.atomic_file.exchanged", late)
    assert isinstance(correct(file).error, ChangedFileError)
    assert file.read_bytes() == MINE and file.with_name(file.name + RESULT).read_bytes() == NEW


def test_where_files_cannot_be_exchanged_they_are_replaced(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("copyspec.pipelines.editing.atomic_file.exchanged", lambda left, right: False)
    assert correct(file, backup=".bak").error is None
    assert file.read_bytes() == NEW and file.with_name("a.txt.bak").read_bytes() == OLD
    assert names(file.parent) == ["a.txt", "a.txt.bak"]


# -- what is kept, and what is refused ----------------------------------------------------------------------------


def test_a_missing_file_is_named_and_not_a_missing_folder(tmp_path: Path) -> None:
    missing = tmp_path / "none" / "a.txt"
    error = correct(missing).error
    assert isinstance(error, FileNotFoundError) and error.strerror == "No such file or directory"
    with pytest.raises(FileNotFoundError, match=r"none' \(No such file or directory\): make it, or write elsewhere"):
        AtomicFile(missing)


def test_a_file_called_like_standard_input_has_no_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    make(tmp_path / "-")
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(OLD)))
    left = list[str]()
    report = correct("-", lambda: left.extend(names(tmp_path)), output="out.txt")  # type: ignore[arg-type]
    assert report.error is None and Path("out.txt").read_bytes() == NEW and Path("-").read_bytes() == OLD
    assert not [name for name in left if name.endswith(SUFFIX)]


def test_hard_links_and_read_only_files_are_refused_before_any_work(file: Path) -> None:
    os.link(file, file.with_name("b.txt"))
    asked: list[int] = []
    report = correct(file, lambda: asked.append(1))
    assert "2 hard links" in str(report.error) and not asked and names(file.parent) == ["a.txt", "b.txt"]
    file.with_name("b.txt").unlink()
    file.chmod(0o444)
    if not os.access(file, os.W_OK):  # root may write everything
        assert "read-only" in str(correct(file).error)


def test_permissions_and_extended_attributes_stay(file: Path) -> None:
    file.chmod(0o640)
    try:
        os.setxattr(file, "user.note", b"mine")
    except (OSError, AttributeError):
        pytest.skip("no extended attributes here")
    assert correct(file).error is None and file.read_bytes() == NEW
    assert file.stat().st_mode & 0o777 == 0o640 and os.getxattr(file, "user.note") == b"mine"


def test_attributes_that_cannot_be_kept_are_a_reason_to_refuse(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOTSUP, "Operation not supported")

    monkeypatch.setattr(os, "listxattr", lambda path: ["user.note", "security.x"], raising=False)
    monkeypatch.setattr(os, "getxattr", lambda path, name: b"", raising=False)
    monkeypatch.setattr(os, "setxattr", refuse, raising=False)
    assert "user.note" in str(correct(file).error) and file.read_bytes() == OLD
    assert names(file.parent) == ["a.txt", f"a.txt{SUFFIX}"], "what the model wrote is not lost"


@pytest.mark.parametrize("code", [0, errno.EPERM])
def test_attributes_are_kept_on_macos(file: Path, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[bytes, bytes, object, int]] = []

    class Library:
        def copyfile(self, old: bytes, new: bytes, state: object, flags: int) -> int:
            calls.append((Path(os.fsdecode(old)).read_bytes(), Path(os.fsdecode(new)).read_bytes(), state, flags))
            ctypes.set_errno(code)
            return -1 if code else 0

    monkeypatch.setattr(file_state, "sys", SimpleNamespace(platform="darwin"))
    monkeypatch.setattr(ctypes, "CDLL", lambda name, use_errno: Library())
    monkeypatch.delattr(os, "listxattr", raising=False)
    report = correct(file)
    assert calls == [(OLD, NEW, None, 0b101)]
    if code:
        assert f"of {os.fspath(file)!r} cannot be kept ({os.strerror(code)}): remove them" in str(report.error)
    assert file.read_bytes() == (OLD if code else NEW)


def test_a_backup_is_on_the_disk_before_the_file_is_replaced(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: dict[int, bytes] = {}  # by inode: what the file held at that moment
    sync = os.fsync

    def recorded(handle: int) -> None:
        sync(handle)
        synced[os.fstat(handle).st_ino] = file.read_bytes()

    monkeypatch.setattr(os, "fsync", recorded)
    assert correct(file, backup=".bak").error is None
    assert synced[file.with_name("a.txt.bak").stat().st_ino] == OLD
    assert file.read_bytes() == NEW and file.with_name("a.txt.bak").read_bytes() == OLD


def test_long_names_have_room_for_what_stands_beside(tmp_path: Path) -> None:
    for name in ("x" * 251 + ".txt", "é" * 124 + ".txt"):
        path = tmp_path / name
        path.write_bytes(OLD)
        assert correct(path).error is None and path.read_bytes() == NEW and names(tmp_path) == [name]
        path.unlink()
    assert sibling_path(Path("y" * 250 + "a.txt"), SUFFIX) != sibling_path(Path("y" * 250 + "b.txt"), SUFFIX)
    report = correct(make(tmp_path / ("z" * 250 + ".txt")), backup=".backup")
    assert isinstance(report.error, OSError) and names(tmp_path)[0].endswith(".txt")


def make(path: Path) -> Path:
    path.write_bytes(OLD)
    return path


# -- a full disk --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["write", "journal", "fsync"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_a_full_disk_fails_one_file_and_the_others_are_done(
    place: str, code: int, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    second = make(file.with_name("b.txt"))
    is_full = [True]

    def full(real: Callable[..., object]) -> Callable[..., object]:
        def call(self: object, *arguments: object) -> object:
            path = getattr(self, "path", None)
            if is_full[0] and (path is None or "a.txt" in str(path)):
                is_full[0] = path is not None
                raise OSError(code, os.strerror(code))
            return real(self, *arguments)

        return call

    where, what = {"write": (AtomicFile, "write"), "journal": (Journal, "_append"), "fsync": (os, "fsync")}[place]
    with monkeypatch.context() as patch:
        patch.setattr(where, what, full(getattr(where, what)))
        pipeline = GECPipeline(FunctionCorrector(str.upper, name="upper"))
        first, other = pipeline.files([file, second], FileOptions(in_place=True))
    assert isinstance(first.error, OSError) and first.error.errno == code and file.read_bytes() == OLD
    assert other.error is None and second.read_bytes() == NEW
    assert not [name for name in names(file.parent) if name.endswith(".tmp")]
    assert correct(file, resume=True).error is None and file.read_bytes() == NEW
    assert names(file.parent) == ["a.txt", "b.txt"]


def test_a_limit_of_the_system_on_files_is_such_an_error(tmp_path: Path) -> None:
    resource = pytest.importorskip("resource")
    big, small = tmp_path / "a.txt", make(tmp_path / "b.txt")
    big.write_bytes(b"one two three\n\n" * 800)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8000, limits[1]))
    try:
        first, second = GECPipeline(FunctionCorrector(str.upper)).files([big, small], FileOptions(in_place=True))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert isinstance(first.error, OSError) and second.error is None and small.read_bytes() == NEW
    assert big.read_bytes().startswith(b"one") and not [name for name in names(tmp_path) if name.endswith(".tmp")]


# -- folders and formats ------------------------------------------------------------------------------------------


def test_a_folder_tells_what_it_does_not_give(tmp_path: Path) -> None:
    for name in ("a.txt", "b.srt", ".hidden", "c.html", "build/x.txt", ".git/x.txt", "d/e.md", "d/f.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(OLD)
    (tmp_path / "link.txt").symlink_to("a.txt")
    os.mkfifo(tmp_path / "pipe.txt")
    skipped = Skipped()
    paths = expand([str(tmp_path)], suffixes=suffixes_of(None), exclude=["f.txt"], skipped=skipped)
    assert [Path(path).name for path in paths] == ["a.txt", "e.md"]
    assert skipped.line() == (
        "2 of other formats (.srt, .html), 2 hidden, 1 links, 1 pipes, sockets or devices, "
        "1 folders that nobody writes by hand, 1 excluded"
    )
    assert dict(skipped.found)[str(tmp_path / "b.srt")] == "format" and not Skipped().line()


def test_a_folder_that_may_not_be_read_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path / "a.txt")
    (tmp_path / "closed").mkdir()
    scandir = os.scandir

    def refusing(path: str) -> object:
        if str(path).endswith("closed"):
            raise PermissionError(13, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refusing)
    skipped = Skipped()
    assert len(expand([str(tmp_path)], suffixes=suffixes_of(None), skipped=skipped)) == 1
    assert skipped.found == [(str(tmp_path / "closed") + os.sep, "unreadable")]
    assert skipped.line() == "1 folders that may not be read"


@pytest.mark.parametrize(
    ("name", "what"), [("a.srt", "time codes"), ("a.html", "tags"), ("a.tex", "commands"), ("a.docx", "packed")]
)
def test_files_of_another_format_are_text_only_by_force(name: str, what: str, tmp_path: Path) -> None:
    path = make(tmp_path / name)
    report = correct(path, format="txt")
    assert what in str(report.error) and "force_format=True" in str(report.error) and path.read_bytes() == OLD
    assert correct(path, format="txt", format_options=FormatOptions(force_format=True)).error is None
    assert path.read_bytes() == NEW


def test_many_segments_and_edits_are_counted_in_little_time() -> None:
    count = 20_000
    pieces = [Piece(Segment(3 * n, 3 * n + 2), Checked(())) for n in range(count)]
    edits = [Edit(3 * n, 3 * n + 1, "c") for n in range(0, count, 2)]
    summary, start = Summary(), time.process_time()
    files._count(summary, Done(None, Part("ab " * count), pieces, edits=edits))  # type: ignore[arg-type]
    assert (summary.segments, summary.changed, summary.edits) == (count, count // 2, count // 2)
    assert time.process_time() - start < 2.0


def test_random_hostile_files_and_models() -> None:
    outcome = fuzz(
        99, 5, formats=[form for form in FORMATS if form not in MARKED_UP]
    )  # test_marked_up.py tests the others
    assert not outcome.wrong, outcome.examples
    assert outcome.edits > 200 and sum(outcome.files.values()) == 99


def test_a_file_state_is_known_by_its_place_size_and_time(file: Path) -> None:
    state = FileState.of(file)
    assert state.is_file and state == FileState.of(file)
    file.write_bytes(MINE)
    assert (
        FileState.of(file) != state and FileState.of(file / "x") == FileState.of(file.with_name("none")) == FileState()
    )


def test_what_may_never_end_is_not_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pipe, device = tmp_path / "pipe.txt", tmp_path / "device.txt"
    os.mkfifo(pipe)
    device.symlink_to("/dev/zero")
    for path, what in ((pipe, "is a named pipe"), (device, "is a device")):
        for command in (
            ["gec", "--diff", path],
            ["gec", "--apply", path, make(tmp_path / "a.txt")],
            ["gec", "--words", path, tmp_path / "a.txt"],
            ["generate", "-f", path],
            ["generate", "x", "-R", path],
            ["trace", path],
            ["index", "add", "-d", tmp_path / "corpora", "c", path],
        ):
            assert main(list(map(str, command))) in (1, 2, 3), command
            assert f"{what}, which may never end" in capsys.readouterr().err, command
    read_end, write_end = os.pipe()
    with os.fdopen(write_end, "wb") as file:
        file.write(b"a pipe of the shell")
    assert read_input(f"/dev/fd/{read_end}") == b"a pipe of the shell"
    os.close(read_end)


def another_users(folder: Path, name: str, mode: int) -> Path:
    """A file of root that all may write, in a folder that others share."""
    folder.mkdir()
    os.chmod(folder.parent, 0o755)
    file = folder / ("real.txt" if name == "link.txt" else name)
    file.write_bytes(OLD)
    if name == "link.txt":
        (folder / name).symlink_to("real.txt")
    file.chmod(0o666)
    os.chown(folder, 0, 65534)
    folder.chmod(mode)
    return file


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can be several users")
@pytest.mark.parametrize("mode", [0o1777, 0o1775, 0o1773])
@pytest.mark.parametrize("name", ["a.txt", "b c.md", "link.txt"])
@pytest.mark.parametrize("backup", [None, ".bak"])
def test_a_file_of_another_user_in_a_shared_folder_stays(mode: int, name: str, backup: str | None) -> None:
    asked: list[int] = []
    with tempfile.TemporaryDirectory() as place:  # pytest's own folders are closed to other users
        file = another_users(Path(place) / "shared", name, mode)
        os.setegid(65534)
        os.seteuid(65534)
        try:
            report = correct(file.with_name(name), lambda: asked.append(1), backup=backup)
        finally:
            os.seteuid(0)
            os.setegid(0)
        assert f"{file.name}' cannot be replaced (its folder is shared" in str(report.error) and not asked
        assert file.read_bytes() == OLD and set(os.listdir(file.parent)) == {file.name, name}


@pytest.mark.parametrize("number", [errno.EPERM, errno.EACCES])
def test_a_file_that_the_system_protects_is_named(number: int, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = os.replace

    def refused(source: Path, target: Path) -> None:
        if Path(target) == file:
            raise PermissionError(number, os.strerror(number))
        plain(source, target)

    monkeypatch.setattr("copyspec.pipelines.editing.atomic_file.exchanged", lambda *_: False)
    monkeypatch.setattr(os, "replace", refused)
    assert f"a.txt' cannot be replaced ({os.strerror(number)}): write elsewhere" in str(correct(file).error)
    assert file.read_bytes() == OLD and not list(file.parent.glob(".*"))  # the journal stays, for --resume
