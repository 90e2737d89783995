"""Key and value buffers of all layers at fixed addresses, and the cache through which a model uses them.

Layers whose keys and values have the same shape share one buffer, [planes, H, S, D], so that moving an accepted path
takes one or two kernels for any number of layers. The slots of all rows are places in it, page by page (`pools`).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from transformers import Cache
from transformers.cache_utils import CacheLayerMixin, LinearAttentionLayer

from copyspec.targets.hooks.inference import inference_mode
from copyspec.targets.hooks.recurrence import LayerParts, State
from copyspec.targets.recurrent.states import StateLayer
from copyspec.targets.static.row_states import StateKind

if TYPE_CHECKING:
    from copyspec.targets.rows.prefixes import Layers


class PlaneKind(NamedTuple):
    """The properties shared by all planes of a buffer."""

    heads: int
    width: int
    dtype: torch.dtype


class Plane(NamedTuple):
    """The location of one layer's keys or values: a buffer, and an index into it."""

    kind: PlaneKind
    number: int


class CacheLayout:
    """The planes that a model's layers need, derived from what it wrote into another cache."""

    def __init__(
        self,
        layers: Sequence[tuple[torch.Tensor, torch.Tensor]],
        parts: Sequence[LayerParts] = (),
        states: Sequence[State] = (),
    ) -> None:
        """`layers`: keys and values of each that has them, [H, S, D]; `parts`: what all layers hold, if some hold
        states, which are those of one row in each mixer. Raises ValueError if they are not on one device."""
        self.counts: dict[PlaneKind, int] = {}
        self.planes = [(self._plane(keys), self._plane(values)) for keys, values in layers]
        self.parts, self.states = parts, [StateKind.of(state) for state in states]
        tensors = [*chain.from_iterable(layers), *chain.from_iterable(state.values() for state in states)]
        devices = {tensor.device for tensor in tensors}
        if len(devices) != 1:
            raise ValueError(f"its keys and values are on {len(devices)} devices")
        self.device = devices.pop()

    @property
    def _facts(self) -> tuple[object, ...]:
        return (*self.planes, *self.parts, *self.states, self.device)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CacheLayout) and self._facts == other._facts

    def __hash__(self) -> int:
        return hash(self._facts)

    def bytes_per_slot(self) -> int:
        """Size of one token."""
        return sum(count * kind.heads * kind.width * kind.dtype.itemsize for kind, count in self.counts.items())

    def _plane(self, tensor: torch.Tensor) -> Plane:
        kind = PlaneKind(tensor.shape[0], tensor.shape[2], tensor.dtype)
        number = self.counts.get(kind, 0)
        self.counts[kind] = number + 1
        return Plane(kind, number)


class KeyValues:
    """Key and value buffers of so many slots."""

    def __init__(self, layout: CacheLayout, slots: int) -> None:
        self.layout, self.slots = layout, slots
        with inference_mode(False):  # normal tensors, since compiled programs write to them
            self.buffers = {
                # Zeroed memory, since masked slots still enter attention as 0 * value, which must be finite.
                kind: torch.zeros((count, kind.heads, slots, kind.width), dtype=kind.dtype, device=layout.device)
                for kind, count in layout.counts.items()
            }
            self.nonfinite = torch.zeros(slots, dtype=torch.bool, device=layout.device)
            """The places whose keys and values were not finite, [S]. With masks, what one row has written enters the
            sums of all as 0 times its value, so that zeros take its place; the scores of tokens that see it are NaN,
            as they would be alone."""

    def view(self, plane: Plane) -> torch.Tensor:
        """One plane, [1, H, S, D]."""
        return self.buffers[plane.kind][plane.number].unsqueeze(0)

    def fill(self, places: torch.Tensor, layers: Layers) -> None:
        """Write keys and values, [H, n, D] per layer, to these places, [n]."""
        nonfinite = torch.zeros_like(places, dtype=torch.bool)
        pairs = [pair for pair in layers if pair is not None]  # layers without any are not in the layout
        for planes, pair in zip(self.layout.planes, pairs, strict=True):
            for plane, tensor in zip(planes, pair, strict=True):
                nonfinite |= ~tensor.isfinite().movedim(1, 0).flatten(1).all(1)
                whole = torch.nan_to_num(tensor, nan=0.0, posinf=0.0, neginf=0.0)
                self.buffers[plane.kind][plane.number].index_copy_(1, places, whole)
        self.nonfinite[places] = nonfinite

    def read(self, places: torch.Tensor) -> Layers:
        """Copy the keys and values at these places, [H, n, D] per layer; None for layers of recurrent states alone."""
        nonfinite = self.nonfinite[places].unsqueeze(1)
        by_kind = {
            kind: buffer.index_select(2, places).masked_fill_(nonfinite, torch.nan)
            for kind, buffer in self.buffers.items()
        }
        # Clones: a block that outlives the others must not hold their memory.
        pairs = iter(
            [
                (by_kind[keys.kind][keys.number].clone(), by_kind[values.kind][values.number].clone())
                for keys, values in self.layout.planes
            ]
        )
        if not self.layout.parts:
            return [*pairs]
        return [next(pairs) if part.attends else None for part in self.layout.parts]

    def copy(self, other: KeyValues, slots: int) -> None:
        """Copy the first slots of other buffers of the same layout to the same places."""
        for kind, buffer in self.buffers.items():
            buffer[:, :, :slots] = other.buffers[kind][:, :, :slots]
        self.nonfinite[:slots] = other.nonfinite[:slots]


