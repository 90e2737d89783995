"""Substitutes: remembers which token the output wrote instead of a source's token, as renamed names recur."""

from __future__ import annotations

from dataclasses import dataclass, field

SEEN, KEPT = 3, 4
"""Upper ends of the counts of how often a token was replaced, and how often it was kept since then. A substitute is
forgotten when its token was kept KEPT times."""

COLUMNS = 2 * SEEN * KEPT

# Probability of the substitute divided by that of the token itself: one line for each count of replacements, in it a
# pair for each count of keeping since then. The second number of a pair is for when the token before is the same as at
# the replacement; it is two fifths of the measured one, because suffix matches in the output add the rest. Counted on
# half of the groups of the recordings, without references.
REPEATED: tuple[float, ...] = (
    *(0.12, 0.20, 0.05, 0.14, 0.05, 0.12, 0.03, 0.10),
    *(0.50, 0.50, 0.22, 0.32, 0.10, 0.20, 0.05, 0.12),
    *(2.50, 1.00, 0.40, 0.80, 0.10, 0.24, 0.10, 0.20),
)


@dataclass(slots=True)
class Substitutes:
    """The last substitute of each source token, with its counts."""

    places: dict[int, int] = field(default_factory=dict)
    """token -> COLUMNS times the position of its substitute in the output, plus a column of REPEATED."""

    def replaced(self, token: int, position: int) -> None:
        """Record that the output has another token, at `position`, in place of the copied `token`."""
        self.places[token] = position * COLUMNS

    def repeated(self, token: int) -> None:
        """Record that `token` was replaced by the same substitute again."""
        place = self.places[token]
        column = place % COLUMNS
        seen = min(column // (2 * KEPT) + 1, SEEN - 1)
        self.places[token] = place - column + 2 * KEPT * seen

    def kept(self, token: int) -> None:
        """Record that `token` was copied unchanged."""
        place = self.places[token]
        if place % COLUMNS // 2 % KEPT == KEPT - 1:
            del self.places[token]
        else:
            self.places[token] = place + 2
