"""The input of a static pass, laid out in one integer array that is copied to the device at once.

Its parts, one after the other (`Shape`):

- FIELDS of each token, then words of ancestor bits, [FIELDS + words, T]. A token sees the slots of its row up to its
  own position and before the row's nodes; bit i of its words is set if it sees node i of its row's tree, itself
  included. In passes in order of positions, which exact mode has: the nodes of its path in place of words,
  [FIELDS + T, T].
- sources and targets of keys and values that the pass first moves into place, [2, M]
- the tokens that are scored, [L]
- the number of units, and the units of work of the attention kernel, [1 + U * UNIT]

A *slot* of a row is the number of one of its tokens; a *place* is where its keys and values are in the pool. Tokens
beyond those of the pass are of the pool's scratch row, whose page nobody reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from copyspec.targets.static.settings import EXACT_SPLIT, MAX_MOVES, PAGE, SPLIT
from copyspec.tree import COMPILED, path_to

if TYPE_CHECKING:
    import numpy.typing as npt

    from copyspec.tree import DraftTree

TOKEN, POSITION, PLACE, TREE, NODE, ROW, PARTIAL, PARTIALS, STRIDE = range(9)
"""Fields of a token: its id; its position; the place that its key and value are written to; the slot of its row's first
node, and the token that it is; its row in the pool's table; and of attention's partial results the first, their number
and the step between them."""

FIELDS = 9
WORD = 63  # bits of an int64 without its sign bit
_WORD_MASK = (1 << WORD) - 1

UNIT = 5
"""Fields of a unit of work: first token, number of tokens, first slot, slot behind the last one, first partial result.
The partial results of a unit are those of its tokens."""


class Shape(NamedTuple):
    """The sizes of the parts."""

    tokens: int  # T
    scored: int  # L
    units: int  # U, and the number of partial results
    ordered: bool = False
    """Whether tokens attend to the keys of their paths in the order of positions, each as a unit of its own, so that
    the sums of a node are those of the same token in plain decoding."""
    layers: tuple[int, ...] = ()
    """Whose inputs the pass keeps, `base.LAST` for the output head: for drafters that read hidden states."""

    @property
    def words(self) -> int:
        """Words of ancestor bits of a token, or nodes of its path."""
        return self.tokens if self.ordered else -(-self.tokens // WORD)

    @property
    def moves(self) -> int:
        return min(self.tokens, MAX_MOVES)

    @property
    def parts(self) -> tuple[int, int, int, int]:
        """The numbers of each part."""
        return (FIELDS + self.words) * self.tokens, 2 * self.moves, self.scored, 1 + UNIT * self.units

    @classmethod
    def of(
        cls, tokens: int, scored: int, *, most_slots: int = 0, ordered: bool = False, layers: tuple[int, ...] = ()
    ) -> Shape:
        """`most_slots`: in exact mode, of a row, since its splits have one size."""
        return cls(tokens, scored, max(2 * tokens + SPLIT, tokens * -(-most_slots // EXACT_SPLIT)), ordered, layers)


@dataclass(slots=True, eq=False)
class PagedRow:
    """A row and its pages."""

    number: int = -1  # in the pool's table; -1: none yet
    pages: list[int] = field(default_factory=list)
    path: Sequence[int] = ()
    """Accepted nodes of the row's last tree that are still in that tree's slots; the next pass moves them first."""
    first_slot: int = 0  # the slot of the first node of that tree

    def moves(self) -> list[tuple[int, int]]:
        """Slots of accepted nodes that must move, and where to."""
        first = self.first_slot
        return [(first + node, first + place) for place, node in enumerate(self.path) if node != place]


def place_of(pages: Sequence[int], slot: int) -> int:
    """Where a row's slot is in the pool."""
    return pages[slot // PAGE] * PAGE + slot % PAGE


def lay_out(
    host: npt.NDArray[np.int64],
    shape: Shape,
    starts: Sequence[int],
    rows: Sequence[PagedRow],
    uncached: Sequence[Sequence[int]],
    trees: Sequence[DraftTree],
    scored: Sequence[int],
    moved: Sequence[PagedRow],
    scratch: int,
    tile: int,
    split: int = 0,
) -> None:
    """Fill `host` for these rows, of which some may have no tokens in this pass.

    `starts`: cached tokens of each row; `scored`: how many last tokens of each row are scored, all tokens if
    `shape.scored` is T; `moved`: rows whose accepted nodes are moved, at most `shape.moves` in all; `scratch`: number
    of the scratch row; `tile`: tokens that a unit has at most; `split`: slots that it has at most, 0: as few as partial
    results allow.

    `lay_out_static` in `native/trees.c` does what follows here without it.
    """
    if COMPILED is not None:
        nodes, parents = [tree.tokens for tree in trees], [tree.parents for tree in trees]
        of_rows = [row.number for row in rows], [row.pages for row in rows], uncached, nodes, parents, scored
        of_moved = [row.pages for row in moved], [row.path for row in moved], [row.first_slot for row in moved]
        COMPILED.lay_out_static(
            host, shape.tokens, shape.moves, *shape[1:4], starts, *of_rows, *of_moved, scratch, PAGE, tile, split, SPLIT
        )
        return
    fields, moves, wanted, units = split_parts(host, shape)
    fields[:] = 0
    fields[ROW] = scratch
    moves[:] = 0
    slots = [(row.pages, source, target) for row in moved for source, target in row.moves()]
    for move, (pages, source, target) in enumerate(slots):
        moves[:, move] = place_of(pages, source), place_of(pages, target)
    tiles: list[tuple[int, int, int]] = []  # first token, tokens, slots
    places: list[int] = []  # of the scored tokens
    first = 0
    for row, start, ids, tree, count in zip(rows, starts, uncached, trees, scored, strict=True):
        length = len(ids)
        last, end = first + length + len(tree.tokens), start + length
        own = fields[:, first:last]
        own[TOKEN, :length], own[TOKEN, length:] = ids, tree.tokens
        own[POSITION, :length] = range(start, end)
        own[PLACE] = [place_of(row.pages, slot) for slot in range(start, start + last - first)]
        own[TREE], own[NODE], own[ROW] = end, first + length, row.number
        if len(tree.tokens):
            paths = [path_to(tree.parents, node) for node in range(len(tree.tokens))]
            own[POSITION, length:] = [end - 1 + len(path) for path in paths]
            if shape.ordered:
                for node, path in enumerate(paths):
                    own[FIELDS : FIELDS + len(path), length + node] = path
            else:
                bits = [sum(1 << node for node in path) for path in paths]
                for word in range(shape.words):
                    own[FIELDS + word, length:] = [mask >> word * WORD & _WORD_MASK for mask in bits]
        places += range(last - count, last)
        tiles += [
            (begin, min(tile, last - begin), start + min(begin + tile, last) - first)
            for begin in range(first, last, tile)
        ]
        first = last
    wanted[:] = 0
    wanted[: len(places)] = places
    if not split:
        split = SPLIT
        while sum([count * -(-end // split) for _, count, end in tiles]) > shape.units:
            split *= 2
    unit, partial = 0, 0
    for begin, count, end in tiles:
        if shape.ordered:
            end = int(fields[POSITION, begin]) + 1
        parts = -(-end // split)
        tokens = slice(begin, begin + count)
        fields[PARTIAL, tokens] = np.arange(partial, partial + count)
        fields[PARTIALS, tokens], fields[STRIDE, tokens] = parts, count
        for part in range(parts):
            place = 1 + UNIT * unit
            units[place : place + UNIT] = begin, count, part * split, min(end, (part + 1) * split), partial
            unit, partial = unit + 1, partial + count
    units[0] = unit


def split_parts(packed: npt.NDArray[np.int64], shape: Shape) -> tuple[npt.NDArray[np.int64], ...]:
    """The parts of a laid out pass, as views: fields [FIELDS + words, T], moves [2, M], scored tokens [L], units."""
    fields, moves, scored, units = np.split(packed, np.cumsum(shape.parts)[:-1])
    return fields.reshape(-1, shape.tokens), moves.reshape(2, -1), scored, units