def move(buffer: torch.Tensor, sources: torch.Tensor, targets: torch.Tensor, *, by_kernel: bool = False) -> None:
    """Copy places `sources` of a buffer, [planes, H, S, D], to places `targets`, [M] each; all reads precede the
    writes.

    `by_kernel`: use Triton's, which reads only what moves.
    """
    if by_kernel:
        from copyspec.targets.static import layer_kernels

        layer_kernels.move(buffer, sources, targets)
        return
    buffer[:, :, targets] = buffer[:, :, sources]


class Writer:
    """The places that a pass writes to, and which of them hold what is not finite."""

    def __init__(self, tokens: int, key_values: KeyValues, *, by_kernel: bool) -> None:
        """`by_kernel`: attention reads what a token sees, and nothing else."""
        self.places = torch.zeros((1, tokens), dtype=torch.long, device=key_values.layout.device)
        """The places that a pass writes to, [1, T]."""
        self.nonfinite = None if by_kernel else key_values.nonfinite

    def finite(self, states: torch.Tensor, dim: int) -> torch.Tensor:
        """Keys or values with zeros in place of what is not finite; T is dimension `dim`."""
        if self.nonfinite is None:
            return states
        sound = states.isfinite().movedim(dim, 0).flatten(1).all(1)
        self.nonfinite[self.places[0]] = self.nonfinite[self.places[0]] | ~sound
        return torch.nan_to_num(states, nan=0.0, posinf=0.0, neginf=0.0)


class StaticLayer(CacheLayerMixin):  # type: ignore[no-untyped-call]
    """One layer's keys and values as one program sees them. All slots are returned; masks hide the unused ones."""

    is_sliding = False
    is_compileable = True

    def __init__(self, writer: Writer, keys: torch.Tensor, values: torch.Tensor) -> None:
        # A reference to the cache would be a cycle, which keeps the buffers until garbage is collected.
        super().__init__()  # type: ignore[no-untyped-call]
        self._writer = writer
        self.keys, self.values = self.buffers = keys, values
        self.is_initialized = True

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Do nothing: the buffers exist already."""

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: object, **kwargs: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write the pass's keys and values, [1, H, T, D] each; return those of all slots, [1, H, S, D]."""
        for buffer, states in zip(self.buffers, (key_states, value_states), strict=True):
            buffer[0, :, self._writer.places[0]] = self._writer.finite(states, 2)[0]
        return self.buffers

    def get_seq_length(self) -> int:
        return 0

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.buffers[0].shape[2], 0

    def get_max_length(self) -> int:
        return self.buffers[0].shape[2]


class StaticStateLayer(LinearAttentionLayer, StaticLayer):  # type: ignore[no-untyped-call, override]
    """A layer that holds recurrent states, and keys and values."""

    def __init__(self, number_of_states: int, writer: Writer, keys: torch.Tensor, values: torch.Tensor) -> None:
        StaticLayer.__init__(self, writer, keys, values)
        LinearAttentionLayer.__init__(self, number_of_states=number_of_states)


class StaticCache(Cache):
    """The cache that a program passes to the model."""

    def __init__(self, key_values: KeyValues, tokens: int, *, by_kernel: bool = False) -> None:
        self.width = key_values.slots
        self.writer = Writer(tokens, key_values, by_kernel=by_kernel)
        layout = key_values.layout
        planes = iter(layout.planes)
        self.static_layers: list[Any] = []
        for parts in layout.parts or [LayerParts()] * len(layout.planes):
            if not parts.attends:
                self.static_layers.append(StateLayer(parts.states))
                continue
            views = [key_values.view(plane) for plane in next(planes)]
            layer = partial(StaticStateLayer, parts.states) if parts.states else StaticLayer
            self.static_layers.append(layer(self.writer, *views))
        super().__init__(layers=list(self.static_layers))

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: object, **kwargs: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return self.static_layers[layer_idx].update(key_states, value_states)  # type: ignore[no-any-return]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
        return self.width, 0
