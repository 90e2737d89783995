"""Project settings for correcting files: `[tool.copyspec]` in pyproject.toml, or `.copyspec.toml`."""

from __future__ import annotations

import difflib
import glob
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from copyspec.cli.common import UsageError
from copyspec.common.checks import brief

FILES = (".copyspec.toml", "pyproject.toml")
"""Searched in the working folder and its parents; the first file with copyspec settings is used."""

ALLOWED = frozenset(
    {
        *("exclude", "format", "line_mode", "field", "column", "encoding", "protect", "words", "precision", "style"),
        *("max_edit_ratio", "max_lost_ratio", "allow_numbers", "allow_links", "allow_code", "allow_names"),
        *("allow_new_words", "allow_swaps", "any_language", "language", "by_sentence", "segmenter", "kinds"),
        *("server", "model"),
    }
)
"""Options a project may set: what is corrected and what stays. Only the user chooses where texts and output go, since
the project may be somebody else's: of servers and their models it may name those on this machine."""

_LIST_OPTIONS = frozenset({"exclude", "protect", "words"})


def defaults(folder: Path | None = None) -> dict[str, Any]:
    """Defaults for `gec` and `lsp` (not `edit`), from the nearest settings file at or above `folder` (default: the
    working folder); keys are parameter names.

    Raises UsageError for invalid TOML with such settings, for options that a project may not set, for anything but a
    list of strings where one is needed, and for a list or table elsewhere. Whether the other values are text, numbers
    or booleans is not checked here: `gec` converts them as it does its options.
    """
    path = settings_file(folder)
    table = None if path is None else _table(path)
    settings = {} if path is None or table is None else dict([_setting(path, *item) for item in table.items()])
    if "model" in settings and "server" not in settings:
        raise UsageError(f"{path}: a project cannot set 'model' without the 'server' that has it")
    return settings


def settings_file(folder: Path | None = None) -> Path | None:
    """The file whose settings `defaults` returns; None if there is none."""
    folder = (folder or Path.cwd()).resolve()
    places = (place / name for place in (folder, *folder.parents) for name in FILES)
    return next((path for path in places if path.is_file() and _table(path) is not None), None)


def _table(path: Path) -> Mapping[str, Any] | None:
    """The copyspec settings in a file; None if there are none."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    is_dedicated, raw = path.name == FILES[0], b""
    try:
        raw = path.read_bytes()
        read = tomllib.loads(raw.decode())
    except (OSError, ValueError, RecursionError) as error:
        if not is_dedicated and b"tool.copyspec" not in raw:
            return None  # an invalid pyproject.toml without settings of ours is not ours to report
        raise UsageError(f"{path}: {error}") from error
    tool = read.get("tool")
    table: Any = read if is_dedicated else tool.get("copyspec") if isinstance(tool, dict) else None
    if table is not None and not isinstance(table, dict):
        raise UsageError(f"{path}: [tool.copyspec] must be a table, got {brief(table)}")
    return table


def _setting(path: Path, key: str, value: object) -> tuple[str, object]:
    """The parameter that `key` sets, with underscores for hyphens, and its value. Paths are relative to the file."""
    name = key.replace("-", "_")
    if name not in ALLOWED:
        close = difflib.get_close_matches(name, ALLOWED, n=1)
        hint = f"did you mean {close[0].replace('_', '-')!r}?" if close else f"known are {', '.join(sorted(ALLOWED))}"
        raise UsageError(f"{path}: a project cannot set {brief(key)}; {hint}")
    if name in _LIST_OPTIONS:
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise UsageError(f"{path}: {key} must be a list of strings, got {brief(value)}")
        return name, _from_folder(path.parent, name, value)
    if name == "server":
        _check_server(path, value)
    if isinstance(value, (dict, list)):
        raise UsageError(f"{path}: {key} must be a single value, got {brief(value)}")
    return name, value


def _check_server(path: Path, value: object) -> None:
    """Raise UsageError for a server that is not on this machine: a stranger's project could have texts sent to it."""
    from copyspec.client.sending import check_url, is_loopback

    try:
        is_here = is_loopback(check_url(value))
    except (TypeError, ValueError) as error:
        raise UsageError(f"{path}: server: {error}") from error
    if not is_here:
        raise UsageError(
            f"{path}: server: a project may only name one on this machine, not {brief(value)}: give it yourself with "
            "--server"
        )


def _from_folder(folder: Path, name: str, value: list[str]) -> list[str]:
    """The value of a list option as it is meant in the folder of the settings, wherever copyspec is started."""
    if name == "words":
        return [str(_inside(folder, path)) for path in value]
    if name == "exclude":  # a pattern fits there at any depth
        if empty := [pattern for pattern in value if not pattern.strip("./ ")]:
            raise UsageError(f"{folder}: exclude: {empty[0]!r} is the whole folder; name files or folders in it")
        escaped = Path(glob.escape(str(folder)))
        return [str(inside / pattern) for pattern in value for inside in (escaped, escaped / "*")]
    return value


def _inside(folder: Path, name: str) -> Path:
    """The path of a word list. Raises UsageError for one that leads out of the folder, or to a device or a pipe: a
    stranger's project could make copyspec read what the user keeps elsewhere, or wait for ever."""
    path = folder / name
    try:
        real = path.resolve()
        is_inside = folder.resolve() in real.parents and (real.is_file() or not real.exists())
    except (OSError, ValueError, RuntimeError):  # no name that the system knows, or links in a circle
        is_inside = False
    if not is_inside:
        raise UsageError(
            f"{folder}: words: {brief(name)} is no file in this folder, and a project's word lists must be: copy it "
            "there, or give it yourself with --words"
        )
    return path
