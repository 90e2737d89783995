"""Maps file suffixes to formats, and knows which formats would damage which files."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import PurePath

from copyspec.common.lists import Lists

_LISTS = Lists(__file__)


def _by_suffix(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    return {f".{suffix}": name for name, suffixes in pairs for suffix in suffixes.split()}


LANGUAGES = dict(_LISTS.pairs("languages"))
"""Languages whose comments are read, by their names in pygments, with the suffixes of their files."""
SUFFIXES = {"": "txt", **_by_suffix(_LISTS.pairs("formats")), **_by_suffix(LANGUAGES.items())}
_NAMES = {name: f".{suffix}" for suffix, names in _LISTS.pairs("names") for name in names.split()}
"""Files that are told by their names, in lower case, with the suffix of their kind."""
_TEXTS = ("txt", "lines", "parallel", "md", "rst", "adoc", "latex", "html", "srt")
"""Formats that would read any file as text."""
_RISKS = _by_suffix(_LISTS.pairs("at_risk"))


_MANUAL = re.compile(r"\.[1-9][a-z]{0,3}")  # a page of the manual, by its section


def suffix_of(path: str | PurePath) -> str:
    """The suffix of a file in lower case, or that of its kind: `.mk` of a Makefile. A name that only begins with a dot
    is one."""
    file = PurePath(path)
    suffix, name = (file.suffix or (file.name if file.name.startswith(".") else "")).lower(), file.name.lower()
    kind = _NAMES.get(name) or (None if suffix in SUFFIXES else _NAMES.get(name.partition(".")[0]))
    return kind or suffix


def risk(suffix: str, name: str) -> str | None:
    """What a file with this suffix (lower case) holds that the format called `name` may damage; None: nothing."""
    if name not in _TEXTS or SUFFIXES.get(suffix) == name:
        return None
    return "commands" if _MANUAL.fullmatch(suffix) else _RISKS.get(suffix)
