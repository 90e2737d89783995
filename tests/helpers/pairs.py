"""Pairs of hidden states and tokens as draft heads read them, without a model that the states are of."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from copyspec.drafters.predictors.head_pairs import KeptPairs, PairMemory, PairMemoryRow

NODES = 32


class PairRows:
    """Rows whose pairs are read in several passes."""

    def __init__(self, context: int, rows: int = 1) -> None:
        self.memory = PairMemory(context)
        self.rows = [self.memory.row() for _ in range(rows)]
        self.before = [0] * rows

    def read(self, *parts: tuple[torch.Tensor, torch.Tensor], which: Sequence[int] | None = None) -> KeptPairs:
        """The next pairs of these rows: states [n, F] and embeddings [n, D] of each."""
        rows = list(which or range(len(parts)))
        lengths = [len(states) for states, _ in parts]
        places = [torch.arange(n) + self.before[row] for row, n in zip(rows, lengths, strict=True)]
        for row, n in zip(rows, lengths, strict=True):
            self.before[row] += n
        numbers: list[PairMemoryRow] = [self.rows[row] for row in rows]
        ends, counts = torch.tensor(lengths).cumsum(0), torch.tensor([self.before[row] for row in rows])
        return KeptPairs(
            torch.cat([states for states, _ in parts]),
            torch.cat([embeddings for _, embeddings in parts]),
            torch.repeat_interleave(torch.arange(len(parts)), torch.tensor(lengths)),
            torch.cat(places),
            ends - torch.tensor(lengths),
            ends - 1,
            counts,
            torch.tensor([row.number for row in numbers]),
            self.memory,
            lengths,
            min(int(counts.max()), self.memory.ring),
            [row.number for row in numbers],
            NODES,
        )
