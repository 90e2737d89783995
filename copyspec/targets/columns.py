"""The columns of one target pass: tokens, positions, the slots they are written to, and masks of what they attend to.

Each row is [left padding | chain, ending with the root | tree nodes | right padding]. The root is in the same column of
every row, so that the logits of root and nodes are the last columns of the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch

from copyspec.targets.cache import Write
from copyspec.tree import COMPILED, ROOT, DraftTree

if TYPE_CHECKING:
    from copyspec.targets.facts import ModelFacts

IndexArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

PAD_SLOT = -1


@dataclass(slots=True)
class Columns:
    """One pass over B rows of Q columns, with K key slots in use."""

    packed: IndexArray  # [2, B, Q], tokens and positions, 0 at padding; one array, for one copy to the device
    slots: IndexArray  # [B, Q], PAD_SLOT at padding
    visible: BoolArray  # [B, Q, K], which slots a column attends to; padding attends to slot 0
    write: Write  # the same for the cache
    kept: int  # number of last columns whose logits are needed: root and nodes
    prompt: int = 0
    """Number of columns that read a prompt, the root included; 0 if every chain is a single token."""
    mask: torch.Tensor | None = None  # [B, 1, Q, K], `visible` as an additive mask, where `lay_out` was asked for it

    @property
    def tokens(self) -> IndexArray:
        tokens: IndexArray = self.packed[0]
        return tokens

    @property
    def positions(self) -> IndexArray:
        positions: IndexArray = self.packed[1]
        return positions

    def key_positions(self) -> IndexArray:
        """Position of the token in each slot, [B, K]: the slot's index, except for the nodes of this pass."""
        rows, width = self.tokens.shape[0], self.visible.shape[2]
        positions = np.tile(np.arange(width), (rows, 1))
        row, column = np.nonzero(self.slots != PAD_SLOT)
        positions[row, self.slots[row, column]] = self.positions[row, column]
        return positions

    def within_window(self, window: int) -> BoolArray:
        """`visible` without keys that are `window` or more positions away (sliding attention)."""
        distance = self.positions[:, :, None] - self.key_positions()[:, None, :]
        visible: BoolArray = np.logical_and(self.visible, distance < window)
        return visible

    def within_chunk(self, chunk: int) -> BoolArray:
        """`visible` without keys in other chunks of `chunk` positions (chunked attention)."""
        same = self.positions[:, :, None] // chunk == self.key_positions()[:, None, :] // chunk
        visible: BoolArray = np.logical_and(self.visible, same)
        return visible


def lay_out(
    starts: Sequence[int],
    chains: Sequence[Sequence[int]],
    trees: Sequence[DraftTree],
    width: int = 0,
    used: int = 0,
    facts: ModelFacts | None = None,
) -> Columns:
    """Lay out the columns of rows whose first `starts[r]` slots are cached. Chains must not be empty. The result has at
    least `width` columns and `used` slots. With the `facts` of a model that takes one mask, on a CPU, this is made in
    the same go."""
    lengths, sizes = list(map(len, chains)), [len(tree.tokens) for tree in trees]
    ends = list(map(int.__add__, starts, lengths))
    chain_width = max(lengths)
    shape = (len(starts), max(width, chain_width + max(sizes)))
    used = max(used, max(map(int.__add__, ends, sizes)))
    packed, slots = np.empty((2, *shape), np.int64), np.empty(shape, np.int64)
    write = Write(starts[0], used, plain=False)
    if len(starts) > 1:
        write = Write(0, used, torch.from_numpy(slots), plain=False)
    columns = Columns(packed, slots, np.empty((*shape, used), np.bool_), write, kept=shape[1] - chain_width + 1)
    columns.prompt = chain_width if chain_width > 1 else 0
    if COMPILED is None:
        _fill(columns, starts, chains, trees)
    else:
        tokens, parents = [tree.tokens for tree in trees], [tree.parents for tree in trees]
        if facts is not None and facts.mask_format is not None:
            kind, lowest = facts.mask_format
            mask = np.empty((len(starts), 1, shape[1], used), kind)
            columns.mask = torch.from_numpy(mask)
            if columns.mask.dtype != facts.zero.dtype:  # NumPy has no bfloat16
                columns.mask = columns.mask.view(facts.zero.dtype)
            COMPILED.lay_out(starts, chains, tokens, parents, chain_width, packed, slots, columns.visible, mask, lowest)
        else:
            COMPILED.lay_out(starts, chains, tokens, parents, chain_width, packed, slots, columns.visible)
    return columns


