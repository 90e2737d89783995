"""Reads JSON of one known form, string by string.

An untrusted file may hold a million empty lists where a string should be: a general JSON parser would build them all,
thirty bytes for each byte read, before they could be rejected.
"""

from __future__ import annotations

from json import decoder


class JSONStrings:
    """Reads `text` from its beginning. Raises ValueError if it differs from the expected form."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def passes(self, expected: str) -> bool:
        """Whether the text continues with `expected`, which is then consumed."""
        if not self._text.startswith(expected, self._at):
            return False
        self._at += len(expected)
        return True

    def expect(self, expected: str) -> None:
        """Consume `expected`, or raise ValueError."""
        if not self.passes(expected):
            found = self._text[self._at : self._at + 20]
            raise ValueError(f"{found!r} at character {self._at}, where {expected!r} should be")

    def string(self) -> str:
        """Read a string."""
        self.expect('"')
        value, self._at = decoder.scanstring(self._text, self._at, True)  # type: ignore[attr-defined]
        return str(value)

    def end(self) -> None:
        """Raise ValueError if there is more text."""
        if self._at != len(self._text):
            raise ValueError(f"more behind character {self._at}")
