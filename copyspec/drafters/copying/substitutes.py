"""Substitutes: remembers which token the output wrote instead of a source's token, as renamed names recur."""

from __future__ import annotations

from dataclasses import dataclass, field

MAX_REPLACED, MAX_KEPT = 3, 4
"""Limits of two counts: how often a token was replaced, and how often it was kept since then. A substitute is forgotten
when its token was kept MAX_KEPT times."""

COLUMNS = 2 * MAX_REPLACED * MAX_KEPT

# Probability of the substitute divided by that of the token itself: a line for each count of replacements, with a pair
# for each number of times that the token was kept since then. The second number of a pair applies if the token before
# is the same as at the replacement; it is two fifths of the measured one, because suffix matches in the output add the
# rest. Measured on half of the recorded outputs that `benchmarks.replay` reads, in rows without references.
SUBSTITUTE_RATIOS: tuple[float, ...] = (
    *(0.12, 0.20, 0.05, 0.14, 0.05, 0.12, 0.03, 0.10),
    *(0.50, 0.50, 0.22, 0.32, 0.10, 0.20, 0.05, 0.12),
    *(2.50, 1.00, 0.40, 0.80, 0.10, 0.24, 0.10, 0.20),
)


@dataclass(slots=True)
class Substitutes:
    """The last substitute of each source token, with its counts."""

    packed: dict[int, int] = field(default_factory=dict)
    """token -> COLUMNS times the corpus position of its substitute, plus the index of a pair in SUBSTITUTE_RATIOS."""

    def replaced(self, token: int, position: int) -> None:
        """Record that the output has another token, at corpus position `position`, in place of the copied `token`."""
        self.packed[token] = position * COLUMNS

    def repeated(self, token: int) -> None:
        """Record that `token` was replaced by the same substitute again."""
        value = self.packed[token]
        column = value % COLUMNS
        row = min(column // (2 * MAX_KEPT) + 1, MAX_REPLACED - 1)
        self.packed[token] = value - column + 2 * MAX_KEPT * row

    def kept(self, token: int) -> None:
        """Record that `token` was copied unchanged."""
        value = self.packed[token]
        if value % COLUMNS // 2 % MAX_KEPT == MAX_KEPT - 1:
            del self.packed[token]
        else:
            self.packed[token] = value + 2
