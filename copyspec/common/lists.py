"""Word lists, names and patterns that are data: they stand in the TOML file beside a module that has its name."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any


class Lists:
    """The lists beside the module in the file `module`."""

    def __init__(self, module: str) -> None:
        if sys.version_info >= (3, 11):
            import tomllib
        else:
            import tomli as tomllib
        self.all: dict[str, Any] = tomllib.loads(Path(module).with_suffix(".toml").read_text(encoding="utf-8"))

    def __getitem__(self, name: str) -> Any:
        return self.all[name]

    def words(self, name: str) -> frozenset[str]:
        """The words of a string."""
        return frozenset(self.all[name].split())

    def groups(self, name: str) -> Sequence[Sequence[str]]:
        """The words of each line of a string."""
        return [line.split() for line in self.all[name].splitlines()]

    def pattern(self, name: str, flags: int = re.IGNORECASE) -> re.Pattern[str]:
        """The regular expression in a string, in which line ends do not count."""
        return re.compile("".join(self.all[name].splitlines()), flags)
