"""What an output writes in place of a source's tokens: renamed names and changed numbers are changed again."""

from __future__ import annotations

SEEN, KEPT = 3, 4
"""How often a token was replaced, and how often kept since, are counted up to so much; behind that it is forgotten."""

COLUMNS = 2 * SEEN * KEPT

# Counted on half of the groups of the recordings, without references: how likely the substitute is, over how likely the
# token itself, by how often it was replaced (a line each) and how often it was kept since, each number followed by that
# for where the token before it is the one that stood there when it was replaced. Of the latter two fifths: matches in
# the output say the rest.
REPEATED: tuple[float, ...] = (
    *(0.12, 0.20, 0.05, 0.14, 0.05, 0.12, 0.03, 0.10),
    *(0.50, 0.50, 0.22, 0.32, 0.10, 0.20, 0.05, 0.12),
    *(2.50, 1.00, 0.40, 0.80, 0.10, 0.24, 0.10, 0.20),
)


class Substitutes:
    """By token of a source, what the output had last in its place."""

    def __init__(self) -> None:
        self.places: dict[int, int] = {}
        """token -> COLUMNS times the position of its substitute in the output, plus a column of REPEATED."""

    def replaced(self, token: int, position: int) -> None:
        """The output has another token, at `position`, where a copy would have had `token`."""
        self.places[token] = position * COLUMNS

    def repeated(self, token: int) -> None:
        """It was replaced by the same again."""
        place = self.places[token]
        column = place % COLUMNS
        seen = min(column // (2 * KEPT) + 1, SEEN - 1)
        self.places[token] = place - column + 2 * KEPT * seen

    def kept(self, token: int) -> None:
        """It was copied after all."""
        place = self.places[token]
        if place % COLUMNS // 2 % KEPT == KEPT - 1:
            del self.places[token]
        else:
            self.places[token] = place + 2
