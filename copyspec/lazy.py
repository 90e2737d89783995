"""Names of a package that are imported on first use, so that importing it loads neither torch nor transformers."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping


def attach(package: str, places: Mapping[str, str]) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` of a package.

    `places`: by module, the names that it has, separated by spaces; "name=other" is `other` in the module.
    """
    names: dict[str, tuple[str, str]] = {}
    for module, listed in places.items():
        for entry in listed.split():
            name, _, own = entry.partition("=")
            names[name] = module, own or name

    def getattr_(name: str) -> object:
        if name not in names:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, own = names[name]
        value: object = getattr(importlib.import_module(module, package), own)
        setattr(sys.modules[package], name, value)
        return value

    def dir_() -> list[str]:
        return sorted({*names, *(name for name in vars(sys.modules[package]) if name.startswith("__"))})

    return getattr_, dir_
