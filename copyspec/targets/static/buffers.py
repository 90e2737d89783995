"""Key and value buffers of all layers at fixed addresses, and the cache through which a model uses them.

Layers whose keys and values have the same shape share one buffer, [planes, B, H, S, D], so that moving an accepted path
takes one or two kernels for any number of layers. Row r holds its cached tokens in slots 0 .. length[r] - 1; a pass
writes after them, and the last slot is scratch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from transformers import Cache
from transformers.cache_utils import CacheLayerMixin

from copyspec.targets.hooks.inference import inference_mode

if TYPE_CHECKING:
    from copyspec.targets.prefixes import Layers


class PlaneKind(NamedTuple):
    """The properties shared by all planes of a buffer."""

    heads: int
    width: int
    dtype: torch.dtype


class Plane(NamedTuple):
    """The location of one layer's keys or values: a buffer, and an index into it."""

    kind: PlaneKind
    place: int


class CacheLayout:
    """The planes that a model's layers need, derived from what it wrote into another cache."""

    def __init__(self, layers: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> None:
        """`layers`: keys and values of each, [H, S, D]. Raises ValueError if they are not on one device."""
        self.counts: dict[PlaneKind, int] = {}
        self.planes = [(self._plane(keys), self._plane(values)) for keys, values in layers]
        devices = {tensor.device for pair in layers for tensor in pair}
        if len(devices) != 1:
            raise ValueError(f"its keys and values are on {len(devices)} devices")
        self.device = devices.pop()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CacheLayout) and (self.planes, self.device) == (other.planes, other.device)

    def __hash__(self) -> int:
        return hash((tuple(self.planes), self.device))

    def bytes_per_slot(self) -> int:
        """Size of one token of one row."""
        return sum(count * kind.heads * kind.width * kind.dtype.itemsize for kind, count in self.counts.items())

    def _plane(self, tensor: torch.Tensor) -> Plane:
        kind = PlaneKind(tensor.shape[0], tensor.shape[2], tensor.dtype)
        place = self.counts.get(kind, 0)
        self.counts[kind] = place + 1
        return Plane(kind, place)


class KeyValues:
    """The key and value buffers of one batch."""

    def __init__(self, layout: CacheLayout, rows: int, capacity: int) -> None:
        self.layout, self.rows, self.capacity = layout, rows, capacity
        with inference_mode(False):  # normal tensors, since compiled programs write to them
            self.buffers = {
                # Zeroed memory, since masked slots still enter attention as 0 * value, which must be finite.
                kind: torch.zeros(
                    (count, rows, kind.heads, capacity, kind.width), dtype=kind.dtype, device=layout.device
                )
                for kind, count in layout.counts.items()
            }

    def view(self, plane: Plane, rows: int, slots: int) -> torch.Tensor:
        """The first rows and slots of one plane, [rows, H, slots, D]."""
        return self.buffers[plane.kind][plane.place, :rows, :, :slots]

    def fill(self, row: int, start: int, layers: Layers) -> int:
        """Write keys and values, [H, n, D] per layer, into slots start .. start + n - 1 of `row`; return start + n."""
        stop = start
        for planes, pair in zip(self.layout.planes, layers, strict=True):
            assert pair is not None  # layers without keys of their own are not in the layout
            for plane, tensor in zip(planes, pair, strict=True):
                stop = start + tensor.shape[1]
                self.buffers[plane.kind][plane.place, row, :, start:stop] = tensor
        return stop

    def read(self, row: int, slots: Sequence[int]) -> Layers:
        """Copy the keys and values in these slots of `row`, [H, n, D] per layer."""
        index = torch.tensor(slots, device=self.layout.device)
        by_kind = {kind: buffer[:, row].index_select(2, index) for kind, buffer in self.buffers.items()}
        # Clones: a block that outlives the others must not hold their memory.
        return [
            (by_kind[keys.kind][keys.place].clone(), by_kind[values.kind][values.place].clone())
            for keys, values in self.layout.planes
        ]

    def copy_rows(self, sources: Sequence[int], targets: Sequence[int], other: KeyValues, used: int) -> None:
        """Copy rows of `other` (which may be this object) here, and zero the rest of them: an earlier row may have left
        NaN there. All reads of a layer precede its writes; layer by layer, the copies between take little memory."""
        read, written = (torch.tensor(rows, device=self.layout.device) for rows in (sources, targets))
        for kind, buffer in self.buffers.items():
            for source, target in zip(other.buffers[kind], buffer, strict=True):
                target[written, :, :used] = source[read, :, :used]
            buffer[:, written, :, used:] = 0

    def clear(self) -> None:
        """Zero all slots."""
        for buffer in self.buffers.values():
            buffer.zero_()


def move(
    buffer: torch.Tensor,
    sources: torch.Tensor,
    targets: torch.Tensor,
    row_index: torch.Tensor,
    *,
    by_kernel: bool = False,
) -> None:
    """Copy slots `sources` of a buffer, [planes, B, H, S, D], to slots `targets`, [B, Q] each; all reads precede the
    writes.

    `row_index` [B, 1]: 0 .. B - 1, made before a capture. `by_kernel`: use Triton's, which reads only what moves.
    """
    if by_kernel:
        from copyspec.targets.static import layer_kernels

        layer_kernels.move(buffer, sources, targets)
        return
    buffer[:, row_index, :, targets] = buffer[:, row_index, :, sources]


class StaticLayer(CacheLayerMixin):  # type: ignore[no-untyped-call]
    """One layer's keys and values as one program sees them. All slots are returned; masks hide the unused ones."""

    is_sliding = False
    is_compileable = True

    def __init__(
        self, rows: torch.Tensor, slots: torch.Tensor, width: int, keys: torch.Tensor, values: torch.Tensor
    ) -> None:
        """`rows` [B, 1], `slots` [B, Q] and `width`: the cache's. A reference to it would be a cycle, which keeps
        the buffers until garbage is collected."""
        super().__init__()  # type: ignore[no-untyped-call]
        self._rows, self._slots, self._width = rows, slots, width
        self.keys, self.values = self.buffers = keys, values
        self.is_initialized = True

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Do nothing: the buffers exist already."""

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: object, **kwargs: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write the pass's keys and values, [B, H, Q, D] each; return those of all slots, [B, H, S, D]."""
        for buffer, written in zip(self.buffers, (key_states, value_states), strict=True):
            buffer[self._rows, :, self._slots] = written.transpose(1, 2)
        return self.buffers

    def get_seq_length(self) -> int:
        return 0

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self._width, 0

    def get_max_length(self) -> int:
        return self._width


class StaticCache(Cache):
    """The cache that a program passes to the model."""

    def __init__(self, key_values: KeyValues, rows: int, nodes: int, width: int) -> None:
        """`width`: number of slots that the program attends to."""
        device = key_values.layout.device
        self.width = width
        self.row_index = torch.arange(rows, device=device).unsqueeze(1)  # [B, 1]
        self.slots = torch.zeros((rows, nodes), dtype=torch.long, device=device)  # [B, Q], slots that a pass writes to
        self.static_layers = [
            StaticLayer(
                self.row_index,
                self.slots,
                width,
                key_values.view(keys, rows, width),
                key_values.view(values, rows, width),
            )
            for keys, values in key_values.layout.planes
        ]
        super().__init__(layers=list(self.static_layers))

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: object, **kwargs: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return self.static_layers[layer_idx].update(key_states, value_states)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
        return self.width, 0
