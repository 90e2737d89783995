"""The scores of a pass: logits of all rows after each other, as many of each row as its tree needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch


@dataclass(frozen=True, slots=True, eq=False)
class Scores:
    """Logits after the last uncached token (the root) of each row and after each node of its tree."""

    logits: torch.Tensor  # [N, V], in the model's dtype; rows of `starts` and `sizes` may leave some out
    starts: Sequence[int]  # [B], index of each row's root; its nodes follow
    sizes: Sequence[int]  # [B], 1 + nodes of its tree

    @classmethod
    def of_rows(cls, rows: Sequence[torch.Tensor]) -> Scores:
        """Of the logits of each row, [1 + m, V]."""
        sizes = [len(row) for row in rows]
        logits = rows[0] if len(rows) == 1 else torch.cat(list(rows))
        return cls(logits, list(accumulate(sizes[:-1], initial=0)), sizes)

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, row: int) -> torch.Tensor:
        """The logits of a row, [1 + m, V]: index 0 is the root, index 1 + i node i."""
        start = self.starts[row]
        return self.logits[start : start + self.sizes[row]]
