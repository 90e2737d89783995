"""The input of a static pass, packed into one integer array that is copied to the device at once.

Fields, each [B, Q]: tokens, depths, lengths (cached tokens of the row), sources and targets (slots of accepted keys
that the pass first moves into place), and words of ancestor bits: bit i of a column is set if it attends to column i
of this pass, itself included. Unused columns of a row attend to its first column only, and their results are not read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from copyspec.tree import COMPILED, ROOT

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from copyspec.tree import DraftTree

FIELDS = 5  # number of fields before the words
MOVE_FIELDS = slice(3, 5)  # sources and targets
WORD = 63  # bits of an int64 without its sign bit
_WORD_MASK = (1 << WORD) - 1


SlotMove = tuple[int, int]
"""Source and target slot of an accepted node whose key and value must move."""


def words(columns: int) -> int:
    """Words of ancestor bits needed for this many columns."""
    return -(-columns // WORD)


def pack(
    host: npt.NDArray[np.int64],
    starts: Sequence[int],
    uncached: Sequence[Sequence[int]],
    trees: Sequence[DraftTree],
    moves: Sequence[Sequence[SlotMove]],
    scratch: int,
) -> None:
    """Fill `host` [F, B, Q] for rows with `starts[r]` cached tokens; `scratch`: a slot that nothing attends to."""
    if COMPILED is None:
        _pack(host, starts, uncached, trees, moves, scratch)
    else:
        tokens, parents = [tree.tokens for tree in trees], [tree.parents for tree in trees]
        COMPILED.pack(host, starts, uncached, tokens, parents, moves, scratch)


def _pack(
    host: npt.NDArray[np.int64],
    starts: Sequence[int],
    uncached: Sequence[Sequence[int]],
    trees: Sequence[DraftTree],
    moves: Sequence[Sequence[SlotMove]],
    scratch: int,
) -> None:
    """The Python version of `pack` in `native/trees.c`."""
    host[:3] = 0
    host[MOVE_FIELDS] = scratch
    host[FIELDS] = 1
    host[FIELDS + 1 :] = 0
    for row, (start, ids, tree) in enumerate(zip(starts, uncached, trees, strict=True)):
        host[2, row] = start
        length = len(ids)
        if length == 1 and not len(tree):
            host[0, row, 0] = ids[0]
        else:
            bits, depths = ancestor_bits(length, tree.parents)
            width = len(bits)
            host[0, row, :length] = ids
            host[0, row, length:width] = tree.tokens
            host[1, row, :width] = depths
            if width <= WORD:
                host[FIELDS, row, :width] = bits
            else:
                for word in range(words(width)):
                    host[FIELDS + word, row, :width] = [each >> word * WORD & _WORD_MASK for each in bits]
        if moves[row]:
            host[MOVE_FIELDS, row, : len(moves[row])] = list(zip(*moves[row], strict=True))


def ancestor_bits(length: int, parents: Sequence[int]) -> tuple[list[int], list[int]]:
    """The columns that each one attends to, as bits, and its depth, for `length` uncached tokens and their tree."""
    bits = [(2 << column) - 1 for column in range(length)]
    depths = list(range(length))
    root = length - 1
    for node, parent in enumerate(parents, start=length):
        above = root if parent == ROOT else parent + length
        bits.append(bits[above] | 1 << node)
        depths.append(depths[above] + 1)
    return bits, depths
