"""Expands paths as users name them: files, folders, patterns, standard input."""

from __future__ import annotations

import glob
import os
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import PurePath

from copyspec.common.checks import check_type

from ..formats.suffixes import SUFFIXES, suffix_of
from .file_state import RESULT
from .journal import SUFFIX

STDIN = "-"
BACKUP_SUFFIX = ".bak"
_NAMED_SUFFIXES = 6  # suffixes listed in `Skipped.line`
_OWN = re.compile(rf"({re.escape(SUFFIX)}|{re.escape(RESULT)}(-\d+)?)\Z")
"""Names of files that runs write beside the texts: journals, and results that could not replace their file."""

SKIPPED_FOLDERS = frozenset({"node_modules", "__pycache__", "venv", "build", "dist", "site-packages"})
"""Folders whose content is not written by hand. Names that begin with a dot are skipped too."""

_KIND = r"(?:dev|tests?|docs?|lint|build|ci|prod|base|min|optional|extras?|gpu|cpu|lock|all|local|common|py3\d*)"
_DATA = re.compile(
    r"(?:cmakelists|meson_options|robots|ads|top_level|entry_points|dependency_links"
    rf"|(?:{_KIND}[-_.])?(?:requirements|constraints)(?:[-_.]{_KIND})?)\.txt",
    re.IGNORECASE,
)
"""Names of text files that programs read."""

_TEXT, _MARKDOWN = frozenset({".txt", ".text"}), frozenset({".md", ".markdown", ".mdx", ".qmd"})
_SUFFIXES = {
    None: _TEXT | _MARKDOWN | {".docx", ".odt", ".rst", ".adoc", ".asciidoc", ".tex"},
    "lines": _TEXT,
    "parallel": frozenset({".src", ".tok", *_TEXT}),
}


def suffixes_of(format: str | None) -> frozenset[str]:
    """Suffixes of the files taken from a folder: those of one format, or of formats for prose. Data files must be named
    explicitly, since a column of a table is rarely a text to correct."""
    if format in _SUFFIXES:
        return _SUFFIXES[format]
    return frozenset(suffix for suffix, name in SUFFIXES.items() if name == format and suffix)


@dataclass(slots=True)
class Skipped:
    """Files that are not taken: in folders, excluded, or written by copyspec itself."""

    found: list[tuple[str, str]] = field(default_factory=list)
    """Path and reason: format, data, hidden, link, special, folder, unreadable, exclude, own."""

    def add(self, path: str, reason: str) -> None:
        self.found.append((path, reason))

    def settle(self, paths: Iterable[str], is_own: Callable[[str], bool], own: Iterable[str]) -> None:
        """Drop files that are named explicitly too, mark copyspec's own files, and list each file once."""
        named = {os.path.realpath(path) for path in paths}
        files: dict[str, tuple[str, str]] = {}
        for path, reason in [*self.found, *((path, "own") for path in own)]:
            real = os.path.realpath(path) if reason != "link" else path
            if real not in named:
                files.setdefault(real, (path, "own" if reason == "format" and is_own(path) else reason))
        self.found = list(files.values())

    def line(self) -> str:
        """Counts by reason, as a line for people; "" if nothing was skipped."""
        counts = Counter(reason for _, reason in self.found)
        suffixes = Counter(PurePath(path).suffix.lower() or "no suffix" for path, why in self.found if why == "format")
        named = ", ".join(suffix for suffix, _ in suffixes.most_common(_NAMED_SUFFIXES))
        if len(suffixes) > _NAMED_SUFFIXES:
            named += ", ..."
        labels = {
            "format": f"of other formats ({named})",
            "data": "that programs read (such as requirements.txt)",
            "hidden": "hidden",
            "link": "links",
            "special": "pipes, sockets or devices",
            "folder": "folders that nobody writes by hand",
            "unreadable": "folders that may not be read",
            "exclude": "excluded",
            "own": "of copyspec's own (journals, results, backups)",
        }
        return ", ".join(f"{counts[reason]} {what}" for reason, what in labels.items() if counts[reason])


