"""The lines of files that changed since a git revision, for `--since`."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from copyspec.cli.common import STDIN, UsageError
from copyspec.common.filesystem import open_input

_HUNK = re.compile(rb"^@@ -\S+ \+(\d+)(?:,(\d+))? @@", re.MULTILINE)
_EVERYTHING = range(1, 1 << 62)
_DIFF = (
    "--no-color", "--no-ext-diff", "--no-textconv", "--ignore-submodules=all", "--text", "--unified=0",
    "--inter-hunk-context=0",
)  # fmt: skip


def changed_lines(paths: Sequence[str], revision: str) -> dict[str, list[range]]:
    """For each file that differs from `revision`: the changed lines, counted from 1; all lines of an untracked file.
    Raises UsageError for files outside a repository and for unknown revisions."""
    if STDIN in paths:
        raise UsageError(f"--since {revision}: - is standard input, which has no revisions")
    if revision.startswith("-") or not revision.strip():
        raise UsageError(f"--since {revision!r} is not a revision; name a commit, a branch or a tag")
    changed: dict[str, list[range]] = {}
    commits: dict[str, str] = {}
    filters: dict[str, dict[str, str]] = {}
    for path in paths:
        file = Path(os.path.realpath(path))  # git knows a link by its own content, the name of another file
        folder = str(file.parent)
        if folder not in commits:
            filters[folder] = _without_filters(folder)
            commits[folder] = _commit(path, folder, revision)
        if not _git(folder, "ls-files", "--", file.name):
            changed[path] = [_EVERYTHING]
            continue
        diff = _git(folder, "diff", *_DIFF, commits[folder], "--", file.name, settings=filters[folder])
        if diff is None:
            raise UsageError(f"--since {revision!r}: git diff fails for {path}; run it there, or leave out --since")
        hunks = ((int(hunk[1]), int(hunk[2] or 1)) for hunk in _HUNK.finditer(diff))
        if ranges := [range(start, start + count) for start, count in hunks if count]:
            changed[path] = _with_carriage_returns(file, ranges)
    return changed


def _commit(path: str, folder: str, revision: str) -> str:
    """The commit that `revision` names in the repository of `path`."""
    commit = _git(folder, "rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}")
    if commit is not None:
        return commit.decode().strip()
    if _git(folder, "rev-parse", "--show-toplevel") is None:
        raise UsageError(f"--since {revision!r}: {path} is in no git repository")
    raise UsageError(f"--since {revision!r}: no revision there ({path})")


def _with_carriage_returns(file: Path, ranges: Sequence[range]) -> list[range]:
    """The lines in `ranges`, counted by git, as `ChangedLines` counts them: a lone carriage return ends a line, too."""
    bounds = {bound for span in ranges for bound in (span.start, span.stop)}
    number, lone = 1, 0
    moved = {number: number}
    with open_input(file) as stream:
        for number, line in enumerate(stream, start=2):
            lone += line.count(b"\r") - line.endswith(b"\r\n")
            if number in bounds:
                moved[number] = number + lone
    return [range(moved.get(span.start, number + lone), moved.get(span.stop, number + lone)) for span in ranges]


def _without_filters(folder: str) -> dict[str, str]:
    """Settings that disable the filters configured by the repository itself, which `git diff` would run; the user's own
    still run."""
    looked_up = ("--name-only", "--null", "--get-regexp", r"^filter\.")
    listed = _git(folder, "config", "--show-scope", *looked_up)
    if listed is None and _git(folder, "config", *looked_up):
        raise UsageError("--since needs git 2.26 or newer, which says where a filter is configured")
    listed = listed or b""
    scopes, names = ([os.fsdecode(field) for field in listed.split(b"\0")[start::2]] for start in (0, 1))
    own = (name for scope, name in zip(scopes, names, strict=False) if scope in ("local", "worktree"))
    return {name: "false" if name.endswith(".required") else "" for name in own}


def _git(folder: str, *arguments: str, settings: Mapping[str, str] | None = None) -> bytes | None:
    """The output of git in a folder; None if it fails. Programs configured by the repository are not started."""
    config = {"core.fsmonitor": "false", "core.hooksPath": os.devnull, "core.quotePath": "false", **(settings or {})}
    # Not as -c name=value: a name may hold "=".
    first = int(os.environ.get("GIT_CONFIG_COUNT") or 0)
    environment = {**os.environ, "GIT_CONFIG_COUNT": str(first + len(config)), "GIT_OPTIONAL_LOCKS": "0"}
    # A file may be named [a].txt or :x. Git refuses the first variable beside the others.
    environment |= {"GIT_LITERAL_PATHSPECS": "1", "GIT_GLOB_PATHSPECS": "0", "GIT_ICASE_PATHSPECS": "0"}
    environment |= {"GIT_NOGLOB_PATHSPECS": "0"}
    # A partial clone fetches what it lacks, by any program its configuration names: with no protocol it cannot.
    environment |= {"GIT_NO_LAZY_FETCH": "1", "GIT_ALLOW_PROTOCOL": "", "GIT_TERMINAL_PROMPT": "0"}
    for number, (name, value) in enumerate(config.items(), start=first):
        environment |= {f"GIT_CONFIG_KEY_{number}": name, f"GIT_CONFIG_VALUE_{number}": value}
    command = [_program(), "--no-pager", "-C", folder, *arguments]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False, env=environment)
    except OSError as error:
        raise UsageError(f"--since needs git: {error.strerror}") from error
    return done.stdout if done.returncode == 0 else None


def _program() -> str:
    """The path of git, which is not looked for in the working folder, as PATH may say and Windows always does."""
    for folder in filter(os.path.isabs, os.get_exec_path()):
        program = shutil.which("git", path=folder)
        if program is not None and os.path.isabs(program):
            return program
    raise UsageError("--since needs git: it is in no folder of PATH")
