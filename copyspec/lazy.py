"""Names of a package that are imported on first use, so that importing it loads neither torch nor transformers."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping


def attach(
    package: str, places: Mapping[str, str]
) -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]:
    """Return `__getattr__`, `__dir__` and `__all__` of a package.

    `places`: by module, the names that it has, separated by spaces.
    """
    names = {name: module for module, listed in places.items() for name in listed.split()}

    def getattr_(name: str) -> object:
        if name not in names:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value: object = getattr(importlib.import_module(names[name], package), name)
        setattr(sys.modules[package], name, value)
        return value

    def dir_() -> list[str]:
        return sorted({*names, *(name for name in vars(sys.modules[package]) if name.startswith("__"))})

    return getattr_, dir_, sorted(names)
