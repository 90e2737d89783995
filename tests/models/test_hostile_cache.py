"""Cached models whose manifest or files somebody else has written: made again, or an error that says what to remove."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from copyspec.cli import main
from copyspec.models.model_cache import MANIFEST, is_whole, made, made_once


@pytest.fixture(autouse=True)
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the cached models."""
    monkeypatch.setenv("COPYSPEC_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "models"


def _write(folder: Path) -> None:
    (folder / "a").write_bytes(b"a" * 1000)


def _put(path: Path, kind: str) -> None:
    path.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to(kind)


def _elsewhere(folder: Path) -> None:
    status = os.stat("/etc/passwd")
    stamp = [status.st_size, status.st_mtime_ns, status.st_ctime_ns]
    (folder / MANIFEST).write_text(json.dumps({"files": {"/etc/passwd": ["", *stamp]}}))


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: (folder / MANIFEST).write_text('["' * 200_000),
        lambda folder: (folder / MANIFEST).write_text('{"a":' * 100_000),
        lambda folder: os.truncate(folder / MANIFEST, 20 << 30),
        lambda folder: _put(folder / MANIFEST, "pipe"),
        lambda folder: _put(folder / MANIFEST, "/dev/zero"),
        lambda folder: _put(folder / "a", "pipe"),
        lambda folder: _put(folder / "a", "/dev/zero"),
        lambda folder: os.truncate(folder / "a", 20 << 30),
        _elsewhere,
    ],
)
def test_forged_folders_are_made_again(damage: Callable[[Path], object]) -> None:
    folder = made_once("x", _write)
    damage(folder)
    assert not is_whole(folder)
    assert is_whole(made_once("x", _write)) and (folder / "a").read_bytes() == b"a" * 1000


@pytest.mark.parametrize("kind", ["file", "link"])
def test_what_stands_where_a_folder_is_to_be_is_named(kind: str, models: Path) -> None:
    models.mkdir(parents=True)
    if kind == "file":
        (models / "x").touch()
    else:
        (models / "x").symlink_to("nowhere")
    with pytest.raises(OSError, match=rf"/x' is a {kind}, where a model is to be kept: remove it"):
        made_once("x", _write)


def test_folders_that_cannot_be_read_are_listed_and_removed(
    models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("x", "y", "odd\n\x1b[2J"):
        made_once(name, _write)
    (models / "x" / "broken").symlink_to("nowhere")
    (models / "y").rename(tmp_path / "elsewhere")
    (models / "y").symlink_to(tmp_path / "elsewhere")
    assert main(["models"]) == 0
    assert r"'odd\n\x1b[2J'" in capsys.readouterr().out
    assert main(["models", "remove", "x", "none"]) == 2 and len(made()) == 3, "all names are checked first"
    assert main(["models", "remove", "x", "x", "y"]) == 0
    assert [folder.name for folder, _ in made()] == ["odd\n\x1b[2J"] and (tmp_path / "elsewhere" / "a").is_file()


@pytest.mark.parametrize("variable", ["COPYSPEC_CACHE", "XDG_CACHE_HOME"])
def test_a_home_folder_that_is_not_known_is_named(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COPYSPEC_CACHE")
    monkeypatch.setenv(variable, "~nobody-here/x")
    with pytest.raises(OSError, match=rf"{variable} is '~nobody-here/x', and that home folder is not known"):
        made_once("x", _write)


@pytest.mark.parametrize(("mask", "folders", "files"), [(0o022, 0o755, 0o644), (0o077, 0o700, 0o600)])
def test_others_may_read_a_cached_model_as_the_umask_says(mask: int, folders: int, files: int) -> None:
    def make(folder: Path) -> None:
        _write(folder)
        (folder / "a").chmod(0o600)  # as safetensors does

    old = os.umask(mask)
    try:
        folder = made_once("x", make)
    finally:
        os.umask(old)
    modes = {path.name: path.stat().st_mode & 0o777 for path in (folder, *folder.iterdir())}
    assert modes == {"x": folders, "a": files, MANIFEST: files}
    noted = json.loads((folder / MANIFEST).read_text())["files"]["a"]
    assert noted[-1] == (folder / "a").stat().st_ctime_ns, "it need not be hashed again"
