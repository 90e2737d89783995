"""The scores of a pass: logits of all rows after each other, as many of each row as its tree needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from copyspec.tree import DraftTree


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
        return cls(logits, _starts(sizes), sizes)

    @classmethod
    def of_trees(cls, logits: torch.Tensor, trees: Sequence[DraftTree]) -> Scores:
        """Of logits [N, V] that hold nothing but the roots and nodes of these trees."""
        sizes = [1 + len(tree.tokens) for tree in trees]
        return cls(logits, _starts(sizes), sizes)

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, row: int) -> torch.Tensor:
        """The logits of a row, [1 + m, V]: index 0 is the root, index 1 + i node i."""
        start = self.starts[row]
        return self.logits[start : start + self.sizes[row]]

    def best(self) -> list[list[int]]:
        """The best token after each root and node, the first of equal ones: [1 + m] of each row."""
        if self.logits.is_cpu:  # NumPy's argmax is vectorised and takes a tenth of the time of torch's, or less
            tokens: list[int] = self.logits.float().numpy().argmax(-1).tolist()
        else:
            tokens = self.logits.argmax(-1).tolist()
        return [tokens[start : start + size] for start, size in zip(self.starts, self.sizes, strict=True)]


def _starts(sizes: Sequence[int]) -> list[int]:
    starts, start = [], 0
    for size in sizes:
        starts.append(start)
        start += size
    return starts
