"""Token ids of one row in the shape that transformers' processors and criteria take, [1, L]."""

from __future__ import annotations

from collections.abc import Sequence

import torch

_ROOM = 512
"""Room for output tokens at first: the limit of an output may be far above its length."""


class GrowingIds:
    """Ids of a prompt and its output, in memory that doubles as the output grows."""

    def __init__(self, start: Sequence[int], limit: int, device: torch.device) -> None:
        """`limit`: maximum number of output tokens."""
        self.length = len(start)
        self._ids = torch.zeros((1, len(start) + min(limit, _ROOM)), dtype=torch.long, device=device)
        self._ids[0, : len(start)] = torch.tensor(list(start), dtype=torch.long, device=device)

    def append(self, token: int) -> None:
        """Add a token that joined the output."""
        if self.length == self._ids.shape[1]:
            self._ids = torch.cat([self._ids, torch.zeros_like(self._ids)], dim=1)
        self._ids[0, self.length] = token
        self.length += 1

    def view(self) -> torch.Tensor:
        """The ids so far, [1, L]. They stay as they are when others are added."""
        return self._ids[:, : self.length]
