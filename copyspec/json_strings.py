"""JSON of one known form, read a string at a time.

A file of somebody else's may hold a million empty lists in each other's place: a parser of any JSON builds them all,
thirty bytes for each byte that is read, before anybody can say that they are wrong.
"""

from __future__ import annotations

from json import decoder


class JSONStrings:
    """Reads `text` from its beginning. Raises ValueError where it is not what is asked for."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def passes(self, expected: str) -> bool:
        """Whether the text goes on with `expected`, which is read then."""
        if not self._text.startswith(expected, self._at):
            return False
        self._at += len(expected)
        return True

    def expect(self, expected: str) -> None:
        """Reads `expected`."""
        if not self.passes(expected):
            found = self._text[self._at : self._at + 20]
            raise ValueError(f"{found!r} at character {self._at}, where {expected!r} should be")

    def string(self) -> str:
        """Reads a string."""
        self.expect('"')
        value, self._at = decoder.scanstring(self._text, self._at, True)  # type: ignore[attr-defined]
        return str(value)

    def end(self) -> None:
        """Raises ValueError where there is more."""
        if self._at != len(self._text):
            raise ValueError(f"more behind character {self._at}")
