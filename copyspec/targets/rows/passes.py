"""A target pass: the tokens of all rows after each other, what each of them may see, and the keys and values of rows.

The model is given T tokens as one row. Those of a row follow each other: its uncached tokens, the last of which is the
root, then the nodes of its tree, each parent before its children. Their keys and values go to the slots after the row's
cached ones, in the same order. A token sees the cached tokens of its own row, the uncached ones up to itself or, if it
is a node, the uncached ones and its ancestors.

Each row has buffers of its own, so that rows join and leave without a copy. Slot s holds the row's token s. Of the
tokens of a pass, `keep` makes the accepted path contiguous; what follows is overwritten by the next pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from transformers import Cache, DynamicCache
from transformers.cache_utils import CacheLayerMixin, DynamicLayer

from copyspec.targets.hooks.inference import in_inference_mode
from copyspec.targets.hooks.states import scored_tokens
from copyspec.tree import COMPILED, ROOT, DraftTree

if TYPE_CHECKING:
    from copyspec.targets.model.facts import ModelFacts
    from copyspec.targets.rows.prefixes import Layers

IndexArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

BLOCK = 64
"""Capacity is a multiple of this many slots, so that a short output never grows the first buffer."""


@dataclass(slots=True)
class Pass:
    """T tokens of B rows. Row r has the tokens first[r] .. first[r + 1] - 1, after starts[r] cached ones."""

    starts: Sequence[int]  # [B]
    first: Sequence[int]  # [B + 1]
    scored: Sequence[int]  # [B], how many last tokens of a row are scored: root and nodes
    packed: IndexArray  # [2, T], tokens and positions: one array, for one copy to the device
    visible: Sequence[BoolArray | None]  # [n, L] of each row: its slots that a token sees; None: all, of a single token
    mask: torch.Tensor | None = None
    """The additive mask of the only row, [1, 1, n, L], of a model with one kind of layers, if `lay_out` has made it."""
    tables: dict[int, tuple[object, IndexArray]] = field(default_factory=dict)
    """What the compiled layers make of the rows, by the id of the mask that they are given."""
    _masks: dict[str, list[torch.Tensor | None]] = field(default_factory=dict)

    @property
    def tokens(self) -> IndexArray:
        tokens: IndexArray = self.packed[0]
        return tokens

    @property
    def positions(self) -> IndexArray:
        positions: IndexArray = self.packed[1]
        return positions

    def ends(self) -> list[int]:
        """The slots in use after the pass, L, of each row. [B]"""
        first = self.first
        return [start + first[row + 1] - first[row] for row, start in enumerate(self.starts)]

    def wanted(self) -> list[int]:
        """The tokens that are scored, row by row. [N]"""
        return scored_tokens(self.first, self.scored)

    def key_positions(self, row: int) -> IndexArray:
        """The position of the token in each slot of a row, [L]: the slot's index, but for the nodes of this pass."""
        own = self.positions[self.first[row] : self.first[row + 1]]
        return np.concatenate([np.arange(self.starts[row]), own])

    def seen(self, row: int, kind: str, facts: ModelFacts) -> BoolArray | None:
        """Which slots the tokens of a row see in layers of this kind, [n, L]; None: all, which a single token may."""
        visible = self.visible[row]
        limit = facts.window if kind == "sliding_attention" else facts.chunk if kind == "chunked_attention" else None
        if limit is None or self.starts[row] + self.first[row + 1] - self.first[row] <= limit:
            return visible
        own = self.positions[self.first[row] : self.first[row + 1], None]
        near: BoolArray = facts.near(kind, own, self.key_positions(row)[None])
        return near if visible is None else visible & near

    def masks(self, kind: str, facts: ModelFacts) -> list[torch.Tensor | None]:
        """The additive mask of each row in layers of this kind, [1, 1, n, L]; None where nothing is hidden."""
        if kind not in self._masks:
            masks = list[torch.Tensor | None]()
            for row in range(len(self.starts)):
                seen = self.seen(row, kind, facts)
                masks.append(None if seen is None else facts.additive(torch.from_numpy(seen[None, None])))
            self._masks[kind] = masks
        return self._masks[kind]

    def joint_masks(self, facts: ModelFacts) -> Any:
        """Additive masks over the slots of all rows after each other, [1, 1, T, K], None for recurrent layers: one, or
        a dict by kind if there are several."""
        return facts.by_kind(lambda kind: facts.additive(torch.from_numpy(self._joint(kind, facts)[None, None])))

    def _joint(self, kind: str, facts: ModelFacts) -> BoolArray:
        ends = self.ends()
        joint, slot = np.zeros((self.first[-1], sum(ends)), np.bool_), 0
        for row, end in enumerate(ends):
            seen = self.seen(row, kind, facts)
            joint[self.first[row] : self.first[row + 1], slot : slot + end] = True if seen is None else seen
            slot += end
        return joint


