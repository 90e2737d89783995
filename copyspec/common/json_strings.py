"""Reads JSON of one known form, a string at a time, from untrusted files.

Such a file may contain a million empty lists where strings should be. A general JSON parser would build all of them,
at thirty bytes of memory per byte read, before they could be rejected.
"""

from __future__ import annotations

from json import decoder


class JSONStrings:
    """Reads `text` from the start. Raises ValueError where it differs from what is expected."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def passes(self, expected: str) -> bool:
        """Read `expected` if the text continues with it, and return whether it does."""
        if not self._text.startswith(expected, self._at):
            return False
        self._at += len(expected)
        return True

    def expect(self, expected: str) -> None:
        """Read `expected`, or raise ValueError."""
        if not self.passes(expected):
            actual = self._text[self._at : self._at + 20]
            raise ValueError(f"{actual!r} at character {self._at}, where {expected!r} should be")

    def string(self) -> str:
        """Read a string."""
        self.expect('"')
        value, self._at = decoder.scanstring(self._text, self._at, True)  # type: ignore[attr-defined]
        return str(value)

    def end(self) -> None:
        """Raise ValueError unless the whole text has been read."""
        if self._at != len(self._text):
            raise ValueError(f"more text after character {self._at}")
