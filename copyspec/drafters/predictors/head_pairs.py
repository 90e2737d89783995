"""What draft heads read: pairs of a hidden state and the token behind it, of all rows of a pass at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import torch

if TYPE_CHECKING:
    import numpy.typing as npt

Where = tuple[torch.Tensor, torch.Tensor]
"""Places of nodes: rows of the batch, [B, 1], and nodes of each, [B, W]."""


class PairMemoryRow:
    """A row's place in the `PairMemory`, which is free again when nobody refers to this object."""

    def __init__(self, number: int) -> None:
        self.number = number


class PairMemory:
    """What layers keep of the pairs that rows have read, keys and values for example. [rows, slots, ...] each

    A row's pair i is in slot i, or in i modulo `ring`, which bounds the pairs that are kept: later ones replace the
    oldest."""

    def __init__(self, ring: int) -> None:
        self.ring = ring
        self.tensors: list[torch.Tensor] = []
        self._rows: WeakValueDictionary[int, PairMemoryRow] = WeakValueDictionary()

    def row(self) -> PairMemoryRow:
        """A place for a new row."""
        number = next(number for number in count() if number not in self._rows)
        self._rows[number] = row = PairMemoryRow(number)
        for tensor in self.tensors:  # the row before may have left numbers that are not finite: see `grow`
            tensor[number : number + 1] = 0
        return row

    def grow(self, rows: int, slots: int, like: Sequence[torch.Tensor]) -> None:
        """Make space for so many rows and slots of what `like` holds for n pairs, [n, ...] each."""
        before = self.tensors
        if before and rows <= before[0].shape[0] and slots <= before[0].shape[1]:
            return
        if before:
            rows, slots = max(rows, before[0].shape[0]), max(slots, before[0].shape[1])
        sizes = 1 << (rows - 1).bit_length(), 1 << (slots - 1).bit_length()
        # Zeroed memory, since a masked slot still enters attention as 0 * value, which must be finite.
        self.tensors = [part.new_zeros((*sizes, *part.shape[1:])) for part in like]
        for new, old in zip(self.tensors, before, strict=False):
            new[: old.shape[0], : old.shape[1]] = old


@dataclass(slots=True)
class Pairs:
    """N pairs of B rows, those of each row behind each other."""

    states: torch.Tensor  # [N, F]
    embeddings: torch.Tensor  # [N, D], of the tokens


@dataclass(slots=True)
class KeptPairs(Pairs):
    """Pairs that later ones attend to. With them, row r of the batch has read `counts[r]`."""

    rows: torch.Tensor  # [N], of the batch
    places: torch.Tensor  # [N], how many pairs of its row are before each
    first: torch.Tensor  # [B], which pair is the first of each row
    last: torch.Tensor  # [B]
    counts: torch.Tensor  # [B]
    numbers: torch.Tensor  # [B], of the rows in `memory`
    memory: PairMemory
    lengths: Sequence[int]  # [B], pairs of each row
    used: int  # slots of any row that are filled with them
    in_memory: Sequence[int]  # [B], `numbers` on the host
    nodes: int  # most nodes that are drafted behind them

    def write(self, parts: Sequence[torch.Tensor], which: torch.Tensor | None = None) -> None:
        """Keep these parts of the pairs, [N, ...] each, or of those in `which` [n]."""
        memory, rows, places = self.memory, self.rows, self.places
        memory.grow(max(self.in_memory) + 1, self.used + self.nodes, parts)
        if which is not None:
            rows, places = rows[which], places[which]
        numbers, slots = self.numbers[rows], places % memory.ring
        for tensor, part in zip(memory.tensors, parts, strict=True):
            tensor[numbers, slots] = part

    def read(self, slots: int = 0) -> list[torch.Tensor]:
        """What is kept of the rows, so many slots or those in use. [B, slots, ...] each; views where possible."""
        slots, first = slots or self.used, self.in_memory[0]
        if list(self.in_memory) == list(range(first, first + len(self.in_memory))):
            return [tensor[first : first + len(self.in_memory), :slots] for tensor in self.memory.tensors]
        return [tensor[self.numbers, :slots] for tensor in self.memory.tensors]

    def visible(self) -> torch.Tensor:
        """Which of the slots in use hold pairs. [B, slots]"""
        return torch.arange(self.used, device=self.counts.device) < self.counts[:, None]


@dataclass(frozen=True, slots=True)
class DraftNodes:
    """Nodes of drafts, W of each row: the features from which the tokens behind them are predicted. [B, W, D]"""

    features: torch.Tensor


def sent(values: npt.NDArray[Any], device: torch.device) -> torch.Tensor:
    """Copy `values` to a device without waiting for what that computes."""
    there = torch.from_numpy(values)
    return there if device.type == "cpu" else there.to(device, non_blocking=device.type == "cuda")
