"""Where the tokens of a pass stand in the trees of their rows, for recurrences that take all of them at once."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import torch

from copyspec.common.lockless import cached_property

TOGETHER = 256
"""Tokens of several rows that are computed as one matrix: more calls cost less than the empty blocks between rows."""


class TreePart(NamedTuple):
    """Rows whose tokens are computed together."""

    tokens: slice
    rows: Sequence[tuple[int, slice]]  # each with its tokens, counted from the part's first
    ancestors: torch.Tensor  # whether token i follows token j, or is it; [n, n]

    def read(self, left: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
        """The products of rows of matrices, [..., H, n, K], with the states of the tokens' rows, [B, H, K, V]."""
        return torch.cat([left[..., span, :] @ states[row].float() for row, span in self.rows], dim=-2)


class Paths:
    """The tokens of a pass, each behind its parent or behind the state of its row."""

    is_prompt: torch.Tensor | None = None
    """Whether each token is of a prompt, [T]; None: none is."""

    def __init__(self, places: Sequence[int], parents: Sequence[int], spans: Sequence[range], device: torch.device):
        """`places`: of the tokens in the pass; `parents`: by token, the one before it; -1: it follows the row's state.
        [T] each. `spans`: the tokens of each row."""
        self.rows = [row for row, span in enumerate(spans) for _ in span]
        """The row of each token."""
        self.places, self.spans, self._parents, self._device = places, spans, parents, device
        self._columns: dict[int, torch.Tensor] = {}

    def whole(self, values: torch.Tensor) -> torch.Tensor:
        """What enters products over the tokens of several rows, [T, ...]."""
        return values

    def to(self, token: int) -> list[int]:
        """The tokens from the row's state to this one."""
        path = list[int]()
        while token >= 0:
            path.append(token)
            token = self._parents[token]
        return path[::-1]

    @cached_property
    def parts(self) -> Sequence[TreePart]:
        """All tokens, in parts of at most TOGETHER, or of a row alone."""
        groups = list[list[int]]()
        for row, span in enumerate(self.spans):
            if not groups or span.stop - self.spans[groups[-1][0]].start > TOGETHER:
                groups.append([])
            groups[-1].append(row)
        return [self._part(group) for group in groups]

    def _part(self, rows: Sequence[int]) -> TreePart:
        first, stop = self.spans[rows[0]].start, self.spans[rows[-1]].stop
        ancestors = torch.eye(stop - first, dtype=torch.bool)
        for token in range(first, stop):
            if self._parents[token] >= 0:
                ancestors[token - first] |= ancestors[self._parents[token] - first]
        spans = [(row, slice(self.spans[row].start - first, self.spans[row].stop - first)) for row in rows]
        return TreePart(slice(first, stop), spans, ancestors.to(self._device))

    @cached_property
    def levels(self) -> Sequence[tuple[torch.Tensor, torch.Tensor]]:
        """The tokens by depth, [n], and for each the place of the one before it in the level above, or its row."""
        depths, levels = list[tuple[int, int]](), list[tuple[list[int], list[int]]]()
        for token, parent in enumerate(self._parents):
            depth, before = (depths[parent][0] + 1, depths[parent][1]) if parent >= 0 else (0, self.rows[token])
            if depth == len(levels):
                levels.append(([], []))
            depths.append((depth, len(levels[depth][0])))
            levels[depth][0].append(token)
            levels[depth][1].append(before)
        make = partial(torch.tensor, device=self._device)
        return [(make(tokens), make(before)) for tokens, before in levels]

    def columns(self, width: int) -> torch.Tensor:
        """The last 1 + `width` inputs of each path, [T, 1 + width], among `width` ones of each row's state and those of
        the tokens."""
        if width not in self._columns:
            offset, last = len(self.spans) * width, list[list[int]]()
            for token, (parent, row) in enumerate(zip(self._parents, self.rows, strict=True)):
                before = last[parent][1:] if parent >= 0 else range(row * width, (row + 1) * width)
                last.append([*before, offset + token])
            self._columns[width] = torch.tensor(last, device=self._device)
        return self._columns[width]
