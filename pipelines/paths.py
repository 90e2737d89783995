"""Paths as users name them: files, folders, patterns, standard input."""

from __future__ import annotations

import glob
import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path, PurePath

STDIN = "-"

SKIPPED_FOLDERS = frozenset({"node_modules", "__pycache__", "venv", "build", "dist", "site-packages"})
"""Folders of what nobody wrote by hand. Names that begin with a full stop are skipped too."""

_TEXT, _MARKDOWN = frozenset({".txt", ".text"}), frozenset({".md", ".markdown", ".mdx", ".qmd"})
_SUFFIXES = {
    None: _TEXT | _MARKDOWN | {".docx"},
    "txt": _TEXT,
    "lines": _TEXT,
    "parallel": frozenset({".src", ".tok", *_TEXT}),
    "md": _MARKDOWN,
    "jsonl": frozenset({".jsonl", ".ndjson"}),
    "tsv": frozenset({".tsv", ".tab"}),
}


def suffixes_of(format: str | None) -> frozenset[str]:
    """Suffixes of the files that a folder gives: of one format, or of texts that people write. Data is only taken
    where it is named: a column of a table is rarely a text to correct."""
    return _SUFFIXES.get(format, frozenset({f".{format}"}))


def expand(paths: Iterable[str], *, suffixes: Collection[str], exclude: Sequence[str] = ()) -> list[str]:
    """The files that `paths` name, each once, in order; what is not there stays in the list.

    Folders give their files with one of `suffixes` (lower case, with the full stop), and those of the folders inside;
    links in them are not followed. Patterns (`*`, `**`, `?`, `[...]`) give what they match. `exclude`: patterns for a
    name, or for a path from its end.
    """
    found: list[str] = []
    seen: set[str] = set()
    for path in paths:
        for file in _files(path, suffixes, exclude):
            real = file if file == STDIN else os.path.realpath(file)
            if real not in seen:
                seen.add(real)
                found.append(file)
    return found


def _files(path: str, suffixes: Collection[str], exclude: Sequence[str]) -> Iterator[str]:
    if path == STDIN:
        yield path
    elif os.path.isdir(path):
        yield from _walk(path, suffixes, exclude)
    elif os.path.lexists(path) or not glob.has_magic(path):
        if not _is_excluded(path, exclude):
            yield path
    else:
        matches = sorted(match for match in glob.glob(path, recursive=True) if not _is_excluded(match, exclude))
        for match in matches:
            if os.path.isdir(match):
                continue
            yield match
        if not matches:
            yield path  # fails when it is opened, by its name


def _walk(folder: str, suffixes: Collection[str], exclude: Sequence[str]) -> Iterator[str]:
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(
            name
            for name in folders
            if not name.startswith(".")
            and name not in SKIPPED_FOLDERS
            and not _is_excluded(os.path.join(parent, name), exclude)
        )
        for name in sorted(names):
            path = os.path.join(parent, name)
            if name.startswith(".") or Path(name).suffix.lower() not in suffixes:
                continue
            if not os.path.islink(path) and not _is_excluded(path, exclude):
                yield path


def _is_excluded(path: str, exclude: Sequence[str]) -> bool:
    parts = PurePath(path).parts
    tails = ["/".join(parts[start:]) for start in range(len(parts))]
    return any(fnmatchcase(tail, pattern.rstrip("/")) for pattern in exclude for tail in [*tails, *parts])
