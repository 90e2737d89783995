"""Whether a file can be parsed: Python, JSON and TOML by the standard library, others by tree-sitter if it is there."""

from __future__ import annotations

import ast
import json
import sys
import warnings
from functools import cache
from pathlib import PurePath
from typing import Any

from copyspec.common.lists import Lists

from ..documents import Refusal

_JSON = ("json", "ipynb", "geojson", "webmanifest", "har")
_BY_SUFFIX = {suffix: name for name, suffixes in Lists(__file__).pairs("languages") for suffix in suffixes.split()}


def broken(before: str, after: str, path: str | None) -> Refusal | None:
    """A refusal of a new version that can no longer be parsed where the old one could."""
    place = error_in(after, path)
    if place is None or error_in(before, path) is not None:
        return None
    return Refusal("syntax", f"the file could be parsed, and its new version can not: {place}")


def error_in(text: str, path: str | None) -> str | None:
    """Where a text is no file of its kind; None if it is one, or nobody can tell."""
    suffix = PurePath(path or "").suffix.lower().removeprefix(".")
    text = text.removeprefix("\ufeff")
    try:
        if suffix in ("py", "pyi"):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                ast.parse(text)
        elif suffix in _JSON:
            json.loads(text)
        elif suffix in ("jsonl", "ndjson"):
            for number, line in enumerate(text.splitlines(), 1):
                if line.strip() and (reason := error_in(line, "line.json")):
                    return f"line {number}: {reason}"
        elif suffix == "toml" and sys.version_info >= (3, 11):
            import tomllib

            tomllib.loads(text)
        elif suffix in _BY_SUFFIX:
            return _error_by_tree(text, _BY_SUFFIX[suffix])
    except (RecursionError, MemoryError):  # too deep for the parser
        return None
    except SyntaxError as error:
        return f"line {error.lineno}: {error.msg}"
    except ValueError as error:
        return str(error)
    return None


def _error_by_tree(text: str, language: str) -> str | None:
    parser = _parser(language)
    if parser is None:
        return None
    node = parser.parse(text.encode("utf-8", "surrogateescape")).root_node
    if not node.has_error:
        return None
    while inner := next((child for child in node.children if child.has_error or child.is_missing), None):
        node = inner
    return f"line {node.start_point[0] + 1}, column {node.start_point[1] + 1}"


@cache
def _parser(language: str) -> Any:
    """The parser of a language; None without the extra, or if that lacks the language."""
    try:
        from tree_sitter_language_pack import get_parser

        return get_parser(language)  # type: ignore[arg-type]
    except (ImportError, LookupError):
        return None
