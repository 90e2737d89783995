"""Regular expressions of a user or a project, searched within bounds of time."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

SECONDS = 5.0
"""For one expression on one paragraph; ordinary ones take microseconds, but some would take years."""


class BoundedPattern:
    """An expression whose searches raise ValueError where they take more than SECONDS; so does an invalid one."""

    def __init__(self, pattern: str) -> None:
        import regex  # type: ignore[import-untyped]  # of transformers; unlike `re` it can stop

        try:
            self._pattern: Any = regex.compile(pattern)
        except regex.error as error:
            raise ValueError(f"protect: {pattern!r} is not a valid regular expression: {error}") from None

    def finditer(self, text: str) -> Iterator[Any]:
        try:
            yield from self._pattern.finditer(text, timeout=SECONDS)
        except TimeoutError:
            raise ValueError(
                f"protect: {self._pattern.pattern!r} takes more than {SECONDS:g} seconds on {text[:40]!r}...; "
                "write it without repetitions inside repetitions"
            ) from None


Searchable = re.Pattern[str] | BoundedPattern
"""A compiled expression."""