class Buffers:
    """Keys and values of one row in one layer, [H, S, D] each. They grow by doubling."""

    __slots__ = ("dtypes", "keys", "place", "values")

    def __init__(self, keys: torch.Tensor, values: torch.Tensor, slots: int) -> None:
        """With space for `slots` slots, of keys and values like these, [H, n, D]."""
        self._allocate(keys, values, _capacity(slots))

    def _allocate(self, keys: torch.Tensor, values: torch.Tensor, capacity: int) -> None:
        # Zeroed memory, since a masked slot still enters attention as 0 * value, which must be finite.
        self.keys = keys.new_zeros((keys.shape[0], capacity, keys.shape[2]))
        self.values = values.new_zeros((values.shape[0], capacity, values.shape[2]))
        self.place = self.keys.data_ptr(), self.values.data_ptr(), capacity
        """Addresses, and the number of slots, for the compiled layers."""
        self.dtypes = keys.dtype, values.dtype

    def make_room(self, slots: int) -> None:
        """Make space for so many slots."""
        capacity = self.place[2]
        if slots >= capacity:
            keys, values = self.keys, self.values
            self._allocate(keys, values, _capacity(max(slots, 2 * capacity - 1)))
            self.keys[:, :capacity], self.values[:, :capacity] = keys, values

    def write(self, start: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Write keys and values, [H, n, D], into slots start, start + 1, ..."""
        stop = start + keys.shape[1]
        self.make_room(stop)
        self.keys[:, start:stop], self.values[:, start:stop] = keys, values


@dataclass(slots=True, eq=False)
class RowCache:
    """The keys and values of one row."""

    reserved: int = 0  # slots that new buffers have space for
    length: int = 0  # cached tokens
    layers: dict[int, Buffers] = field(default_factory=dict)  # by number; those without keys of their own have none

    def layer(self, number: int, slots: int, keys: torch.Tensor, values: torch.Tensor) -> Buffers:
        """The buffers of a layer with space for so many slots, of keys and values like these, [H, n, D]."""
        buffers = self.layers.get(number)
        if buffers is None:
            buffers = self.layers[number] = Buffers(keys, values, max(slots, self.reserved))
        else:
            buffers.make_room(slots)
        return buffers

    @in_inference_mode
    def move(self, sources: Sequence[int], start: int) -> None:
        """Copy these slots to `start` and the following ones in every layer."""
        by_device: dict[torch.device, torch.Tensor] = {}
        for buffers in self.layers.values():
            device = buffers.keys.device
            if device not in by_device:
                index = torch.tensor(sources, device="cpu")
                by_device[device] = index.to(device, non_blocking=device.type == "cuda")
            for buffer in (buffers.keys, buffers.values):  # all reads precede the writes
                buffer[:, start : start + len(sources)] = buffer.index_select(1, by_device[device])

    def fill(self, pieces: Sequence[Layers]) -> None:
        """Begin the row with these pieces."""
        for number in range(max(map(len, pieces), default=0)):
            start = 0
            for piece in pieces:
                if (pair := piece[number]) is not None:
                    self.layer(number, start + pair[0].shape[1], *pair).write(start, *pair)
                    start += pair[0].shape[1]

    def read(self, start: int, stop: int) -> Layers:
        """Copy the keys and values in slots start .. stop - 1, [H, n, D]; None for layers without keys of their own."""
        layers = map(self.layers.get, range(1 + max(self.layers, default=-1)))
        return [
            None if layer is None else (layer.keys[:, start:stop].clone(), layer.values[:, start:stop].clone())
            for layer in layers
        ]


class Attention(Protocol):
    """What attends to the rows' own buffers in a pass (`eager.row_attention`)."""

    def wrote(self, number: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Record that a layer was given back these keys and values, [1, H, T, D], after its rows' buffers were
        written."""
        ...

    def masks(self, marker: torch.Tensor | None) -> list[torch.Tensor | None]:
        """The additive mask of each row for a layer with this marker, [1, 1, n, L]; None: it sees all."""
        ...


class PassLayer(CacheLayerMixin):  # type: ignore[no-untyped-call]
    """One layer of the rows of a pass. Never slides: masks express windows, so that nodes can be dropped."""

    is_sliding = False

    def __init__(self, cache: PassCache, number: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._cache, self._number = cache, number

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Do nothing: rows have buffers of their own."""

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: object, **kwargs: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write the pass's keys and values, [1, H, T, D] each. Returns those of all slots in use, row after row,
        [1, H, K, D]; with `PassCache.attention`, what was given."""
        cache = self._cache
        work, rows = cache.work, cache.rows
        keys, values = key_states[0], value_states[0]
        if not self.is_initialized:
            self.keys = self.values = keys.new_zeros(1)  # models ask whether there are any
            self.is_initialized = True
        for row, start, first, last in zip(rows, work.starts, work.first, work.first[1:], strict=False):
            own, theirs = keys[:, first:last], values[:, first:last]
            row.layer(self._number, start + last - first, own, theirs).write(start, own, theirs)
        if cache.attention is not None:
            cache.attention.wrote(self._number, key_states, value_states)
            return key_states, value_states
        parts = [(row.layers[self._number], end) for row, end in zip(rows, work.ends(), strict=True)]
        if len(parts) == 1:
            buffers, end = parts[0]
            return buffers.keys[:, :end].unsqueeze(0), buffers.values[:, :end].unsqueeze(0)
        joined = torch.cat([buffers.keys[:, :end] for buffers, end in parts], dim=1).unsqueeze(0)
        return joined, torch.cat([buffers.values[:, :end] for buffers, end in parts], dim=1).unsqueeze(0)

    def get_seq_length(self) -> int:
        return self._cache.get_seq_length()

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self._cache.get_mask_sizes(query_length)

    def get_max_length(self) -> int:
        return -1


class PassCache(Cache):
    """The cache that a session gives the model: of the rows of the running pass."""

    def __init__(self) -> None:
        super().__init__(layers=[])
        self.rows: Sequence[RowCache] = ()
        self.work: Pass
        """The running pass."""
        self.is_plain = False
        """Whether it is a causal continuation of one row, for which the model makes its own masks and positions."""
        self.attention: Attention | None = None
        """What attends to the rows' own buffers; None: the model is given the keys and values of all rows."""

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: object, **kwargs: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return self.layer(layer_idx).update(key_states, value_states)  # type: ignore[no-any-return]

    def layer(self, index: int) -> Any:
        """The layer of this index, which is made if the model has not written to it yet."""
        while len(self.layers) <= index:
            self.layers.append(PassLayer(self, len(self.layers)))
        return self.layers[index]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.work.starts[0] if self.is_plain else 0

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
        return sum(self.work.ends()), 0


def computed_cache(layers: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> DynamicCache:
    """A cache whose contents, [B, H, S, D] per layer, a model treats as already computed, as of cross-attention."""
    cache = DynamicCache()
    for keys, values in layers:
        layer: Any = DynamicLayer()  # type: ignore[no-untyped-call]
        layer.keys, layer.values, layer.is_initialized = keys, values, True
        layer.dtype, layer.device = keys.dtype, keys.device
        cache.layers.append(layer)
    return cache


def check_rows(rows: int, uncached: Sequence[Sequence[int]], trees: Sequence[DraftTree]) -> None:
    """Raise ValueError if the tokens and trees are not those of the first of a session's rows."""
    if len(uncached) > rows or len(trees) != len(uncached):
        raise ValueError(f"the session has {rows} rows, got tokens of {len(uncached)} and trees of {len(trees)}")
    if not all(map(len, uncached)):
        row = [len(ids) for ids in uncached].index(0)
        raise ValueError(f"row {row} has no uncached tokens; these are at least the last accepted token")


def lay_out(
    starts: Sequence[int],
    uncached: Sequence[Sequence[int]],
    trees: Sequence[DraftTree],
    facts: ModelFacts | None = None,
) -> Pass:
    """Lay out the tokens of rows whose first `starts[r]` slots are cached. Each has at least one uncached token. With
    the `facts` of a model that takes one kind of mask, on a CPU, these are made in the same go."""
    sizes = [len(ids) + len(tree.tokens) for ids, tree in zip(uncached, trees, strict=True)]
    first = [0, *accumulate(sizes)]
    packed = np.empty((2, first[-1]), np.int64)
    shapes = [(size, start + size) if size > 1 else None for start, size in zip(starts, sizes, strict=True)]
    places = [0, *accumulate([shape[0] * shape[1] if shape is not None else 0 for shape in shapes])]
    flat = np.empty(places[-1], np.bool_)
    visible = [
        None if shape is None else flat[place : place + shape[0] * shape[1]].reshape(shape)
        for shape, place in zip(shapes, places, strict=False)
    ]
    work = Pass(starts, first, [1 + len(tree.tokens) for tree in trees], packed, visible)
    if COMPILED is None:
        _fill(work, uncached, trees)
        return work
    mask: npt.NDArray[Any] | None = None
    lowest = 0
    if facts is not None and facts.mask_format is not None:
        kind, lowest = facts.mask_format
        mask = np.empty(places[-1], kind)
    tokens, parents = [tree.tokens for tree in trees], [tree.parents for tree in trees]
    COMPILED.lay_out(starts, uncached, tokens, parents, packed, flat, mask, lowest)
    if facts is not None and mask is not None:
        additive = torch.from_numpy(mask)
        if additive.dtype != facts.zero.dtype:  # NumPy has no bfloat16
            additive = additive.view(facts.zero.dtype)
        masks = [
            None if shape is None else additive[place : place + shape[0] * shape[1]].view(1, 1, *shape)
            for shape, place in zip(shapes, places, strict=False)
        ]
        work._masks[facts.kinds[0]] = masks
        work.mask = masks[0] if len(masks) == 1 else None
    return work


def _fill(work: Pass, uncached: Sequence[Sequence[int]], trees: Sequence[DraftTree]) -> None:
    """The Python version of `lay_out` in `native/trees.c`."""
    tokens, positions = work.packed
    for row, (start, ids, tree) in enumerate(zip(work.starts, uncached, trees, strict=True)):
        first, root, last = work.first[row], work.first[row] + len(ids) - 1, work.first[row + 1]
        end = start + len(ids)
        tokens[first : root + 1], tokens[root + 1 : last] = ids, tree.tokens
        positions[first : root + 1] = np.arange(start, end)
        visible = work.visible[row]
        if visible is None:
            continue
        visible[:, :start], visible[:, start:] = True, False
        visible[: len(ids), start:end] = np.tri(len(ids), dtype=np.bool_)
        if len(tree):
            on_path, depths = ancestors(tree.parents)
            positions[root + 1 : last] = [end - 1 + depth for depth in depths]
            visible[len(ids) :, start:end] = True
            visible[len(ids) :, end:] = on_path


def ancestors(parents: Sequence[int]) -> tuple[BoolArray, list[int]]:
    """For each node, which nodes are on its path, itself included, [m, m], and how many: its depth, [m]."""
    paths: list[int] = []  # one bit per node: copying a path is one operation
    for node, parent in enumerate(parents):
        paths.append(1 << node | (0 if parent == ROOT else paths[parent]))
    size = (len(parents) + 7) // 8
    packed = np.frombuffer(b"".join([path.to_bytes(size, "little") for path in paths]), np.uint8)
    bits = np.unpackbits(packed.reshape(len(parents), size), axis=1, count=len(parents), bitorder="little")
    return bits.view(np.bool_), [path.bit_count() for path in paths]


def _capacity(used: int) -> int:
    """Slots for `used` tokens and one more, rounded up to whole blocks."""
    return (used // BLOCK + 1) * BLOCK
