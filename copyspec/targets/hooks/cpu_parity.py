"""Attention of a tree pass in the shapes of plain decoding, where that makes a bfloat16 pass on a CPU give its bits.

On CPUs a linear layer in bfloat16 gives each token the same bits however many tokens are passed (measured with
oneDNN on AVX-512). Fused attention does not: it takes keys in vectors of 16 and the remaining ones by another
exponential, so the number of keys decides the last bits, and a tree pass has more keys than its nodes see. Nodes
whose numbers of keys fill equally many vectors are therefore passed together, cut to the keys that the last of them
sees. The tree's first chain then has the bits of plain decoding but for one element in about a hundred thousand,
for a few per cent of the pass's time; nodes beside that chain are passed as they stand.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

if TYPE_CHECKING:
    from copyspec.targets.columns import Columns
    from copyspec.targets.facts import ModelFacts

VECTOR = 16  # float32 numbers in an AVX-512 register; with shorter ones the grouping is finer than it need be

Masks = torch.Tensor | dict[str, torch.Tensor]

_fused = torch.nn.functional.scaled_dot_product_attention


class RowSegment(NamedTuple):
    """Columns begin..end of a pass, and how many of the key slots they are shown."""

    begin: int
    end: int
    keys: int


class SegmentedMask(torch.Tensor):
    """A mask with which fused attention works segment by segment. Neither the model nor other threads notice."""

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


def near_plain(facts: ModelFacts, masks: Masks, columns: Columns) -> Masks:
    """The masks of a pass of one row in bfloat16 on a CPU such that fused attention works segment by segment; other
    masks as they are."""
    if len(columns.tokens) > 1 or facts.zero.dtype != torch.bfloat16 or facts.device.type != "cpu":
        return masks
    found = segments(columns)
    if isinstance(masks, dict):
        return {kind: _segmented(mask, found) for kind, mask in masks.items()}
    return _segmented(masks, found)


def segments(columns: Columns) -> tuple[RowSegment, ...]:
    """Segments of a pass of one row: the prompt, the tree's first chain vector by vector, the other nodes."""
    slots = columns.slots[0]
    total, width = len(slots), columns.visible.shape[2]
    # A column sees all slots up to its own where its position is its slot; other nodes stand further behind.
    in_order = np.append(columns.positions[0] == slots, False)
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


def _segmented(mask: torch.Tensor, found: tuple[RowSegment, ...]) -> torch.Tensor:
    segmented = mask.as_subclass(SegmentedMask)
    segmented.segments = found
    return segmented


def _is_mask_like(result: object, mask: torch.Tensor) -> bool:
    """Whether a model's own handling of the mask (a slice, another type) left it a mask of this pass."""
    return isinstance(result, torch.Tensor) and result.shape[-2:] == mask.shape[-2:] and result.is_floating_point()


def _by_segment(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attn_mask: SegmentedMask, **options: Any
) -> torch.Tensor:
    """Fused attention, a call per segment. Query [1, H, Q, D]; returns [1, H, Q, D]."""
    mask = attn_mask.as_subclass(torch.Tensor)
    parts = [
        _fused(query[:, :, begin:end], key[:, :, :keys], value[:, :, :keys], mask[:, :, begin:end, :keys], **options)
        for begin, end, keys in attn_mask.segments
    ]
    return torch.cat(parts, dim=2)
