"""Leaves out headings that other files of the project link to: with other words, the links would lead nowhere."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

from ..documents import Edit, Part, Refusal, Segment
from ..formats.anchors import is_named, linked_elsewhere
from .paths import SKIPPED_FOLDERS

_ROOTS = (".git", ".hg", ".copyspec.toml")
"""What stands in the top folder of a project. Without one, the files beside a file are its project."""
_SUFFIXES = (".md", ".markdown", ".mdx", ".qmd", ".rst", ".adoc", ".asciidoc", ".html", ".htm", ".ipynb")
_MOST_FILES = 2000
_MOST_BYTES = 1 << 20  # of a file


class LinkedHeadings:
    """A `Selection`. The files of a project are read when the first heading comes."""

    identity = "linked headings"

    def __init__(self) -> None:
        self._links: dict[Path, frozenset[str]] = {}  # by the top folder of a project
        self._of_file: tuple[str, frozenset[str]] = ("", frozenset())

    def part(self, path: str, part: Part) -> Part:
        if not any(segment.is_title for segment in part.segments):
            return part
        if path != self._of_file[0]:
            self._of_file = path, self._of(Path(path))
        segments = [segment for segment in part.segments if not self._is_linked(part, segment)]
        count = len(part.segments) - len(segments)
        refused = [*part.refused, *[Refusal("linked", "another file links to this heading by its words")] * count]
        return replace(part, segments=segments, refused=refused) if count else part

    def edits(self, path: str, part: Part, edits: Sequence[Edit]) -> Sequence[Edit]:
        return edits

    def _is_linked(self, part: Part, segment: Segment) -> bool:
        return segment.is_title and is_named(part.text[segment.start : segment.end], self._of_file[1])

    def _of(self, path: Path) -> frozenset[str]:
        if not path.is_file():  # standard input, for example
            return frozenset()
        folder = path.resolve().parent
        root = next(
            (parent for parent in (folder, *folder.parents) if any((parent / name).exists() for name in _ROOTS)), None
        )
        top = root or folder
        if top not in self._links:
            files = islice(_documents(top, inside=root is not None), _MOST_FILES)
            self._links[top] = frozenset().union(*map(_linked, files))
        return self._links[top]


def _documents(top: Path, *, inside: bool) -> Iterator[Path]:
    """The documents in a folder, and `inside` its subfolders."""
    for folder, subfolders, files in os.walk(top):
        subfolders[:] = [name for name in subfolders if inside and name[0] != "." and name not in SKIPPED_FOLDERS]
        yield from (Path(folder, name) for name in files if name.lower().endswith(_SUFFIXES))


def _linked(path: Path) -> frozenset[str]:
    try:
        with path.open("rb") as file:
            return linked_elsewhere(file.read(_MOST_BYTES).decode(errors="replace"))
    except OSError:
        return frozenset()
