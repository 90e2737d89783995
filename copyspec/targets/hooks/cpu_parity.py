"""Splits the attention of a bfloat16 tree pass on a CPU, so that its results have the bits of plain decoding.

On CPUs a bfloat16 linear layer gives each token the same bits for any number of tokens (measured with oneDNN on
AVX-512). Fused attention does not: it processes keys in vectors of 16 or 8, and the remaining ones with a different
exponential, so the last bits depend on the number of keys, and a tree pass has more keys than its nodes see. Nodes
that see equally many full vectors of keys are therefore processed together, with the keys that the last of them sees.
The tree's first chain then has the bits of plain decoding except for one element in about a hundred thousand, at a
cost of a few per cent of the pass. Nodes off that chain are processed as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

if TYPE_CHECKING:
    from copyspec.targets.columns import Columns

VECTOR = 16 if torch.backends.cpu.get_cpu_capability() == "AVX512" else 8
"""float32 numbers per vector of fused attention. A larger number would put nodes with different full vectors into one
segment: with 16 on AVX2, half the rows of a tiny model's logits differ from plain decoding, with 8 none."""

Masks = torch.Tensor | dict[str, torch.Tensor]

_fused = torch.nn.functional.scaled_dot_product_attention


class RowSegment(NamedTuple):
    """Columns begin .. end - 1 of a pass, and the number of key slots they are given."""

    begin: int
    end: int
    keys: int


class SegmentedMask(torch.Tensor):
    """A mask that makes fused attention run segment by segment, transparently to the model and to other threads."""

    segments: tuple[RowSegment, ...]

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        named = dict(kwargs or {})
        mask = named.get("attn_mask")
        if func is _fused and isinstance(mask, SegmentedMask) and len(args) == 3:
            return _by_segment(*args, **named)
        with torch._C.DisableTorchFunctionSubclass():
            result = func(*args, **named)
        if isinstance(args[0], SegmentedMask) and _is_mask_like(result, args[0]):
            result = result.as_subclass(SegmentedMask)
            result.segments = args[0].segments
        return result


def segmented_masks(masks: Masks, columns: Columns) -> Masks:
    """Convert the masks of a one-row bfloat16 pass on a CPU, so that fused attention runs segment by segment."""
    found = segments(columns)
    segmented = {}
    for kind, mask in masks.items() if isinstance(masks, dict) else [("", masks)]:
        segmented[kind] = own = mask.as_subclass(SegmentedMask)
        own.segments = found
    return {**segmented} if isinstance(masks, dict) else segmented[""]


def segments(columns: Columns) -> tuple[RowSegment, ...]:
    """Segments of a one-row pass: the prompt, the tree's first chain split at vector borders, and the other nodes."""
    slots = columns.slots[0]
    total, width = len(slots), columns.visible.shape[2]
    # A column whose position equals its slot sees all slots up to its own; other nodes have later slots.
    in_order = np.append(columns.packed[1, 0] == slots, False)
    chain = int(in_order.argmin())
    prompt = total - columns.kept + 1
    found = [RowSegment(0, prompt, int(slots[prompt - 1]) + 1)] if prompt > 1 else []
    begin = found[0].end if found else 0
    while begin < chain:
        vectors = (int(slots[begin]) + 1) // VECTOR
        end = min(chain, begin + VECTOR * (vectors + 1) - 1 - int(slots[begin]))
        found.append(RowSegment(begin, end, int(slots[end - 1]) + 1))
        begin = end
    if begin < total:
        found.append(RowSegment(begin, total, width))
    return tuple(found)


def _is_mask_like(result: object, mask: torch.Tensor) -> bool:
    """Whether the result of the model's own mask handling (a slice, a cast) is still a mask of this pass."""
    return isinstance(result, torch.Tensor) and result.shape[-2:] == mask.shape[-2:] and result.is_floating_point()


def _by_segment(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attn_mask: SegmentedMask, **options: Any
) -> torch.Tensor:
    """Fused attention with one call per segment. Query [1, H, Q, D]; returns [1, H, Q, D]."""
    mask = attn_mask.as_subclass(torch.Tensor)
    parts = [
        _fused(query[:, :, begin:end], key[:, :, :keys], value[:, :, :keys], mask[:, :, begin:end, :keys], **options)
        for begin, end, keys in attn_mask.segments
    ]
    return torch.cat(parts, dim=2)
