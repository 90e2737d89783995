"""Names of a package that are imported on first use, so that importing it loads neither torch nor transformers."""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Callable
from importlib.util import resolve_name
from pathlib import Path


def attach(package: str) -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]:
    """Return `__getattr__`, `__dir__` and `__all__` of a package, with the names that its file imports for type
    checkers."""
    tree = ast.parse(Path(str(sys.modules[package].__file__)).read_text(encoding="utf-8"))
    imports = [statement for node in tree.body if isinstance(node, ast.If) for statement in node.body]
    names = {
        name.name: resolve_name("." * statement.level + (statement.module or ""), package)
        for statement in imports
        if isinstance(statement, ast.ImportFrom)
        for name in statement.names
    }

    def getattr_(name: str) -> object:
        if name not in names:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value: object = getattr(importlib.import_module(names[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    def dir_() -> list[str]:
        return sorted({*names, *(name for name in vars(sys.modules[package]) if name.startswith("__"))})

    return getattr_, dir_, sorted(names)