def expand(
    paths: Iterable[str],
    *,
    suffixes: Collection[str],
    exclude: Sequence[str] = (),
    skipped: Skipped | None = None,
    backup: str = BACKUP_SUFFIX,
) -> list[str]:
    """Return the files that `paths` name, each once, in order. Missing files stay in the list.

    A folder gives its files with one of `suffixes` (lower case, with the dot), subfolders included; links in it are not
    followed. Patterns (`*`, `**`, `?`, `[...]`) give what they match. `exclude`: patterns for a name, for folders, or
    for the end of a path (`excluded_by`). Copyspec's journals and results are left out even if they are named, since
    shells name them for `*.*`; so are backups, with the suffix `backup`, of files that are named too. `skipped`
    collects these, excluded files and the files in folders that are not taken.
    """
    for name, value in (("paths", paths), ("suffixes", suffixes), ("exclude", exclude)):
        check_type(not isinstance(value, str), name, value, "a list of str")
    suffixes, exclude = frozenset(suffixes), tuple(exclude)  # iterators could be read only once
    skipped = Skipped() if skipped is None else skipped
    files: list[str] = []
    seen: set[str] = set()
    for path in paths:
        for file in _files(path, suffixes, exclude, skipped):
            real = file if file == STDIN else os.path.realpath(file)
            if real not in seen:
                seen.add(real)
                files.append(file)
    own = re.compile(rf"(?P<file>.+){re.escape(backup)}(\.\d+)?", re.DOTALL)

    def is_own(file: str) -> bool:
        of = own.fullmatch(file)
        return bool(_OWN.search(file)) or (of is not None and os.path.realpath(of["file"]) in seen)

    inputs = [file for file in files if not is_own(file)]
    skipped.settle(inputs, is_own, [file for file in files if is_own(file)])
    return inputs


def _files(path: str, suffixes: Collection[str], exclude: Sequence[str], skipped: Skipped) -> Iterator[str]:
    if path == STDIN:
        yield path
    elif os.path.isdir(path):
        yield from _walk(path, suffixes, exclude, skipped)
    elif os.path.lexists(path) or not glob.has_magic(path):
        if is_excluded(path, exclude):
            skipped.add(path, "exclude")
        else:
            yield path
    else:
        matches = sorted(glob.glob(path, recursive=True))
        for match in matches:
            if os.path.isdir(match):
                continue
            if is_excluded(match, exclude):
                skipped.add(match, "exclude")
            elif os.path.isfile(match) or not os.path.exists(match):
                yield match
            else:
                skipped.add(match, "special")
        if not matches:
            yield path  # opening it fails, with an error that names it


def _walk(folder: str, suffixes: Collection[str], exclude: Sequence[str], skipped: Skipped) -> Iterator[str]:
    def unreadable(error: OSError) -> None:
        skipped.add(os.path.join(os.fspath(error.filename), ""), "unreadable")

    for parent, folders, names in os.walk(folder, onerror=unreadable):
        subfolders = []
        for name in sorted(folders):
            path = os.path.join(parent, name)
            if (reason := _folder_reason(name, path, exclude)) is None:
                subfolders.append(name)
            else:
                skipped.add(path + os.sep, reason)
        folders[:] = subfolders
        for name in sorted(names):
            path = os.path.join(parent, name)
            if name.startswith("."):
                skipped.add(path, "hidden")
            elif is_excluded(path, exclude):
                skipped.add(path, "exclude")
            elif os.path.islink(path):
                skipped.add(path, "link")
            elif not os.path.isfile(path):
                skipped.add(path, "special")  # opening a pipe may never end
            elif _DATA.fullmatch(name) and ".txt" in suffixes:
                skipped.add(path, "data")
            elif suffix_of(name) not in suffixes:
                skipped.add(path, "format")
            else:
                yield path


def _folder_reason(name: str, path: str, exclude: Sequence[str]) -> str | None:
    """The reason to skip a folder; None: do not skip it."""
    if name.startswith("."):
        return "hidden"
    if name in SKIPPED_FOLDERS:
        return "folder"
    if is_excluded(path, exclude):
        return "exclude"
    return "link" if os.path.islink(path) else None  # `os.walk` lists links without following them


def is_excluded(path: str, exclude: Sequence[str]) -> bool:
    """Whether one of the patterns of `exclude` fits the path (`excluded_by`)."""
    return excluded_by(path, exclude) is not None


def excluded_by(path: str, exclude: Sequence[str]) -> str | None:
    """The first pattern of `exclude` that fits the path, the end of it, or one or more folders on its way; or None.

    Relative patterns are compared with the path from the working folder, so that the names of folders above exclude
    nothing; absolute ones with the whole path, as it is given and with links resolved.
    """
    if not exclude:
        return None
    full = os.path.abspath(path)
    parts = PurePath(_from_working_folder(full)).parts
    # A folder's pattern fits its files too: they may be named without it, by a shell, a hook or an editor.
    runs = {"/".join(parts[start:end]) for start in range(len(parts)) for end in range(start + 1, len(parts) + 1)}
    ways = [PurePath(path) for path in (full, os.path.realpath(full))]
    wholes = {parent.as_posix() for way in ways for parent in (way, *way.parents)}
    for pattern in exclude:
        wanted = PurePath(pattern)
        names = wholes if wanted.is_absolute() else runs
        if any(fnmatchcase(name, wanted.as_posix()) for name in names):
            return pattern
    return None


def _from_working_folder(path: str) -> str:
    try:
        return os.path.relpath(path)
    except ValueError:  # on another drive
        return path
