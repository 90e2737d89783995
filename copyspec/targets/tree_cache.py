"""The slots of a batch: the tree cache, which keeps keys and values of rows that differ in length, and the columns of a
target pass, which say what is written to which slot, and what attends to it.

The cache has one buffer for keys and one for values in each layer, [B, H, S, D], allocated like the layer's own keys
and grown by doubling. Row r holds its cached tokens in slots 0 .. length[r] - 1. A target pass writes its keys and
values right after them, and `keep` makes the accepted path contiguous. Attention sees a view cut to the columns in use.
The last slot is scratch: padding of a ragged batch is written there, if at all, and is never visible. Joining rows
reuse the buffer space of rows that have left.

Each row of a pass is [left padding | uncached tokens, the root last | tree nodes | right padding]. The root is in the
same column of every row, so that the logits of root and nodes are the last columns of the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from transformers import Cache
from transformers.cache_utils import CacheLayerMixin

from copyspec.targets.hooks.inference import in_inference_mode
from copyspec.targets.hooks.recurrence import STATE_KINDS
from copyspec.tree import COMPILED, ROOT, DraftTree

if TYPE_CHECKING:
    from copyspec.targets.facts import ModelFacts
    from copyspec.targets.prefixes import Layers

IndexArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

PAD_SLOT = -1

BLOCK = 64
"""Capacity is a multiple of this many slots, so that a short output never grows the first buffer."""

FEW_ROWS = 4
"""Rows up to which a device copies each on its own: that takes less than half the time of indexed rows. A CPU, which
launches nothing, copies any number so, in two thirds of the time."""

SPARE = 4
"""Buffers with more than this many times the rows in use are reallocated: the last rows of a batch need less memory."""


@dataclass(slots=True)
class Write:
    """Where one target pass writes its keys and values. The model also reads its cache lengths from here."""

    start: int = 0  # first slot, where all rows write to the same slots
    stop: int = 0  # columns in use after this pass, the maximum over all rows
    slots: torch.Tensor | None = None  # [B, Q], -1 (scratch) at padding; None: start .. stop in every row
    row: int | None = None  # only this row takes part in the pass
    plain: bool = True  # a causal continuation without padding, for which the model may build its own mask
    tokens: int = 0  # besides padding, where `slots` are given; 0: every column is a token
    indices: dict[torch.device, tuple[torch.Tensor, torch.Tensor]] = field(default_factory=dict)
    """Row [B, 1] and slot [B, Q] indices of `slots`, by device: moved to each once."""


class Move(NamedTuple):
    """Slots of one row whose keys and values are moved to slot `start` and the following ones."""

    row: int
    sources: Sequence[int]
    start: int


class TreeLayer(CacheLayerMixin):  # type: ignore[no-untyped-call]
    """Keys and values of one layer. Never slides: the mask expresses windows, so that nodes can be dropped."""

    is_sliding = False
    beside: Sequence[TreeLayer] = ()
    """What else is written in the same slots."""

    def __init__(self, cache: TreeCache) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._cache = cache
        self._capacity = 0

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Allocate buffers for the columns in use, of keys and values like these, [B, H, Q, D]."""
        self.dtype, self.device = key_states.dtype, key_states.device
        rows, capacity = self._cache.rows, _capacity(max(self._cache.write.stop, self._cache.reserved))
        # Zeroed memory, since a masked column still enters attention as 0 * value, which must be finite.
        self.keys = key_states.new_zeros((rows, key_states.shape[1], capacity, key_states.shape[3]))
        self.values = value_states.new_zeros((rows, value_states.shape[1], capacity, value_states.shape[3]))
        self._capacity = capacity
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: object, **kwargs: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write the pass's keys and values, [B, H, Q, D] each; return all columns in use, [B, H, K, D]."""
        write = self._cache.write
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        keys, values = self.buffers()
        keys, values = keys[: self._cache.rows], values[: self._cache.rows]
        if write.row is not None:
            keys, values = keys.narrow(0, write.row, 1), values.narrow(0, write.row, 1)
        if write.slots is None:
            count = key_states.shape[2]
            keys.narrow(2, write.start, count).copy_(key_states)
            values.narrow(2, write.start, count).copy_(value_states)
        else:
            rows, slots = self._cache.index(write.slots, self.device)
            keys[rows, :, slots] = key_states.transpose(1, 2)
            values[rows, :, slots] = value_states.transpose(1, 2)
        return keys.narrow(2, 0, write.stop), values.narrow(2, 0, write.stop)

    def buffers(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values, [B, H, S, D] each, with space for the pass's columns."""
        if self._cache.write.stop >= self._capacity:
            self._allocate(len(self), _capacity(max(self._cache.write.stop, 2 * self._capacity - 1)))
        assert self.keys is not None and self.values is not None
        return self.keys, self.values

    def fill(self, row: int, pieces: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> int:
        """Put the pieces, [H, n, D] each, into the first slots of a row; return the number of slots filled."""
        if not self.is_initialized:
            self.lazy_initialization(pieces[0][0].unsqueeze(0), pieces[0][1].unsqueeze(0))
        assert self.keys is not None and self.values is not None
        keys, values = (torch.cat(each, dim=1) for each in zip(*pieces, strict=True))
        self.keys[row, :, : keys.shape[1]] = keys
        self.values[row, :, : values.shape[1]] = values
        return keys.shape[1]

    def read(self, row: int, start: int, stop: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Copy slots start .. stop - 1 of a row, [H, n, D]."""
        assert self.keys is not None and self.values is not None
        return self.keys[row, :, start:stop].clone(), self.values[row, :, start:stop].clone()

    def move(self, rows: torch.Tensor, sources: torch.Tensor, targets: torch.Tensor) -> None:
        """Copy slots `sources` [n, L] to `targets` [n, L] in `rows` [n, L]; all reads precede the writes."""
        for buffer in (self.keys, self.values):
            assert buffer is not None
            buffer[rows, :, targets] = buffer[rows, :, sources]

    def move_row(self, row: int, sources: torch.Tensor, start: int) -> None:
        """Copy slots `sources` [L] of one row to `start` and the following slots; all reads precede the writes."""
        for buffer in (self.keys, self.values):
            assert buffer is not None
            one = buffer[row]
            one.narrow(1, start, len(sources)).copy_(one.index_select(1, sources))

    def __len__(self) -> int:
        """Number of rows that the buffers have space for."""
        return 0 if self.keys is None else len(self.keys)

    def move_rows(self, moved: Sequence[tuple[int, int]]) -> None:
        """Copy rows, each given as (source, target), and zero the rest of them, where an earlier row may have left NaN.
        All reads precede the writes."""
        used, (sources, targets) = self._cache.write.stop, map(list, zip(*moved, strict=True))
        is_few = len(moved) <= FEW_ROWS or (self.keys is not None and self.keys.is_cpu)
        one_by_one = is_few and set(sources).isdisjoint(targets)
        for buffer in (self.keys, self.values):
            assert buffer is not None
            if one_by_one:
                for source, target in moved:
                    buffer[target].narrow(1, 0, used).copy_(buffer[source].narrow(1, 0, used))
                    buffer[target].narrow(1, used, self._capacity - used).zero_()
            else:
                buffer[targets, :, :used] = buffer[sources, :, :used]
                buffer[targets, :, used:] = 0

    def shrink(self, rows: int) -> None:
        """Reallocate the buffers for the first `rows` rows only."""
        assert self.keys is not None and self.values is not None
        self.keys, self.values = self.keys[:rows].clone(), self.values[:rows].clone()

    def join(self, other: TreeLayer) -> None:
        """Append the rows of `other` to the rows in use."""
        first, last, used = self._cache.rows, self._cache.rows + other._cache.rows, other._cache.write.stop
        if last > len(self) or other._capacity > self._capacity:
            self._allocate(max(last, len(self)), max(self._capacity, other._capacity))
        for buffer, more in ((self.keys, other.keys), (self.values, other.values)):
            assert buffer is not None and more is not None
            buffer[first:last, :, :used] = more[: other._cache.rows, :, :used]
            buffer[first:last, :, used:] = 0  # an earlier row may have left NaN there

    def _allocate(self, rows: int, capacity: int) -> None:
        assert self.keys is not None and self.values is not None
        self.keys = _padded(self.keys[: self._cache.rows], rows, capacity)
        self.values = _padded(self.values[: self._cache.rows], rows, capacity)
        self._capacity = capacity

    def get_seq_length(self) -> int:
        return self._cache.write.start if self._cache.write.plain else 0

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self._cache.write.stop, 0

    def get_max_length(self) -> int:
        return -1


class TreeCache(Cache):
    """The cache of one session. A layer is created when the model first writes to it."""

    def __init__(self, rows: int) -> None:
        super().__init__(layers=[])
        self.rows = rows
        self.reserved = 0  # columns that new buffers have space for
        self.write = Write()  # of the next pass, set before it
        self._tree_layers: list[TreeLayer] = []

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: object, **kwargs: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return self.layer(layer_idx).update(key_states, value_states)

    def add(self, layer: Any) -> None:
        """Append a layer that the model has not written to yet."""
        self._tree_layers.append(layer)
        self.layers.append(layer)

    def layer(self, index: int) -> TreeLayer:
        """The layer of this index, which is made if the model has not written to it yet."""
        while len(self._tree_layers) <= index:
            self.add(TreeLayer(self))
        return self._tree_layers[index]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.write.start if self.write.plain else 0

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        return self.write.stop, 0

    def index(self, slots: torch.Tensor, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """Row [B, 1] and slot [B, Q] indices of the pass, on a layer's device."""
        indices = self.write.indices
        if device not in indices:
            rows = torch.arange(self.rows, device=device).unsqueeze(1)
            indices[device] = rows, slots.to(device, non_blocking=device.type == "cuda")
        return indices[device]

    @in_inference_mode
    def move(self, moves: Sequence[Move]) -> None:
        """Make the accepted paths contiguous in every layer."""
        on_device: dict[torch.device, torch.Tensor] = {}
        packed = torch.tensor(moves[0].sources, device="cpu") if len(moves) == 1 else _packed(moves)
        for layer in self._filled():
            if layer.device not in on_device:
                on_device[layer.device] = packed.to(layer.device, non_blocking=layer.device.type == "cuda")
            if len(moves) == 1:
                layer.move_row(moves[0].row, on_device[layer.device], moves[0].start)
            else:
                layer.move(*on_device[layer.device])

    def select(self, rows: Sequence[int]) -> None:
        """Keep only these rows, in this order. Rows that keep their index are not copied."""
        moved = [(row, place) for place, row in enumerate(rows) if row != place]
        self.rows = len(rows)
        for layer in self._filled():
            if moved:
                layer.move_rows(moved)
            if len(layer) > SPARE * len(rows):
                layer.shrink(len(rows))

    def join(self, other: TreeCache) -> None:
        """Append the rows of `other`. The same layers must have been written to in both."""
        for layer, more in zip(self._filled(), other._filled(), strict=True):
            layer.join(more)
        self.rows += other.rows
        self.write = Write(stop=max(self.write.stop, other.write.stop))

    def load(self, prefixes: Sequence[Sequence[Layers]], room: int) -> list[int]:
        """Fill an empty cache so that row r begins with `prefixes[r]`; return the number of slots filled per row."""
        lengths = [0] * len(prefixes)
        for row, pieces in enumerate(prefixes):
            if not pieces:
                continue
            self.write = Write(stop=room)
            for index, held in enumerate(zip(*pieces, strict=True)):
                layer = self.layer(index)
                filled = [each for each in held if each is not None]
                if filled:
                    lengths[row] = layer.fill(row, filled)
        return lengths

    def read(self, row: int, start: int, stop: int) -> Layers:
        """Copy slots start .. stop - 1 of a row, [H, n, D]; None for layers without keys of their own."""
        return [layer.read(row, start, stop) if layer.is_initialized else None for layer in self._tree_layers]

    def contents(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Keys and values of each layer, [B, H, S, D]. Raises ValueError if a layer has none of its own."""
        held: list[tuple[torch.Tensor, torch.Tensor]] = []
        for layer in self._tree_layers:
            if layer.keys is None or layer.values is None:
                raise ValueError("some of its layers keep no keys and values of their own")
            held.append((layer.keys[: self.rows], layer.values[: self.rows]))
        return held

    def _filled(self) -> list[TreeLayer]:
        layers = [each for layer in self._tree_layers for each in (layer, *layer.beside)]
        return [layer for layer in layers if layer.is_initialized]


def _capacity(used: int) -> int:
    """Slots for `used` columns and the scratch slot, rounded up to whole blocks."""
    return (used // BLOCK + 1) * BLOCK


def _packed(moves: Sequence[Move]) -> torch.Tensor:
    """Row, source and target of every slot, [3, n, L]; short moves are padded with the scratch slot."""
    packed = np.full((3, len(moves), max(len(move.sources) for move in moves)), -1, np.int64)
    for index, (row, sources, start) in enumerate(moves):
        packed[0, index] = row
        packed[1, index, : len(sources)] = sources
        packed[2, index, : len(sources)] = np.arange(start, start + len(sources))
    return torch.from_numpy(packed)


def _padded(buffer: torch.Tensor, rows: int, capacity: int) -> torch.Tensor:
    grown = buffer.new_zeros((rows, buffer.shape[1], capacity, buffer.shape[3]))
    grown[: len(buffer), :, : buffer.shape[2]] = buffer
    return grown


@dataclass(slots=True)
class Columns:
    """One pass over B rows of Q columns, with K key slots in use."""

    packed: IndexArray  # [2, B, Q], tokens and positions, 0 at padding; one array, for one copy to the device
    slots: IndexArray  # [B, Q], PAD_SLOT at padding
    visible: BoolArray  # [B, Q, K], which slots a column attends to; padding attends to slot 0
    write: Write  # the same for the cache
    kept: int  # number of last columns whose logits are needed: root and nodes
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
        visible: BoolArray = self.visible & (distance < window)
        return visible

    def within_chunk(self, chunk: int) -> BoolArray:
        """`visible` without keys in other chunks of `chunk` positions (chunked attention)."""
        same = self.positions[:, :, None] // chunk == self.key_positions()[:, None, :] // chunk
        visible: BoolArray = self.visible & same
        return visible

    def masks(self, facts: ModelFacts) -> Any:
        """Additive masks [B, 1, Q, K], None for recurrent layers: one, or a dict by kind if there are several."""
        full: torch.Tensor | None = None
        masks: dict[str, Any] = {}
        for kind in facts.kinds:
            if kind in STATE_KINDS:
                masks[kind] = None
                continue
            visible = self.visible
            if kind == "sliding_attention" and facts.window is not None and visible.shape[2] > facts.window:
                visible = self.within_window(facts.window)
            elif kind == "chunked_attention" and facts.chunk is not None and visible.shape[2] > facts.chunk:
                visible = self.within_chunk(facts.chunk)
            if visible is not self.visible:
                masks[kind] = facts.additive(torch.from_numpy(visible[:, None]))
            else:
                full = facts.additive(torch.from_numpy(visible[:, None])) if full is None else full
                masks[kind] = full
        return masks if len(masks) > 1 else masks[facts.kinds[0]]


def check_rows(rows: int, uncached: Sequence[Sequence[int]], trees: Sequence[DraftTree]) -> None:
    """Raise ValueError if the tokens or trees do not match the session's rows."""
    if len(uncached) != rows or len(trees) != rows:
        raise ValueError(f"the session has {rows} rows, got tokens of {len(uncached)} and trees of {len(trees)}")
    if not all(map(len, uncached)):
        row = [len(ids) for ids in uncached].index(0)
        raise ValueError(f"row {row} has no uncached tokens; these are at least the last accepted token")


def lay_out(
    starts: Sequence[int],
    uncached: Sequence[Sequence[int]],
    trees: Sequence[DraftTree],
    width: int = 0,
    used: int = 0,
    facts: ModelFacts | None = None,
) -> Columns:
    """Lay out the columns of rows whose first `starts[r]` slots are cached. Each has at least one uncached token. The
    result has at least `width` columns and `used` slots. With the `facts` of a model that takes one mask, on a CPU,
    this is made in the same go."""
    lengths, sizes = list(map(len, uncached)), [len(tree.tokens) for tree in trees]
    ends, uncached_width = list(map(int.__add__, starts, lengths)), max(lengths)
    shape = (len(starts), max(width, uncached_width + max(sizes)))
    used = max(used, max(map(int.__add__, ends, sizes)))
    packed, slots = np.empty((2, *shape), np.int64), np.empty(shape, np.int64)
    write = Write(starts[0], used, plain=False)
    if len(starts) > 1:
        write = Write(0, used, torch.from_numpy(slots), plain=False, tokens=sum(lengths) + sum(sizes))
    visible = np.empty((*shape, used), np.bool_)
    columns = Columns(packed, slots, visible, write, kept=shape[1] - uncached_width + 1)
    if COMPILED is None:
        _fill(columns, starts, uncached, trees)
    else:
        tokens, parents = [tree.tokens for tree in trees], [tree.parents for tree in trees]
        mask: npt.NDArray[Any] | None = None
        lowest = 0
        if facts is not None and facts.mask_format is not None:
            kind, lowest = facts.mask_format
            mask = np.empty((len(starts), 1, shape[1], used), kind)
            columns.mask = torch.from_numpy(mask)
            if columns.mask.dtype != facts.zero.dtype:  # NumPy has no bfloat16
                columns.mask = columns.mask.view(facts.zero.dtype)
        COMPILED.lay_out(starts, uncached, tokens, parents, uncached_width, packed, slots, visible, mask, lowest)
    return columns


def _fill(
    columns: Columns, starts: Sequence[int], uncached: Sequence[Sequence[int]], trees: Sequence[DraftTree]
) -> None:
    """The Python version of `lay_out` in `native/trees.c`."""
    tokens, positions = columns.packed
    slots, visible = columns.slots, columns.visible
    columns.packed[:], slots[:], visible[:] = 0, PAD_SLOT, False
    visible[:, :, 0] = True
    uncached_width = tokens.shape[1] - columns.kept + 1
    for row, (start, ids, tree) in enumerate(zip(starts, uncached, trees, strict=True)):
        first, last, end = uncached_width - len(ids), uncached_width + len(tree), start + len(ids)
        tokens[row, first:uncached_width] = ids
        slots[row, first:last] = np.arange(start, end + len(tree))
        positions[row, first:uncached_width] = slots[row, first:uncached_width]
        visible[row, first:last, :start] = True
        visible[row, first:uncached_width, start:end] = np.tri(len(ids), dtype=np.bool_)
        if len(tree):
            on_path, depths = ancestors(tree.parents)
            tokens[row, uncached_width:last] = tree.tokens
            positions[row, uncached_width:last] = depths
            positions[row, uncached_width:last] += end - 1
            visible[row, uncached_width:last, start:end] = True
            visible[row, uncached_width:last, end : end + len(tree)] = on_path


def ancestors(parents: Sequence[int]) -> tuple[BoolArray, list[int]]:
    """For each node, which nodes are on its path, itself included, [m, m], and how many: its depth, [m]."""
    paths: list[int] = []  # one bit per node: copying a path is one operation
    for node, parent in enumerate(parents):
        paths.append(1 << node | (0 if parent == ROOT else paths[parent]))
    size = (len(parents) + 7) // 8
    packed = np.frombuffer(b"".join([path.to_bytes(size, "little") for path in paths]), np.uint8)
    bits = np.unpackbits(packed.reshape(len(parents), size), axis=1, count=len(parents), bitorder="little")
    return bits.view(np.bool_), [path.bit_count() for path in paths]
