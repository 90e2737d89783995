"""Finds lines that changed since a git revision."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from copyspec.cli.common import STDIN, UsageError

_HUNK = re.compile(rb"^@@ -\S+ \+(\d+)(?:,(\d+))? @@", re.MULTILINE)
_EVERYTHING = range(1, 1 << 62)


def changed_lines(paths: Sequence[str], revision: str) -> dict[str, list[range]]:
    """For each file that differs from `revision`: the changed lines, counted from 1; all lines of an untracked file.
    Raises UsageError for files outside a repository and for unknown revisions."""
    if STDIN in paths:
        raise UsageError(f"--since {revision}: - is standard input, which has no revisions")
    if revision.startswith("-") or not revision.strip():
        raise UsageError(f"--since {revision!r} is not a revision; name a commit, a branch or a tag")
    found: dict[str, list[range]] = {}
    commits: dict[str, str] = {}
    filters: dict[str, dict[str, str]] = {}
    for path in paths:
        file = Path(path).absolute()
        folder = str(file.parent)
        if folder not in commits:
            filters[folder] = _without_filters(folder)
            commit = _git(folder, "rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}")
            if commit is None:
                inside = _git(folder, "rev-parse", "--show-toplevel") is not None
                what = "no revision there" if inside else "in no git repository"
                raise UsageError(
                    f"--since {revision!r}: {path} is {what}"
                    if not inside
                    else f"--since {revision!r}: {what} ({path})"
                )
            commits[folder] = commit.decode().strip()
        if not _git(folder, "ls-files", "--", file.name):
            found[path] = [_EVERYTHING]
            continue
        diff = _git(
            folder,
            "diff",
            "--no-color",
            "--no-ext-diff",
            "--no-textconv",
            "--text",
            "--unified=0",
            commits[folder],
            "--",
            file.name,
            settings=filters[folder],
        )
        if diff is None:
            raise UsageError(f"--since {revision!r}: git diff fails for {path}; run it there, or leave out --since")
        ranges = [
            range(int(start), int(start) + int(b"1" if count is None else count))
            for start, count in ((hunk[1], hunk[2]) for hunk in _HUNK.finditer(diff))
        ]
        if ranges := [each for each in ranges if each]:
            found[path] = ranges
    return found


def _without_filters(folder: str) -> dict[str, str]:
    """Settings that disable the filters configured by the repository itself, which `git diff` would run; the user's own
    still run."""
    listed = _git(folder, "config", "--show-scope", "--name-only", "--null", "--get-regexp", r"^filter\.") or b""
    scopes, names = ([os.fsdecode(each) for each in listed.split(b"\0")[start::2]] for start in (0, 1))
    own = (name for scope, name in zip(scopes, names, strict=False) if scope in ("local", "worktree"))
    return {name: "false" if name.endswith(".required") else "" for name in own}


def _git(folder: str, *arguments: str, settings: Mapping[str, str] | None = None) -> bytes | None:
    """The output of git in a folder; None if it fails. Programs configured by the repository are not started."""
    given = {"core.fsmonitor": "false", "core.hooksPath": os.devnull, "core.quotePath": "false", **(settings or {})}
    # Not as -c name=value: a name may hold "=".
    first = int(os.environ.get("GIT_CONFIG_COUNT") or 0)
    environment = {**os.environ, "GIT_CONFIG_COUNT": str(first + len(given)), "GIT_OPTIONAL_LOCKS": "0"}
    # A file may be named [a].txt or :x. Git refuses the first variable beside the others.
    environment |= {"GIT_LITERAL_PATHSPECS": "1", "GIT_GLOB_PATHSPECS": "0", "GIT_ICASE_PATHSPECS": "0"}
    environment |= {"GIT_NOGLOB_PATHSPECS": "0"}
    for number, (name, value) in enumerate(given.items(), start=first):
        environment |= {f"GIT_CONFIG_KEY_{number}": name, f"GIT_CONFIG_VALUE_{number}": value}
    try:
        done = subprocess.run(["git", "-C", folder, *arguments], capture_output=True, check=False, env=environment)
    except OSError as error:
        raise UsageError(f"--since needs git: {error.strerror}") from error
    return done.stdout if done.returncode == 0 else None