def _fill(columns: Columns, starts: Sequence[int], chains: Sequence[Sequence[int]], trees: Sequence[DraftTree]) -> None:
    """The Python version of `lay_out` in `native/trees.c`."""
    tokens, positions = columns.packed
    slots, visible = columns.slots, columns.visible
    columns.packed[:], slots[:], visible[:] = 0, PAD_SLOT, False
    visible[:, :, 0] = True
    chain_width = tokens.shape[1] - columns.kept + 1
    for row, (start, chain, tree) in enumerate(zip(starts, chains, trees, strict=True)):
        first, end, behind = chain_width - len(chain), chain_width + len(tree), start + len(chain)
        tokens[row, first:chain_width] = chain
        slots[row, first:end] = np.arange(start, behind + len(tree))
        positions[row, first:chain_width] = slots[row, first:chain_width]
        visible[row, first:end, :start] = True
        visible[row, first:chain_width, start:behind] = np.tri(len(chain), dtype=np.bool_)
        if len(tree):
            on_path, depths = ancestors(tree.parents)
            tokens[row, chain_width:end] = tree.tokens
            positions[row, chain_width:end] = depths
            positions[row, chain_width:end] += behind - 1
            visible[row, chain_width:end, start:behind] = True
            visible[row, chain_width:end, behind : behind + len(tree)] = on_path


def ancestors(parents: Sequence[int]) -> tuple[BoolArray, list[int]]:
    """For each node, which nodes are on its path, itself included, [m, m], and how many: its depth, [m]."""
    paths: list[int] = []  # one bit per node: copying a path is one operation
    for node, parent in enumerate(parents):
        paths.append(1 << node | (0 if parent == ROOT else paths[parent]))
    size = (len(parents) + 7) // 8
    packed = np.frombuffer(b"".join([path.to_bytes(size, "little") for path in paths]), np.uint8)
    bits = np.unpackbits(packed.reshape(len(parents), size), axis=1, count=len(parents), bitorder="little")
    return bits.view(np.bool_), [path.bit_count() for path in paths]


def tree_masks(columns: Columns, facts: ModelFacts) -> torch.Tensor | dict[str, torch.Tensor]:
    """Additive masks [B, 1, Q, K]: one tensor, or a dict by kind if the model has several kinds of attention."""
    full: torch.Tensor | None = None
    masks: dict[str, torch.Tensor] = {}
    for kind in facts.kinds:
        visible = columns.visible
        if kind == "sliding_attention" and facts.window is not None and visible.shape[2] > facts.window:
            visible = columns.within_window(facts.window)
        elif kind == "chunked_attention" and facts.chunk is not None and visible.shape[2] > facts.chunk:
            visible = columns.within_chunk(facts.chunk)
        if visible is not columns.visible:
            masks[kind] = additive(torch.from_numpy(visible[:, None]), facts)
        else:
            full = additive(torch.from_numpy(visible[:, None]), facts) if full is None else full
            masks[kind] = full
    return masks if len(masks) > 1 else masks[facts.kinds[0]]


def additive(visible: torch.Tensor, facts: ModelFacts) -> torch.Tensor:
    """Convert `visible` [B, 1, Q, K] to an additive mask [B, 1, Q, K]: 0 where visible, else the lowest number. Grouped
    attention gets the masks of the heads of a group after each other, [B, 1, G * Q, K]."""
    seen = visible if facts.zero.is_cpu else visible.to(facts.device, non_blocking=True)
    if facts.group == 1:
        return torch.where(seen, facts.zero, facts.lowest)
    mask = torch.where(seen.expand(-1, facts.group, -1, -1), facts.zero, facts.lowest)
    return mask.reshape(len(mask), 1, -1, mask.shape[3])
