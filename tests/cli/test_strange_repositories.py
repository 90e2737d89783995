"""`--since` in a stranger's repository starts no program that its configuration names, and none of its folder."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from copyspec.cli.common import UsageError
from copyspec.cli.git_changes import changed_lines

pytestmark = pytest.mark.skipif(shutil.which("git") is None or os.name == "nt", reason="needs git and a shell")

Trap = Callable[[Path, str], None]


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "protocol.file.allow=always"]
    command = ["git", "-C", str(folder), *identity, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    place = tmp_path / "repository"
    place.mkdir()
    git(place, "init", "-q")
    (place / "a.txt").write_text("one\n")
    git(place, "add", ".")
    git(place, "commit", "-qm", "first")
    (place / "a.txt").write_text("one\ntwo\n")
    monkeypatch.chdir(place)
    return place


def configured(*settings: tuple[str, str]) -> Trap:
    def set_all(folder: Path, command: str) -> None:
        for name, value in settings:
            git(folder, "config", name, value.replace("COMMAND", command))

    return set_all


def included(*settings: tuple[str, str]) -> Trap:
    def include(folder: Path, command: str) -> None:
        for name, value in settings:
            git(folder, "config", "-f", str(folder / "more"), name, value.replace("COMMAND", command))
        git(folder, "config", "include.path", "../more")

    return include


def in_worktree(folder: Path, command: str) -> None:
    git(folder, "config", "extensions.worktreeConfig", "true")
    git(folder, "config", "--worktree", "filter.x.clean", command)


def partial(*settings: tuple[str, str]) -> Trap:
    """A partial clone that lacks the old content of the file, with a remote that starts a program."""

    def clone(folder: Path, command: str) -> None:
        blob = git(folder, "rev-parse", "HEAD:a.txt").strip()
        (folder / ".git" / "objects" / blob[:2] / blob[2:]).unlink()
        git(folder, "config", "core.repositoryFormatVersion", "1")
        git(folder, "config", "extensions.partialClone", "origin")
        git(folder, "config", "remote.origin.promisor", "true")
        configured(*settings)(folder, command)

    return clone


SSH = ("remote.origin.url", "ssh://nowhere.invalid/x")
TRAPS: dict[str, Trap] = {
    "fsmonitor": configured(("core.fsmonitor", "COMMAND;")),
    "external diff": configured(("diff.external", "COMMAND")),
    "driver": configured(("diff.x.command", "COMMAND")),
    "text conversion": configured(("diff.x.textconv", "COMMAND; cat")),
    "clean": configured(("filter.x.clean", "COMMAND; cat")),
    "process": configured(("filter.x.process", "COMMAND"), ("filter.x.required", "true")),
    "included clean": included(("filter.x.clean", "COMMAND; cat")),
    "included driver": included(("diff.x.textconv", "COMMAND; cat"), ("core.fsmonitor", "COMMAND;")),
    "clean of a worktree": in_worktree,
    "pager": configured(("core.pager", "COMMAND; cat"), ("pager.diff", "COMMAND; cat"), ("pager.config", "COMMAND")),
    "alias": configured(("alias.diff", "!COMMAND"), ("alias.ls-files", "!COMMAND"), ("alias.rev-parse", "!COMMAND")),
    "editor": configured(("core.editor", "COMMAND"), ("core.askPass", "COMMAND"), ("sequence.editor", "COMMAND")),
    "signature": configured(("gpg.program", "COMMAND"), ("log.showSignature", "true")),
    "fetch by ext": partial(("remote.origin.url", "ext::sh -c COMMAND"), ("protocol.ext.allow", "always")),
    "fetch, all allowed": partial(("remote.origin.url", "ext::sh -c COMMAND"), ("protocol.allow", "always")),
    "fetch by ssh": partial(SSH, ("core.sshCommand", "COMMAND;")),
    "fetch by a helper": partial(("remote.origin.vcs", "ext"), ("remote.origin.url", "sh -c COMMAND")),
    "fetch from a folder": partial(("remote.origin.url", "."), ("remote.origin.uploadpack", "COMMAND;")),
    "fetch by git": partial(("remote.origin.url", "git://nowhere.invalid/x"), ("core.gitProxy", "COMMAND")),
    "fetch with a password": partial(
        ("remote.origin.url", "http://localhost:9/x"), ("credential.helper", "!COMMAND"), ("core.askPass", "COMMAND")
    ),
    "rewritten address": partial(
        ("remote.origin.url", "https://nowhere.invalid/x"),
        ("url.ext::sh -c COMMAND .insteadOf", "https://"),
        ("protocol.ext.allow", "always"),
    ),
}


def trapped(folder: Path, trap: Trap) -> Path:
    """Set the trap; returns the file that its program makes."""
    ran = folder.parent / "ran"
    program = folder.parent / "program"
    program.write_text(f"#!/bin/sh\ntouch {ran}\n")
    program.chmod(0o755)
    (folder / ".gitattributes").write_text("*.txt filter=x diff=x\n")
    trap(folder, str(program))
    (folder / "a.txt").touch()
    return ran


@pytest.mark.parametrize("name", TRAPS)
def test_no_program_of_the_repository_is_started(name: str, folder: Path) -> None:
    ran = trapped(folder, TRAPS[name])
    if name.startswith(("fetch", "rewritten")):
        with pytest.raises(UsageError, match=r"git diff fails for a\.txt"):
            changed_lines(["a.txt"], "HEAD")
    else:
        assert changed_lines(["a.txt"], "HEAD") == {"a.txt": [range(2, 3)]}
    assert not ran.exists()


@pytest.mark.parametrize("name", ["fsmonitor", "clean", "included clean", "text conversion", "fetch by ext"])
def test_the_traps_work(name: str, folder: Path) -> None:
    ran = trapped(folder, TRAPS[name])
    subprocess.run(["git", "diff", "HEAD", "--", "a.txt"], capture_output=True, cwd=folder)
    assert ran.exists()


def test_hooks_do_not_run(folder: Path) -> None:
    ran = trapped(folder, configured(("core.hooksPath", str(folder / "hooks"))))
    for hooks in (folder / "hooks", folder / ".git" / "hooks"):
        hooks.mkdir(exist_ok=True)
        for name in ("post-index-change", "fsmonitor-watchman", "post-checkout", "reference-transaction"):
            shutil.copy(folder.parent / "program", hooks / name)
    assert changed_lines(["a.txt"], "HEAD") == {"a.txt": [range(2, 3)]} and not ran.exists()


def test_a_variable_that_allows_protocols_is_not_used(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_ALLOW_PROTOCOL", "ext:file:ssh")
    ran = trapped(folder, TRAPS["fetch by ext"])
    with pytest.raises(UsageError, match="git diff fails"):
        changed_lines(["a.txt"], "HEAD")
    assert not ran.exists()


def test_a_submodule_is_not_asked(folder: Path) -> None:
    inner = folder.parent / "inner"
    shutil.copytree(folder, inner)
    git(folder, "submodule", "add", "-q", str(inner), "sub")
    git(folder, "commit", "-qm", "second")
    ran = trapped(folder, configured(("diff.submodule", "log"), ("status.submoduleSummary", "true")))
    git(folder / "sub", "config", "core.fsmonitor", f"{folder.parent / 'program'};")
    (folder / "sub" / "a.txt").write_text("three\n")
    assert changed_lines(["a.txt"], "HEAD~") == {"a.txt": [range(2, 3)]} and not ran.exists()
    assert changed_lines(["sub/a.txt"], "HEAD") == {"sub/a.txt": [range(1, 2)]} and not ran.exists()


@pytest.mark.parametrize("path", [".", "", "bin", "./bin"])
def test_git_is_not_looked_for_in_the_working_folder(path: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "bin").mkdir()
    ran = trapped(folder, lambda *_: None)
    for place in (folder, folder / "bin"):
        shutil.copy(folder.parent / "program", place / "git")
    monkeypatch.setenv("PATH", f"{path}{os.pathsep}{os.environ['PATH']}")
    assert changed_lines(["a.txt"], "HEAD") == {"a.txt": [range(2, 3)]} and not ran.exists()
    monkeypatch.setenv("PATH", path)
    with pytest.raises(UsageError, match="--since needs git: it is in no folder of PATH"):
        changed_lines(["a.txt"], "HEAD")
    assert not ran.exists()
