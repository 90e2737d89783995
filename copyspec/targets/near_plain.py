"""Attention of a tree pass in the shapes of plain decoding, where that makes a bfloat16 pass on a CPU give its bits.

On CPUs a linear layer in bfloat16 gives each token the same bits however many tokens are passed (measured with
oneDNN on AVX-512). Fused attention does not: it takes keys in vectors of 16 and the remaining ones by another
exponential, so the number of keys decides the last bits, and a tree pass has more keys than its nodes see. Nodes
whose numbers of keys fill equally many vectors are therefore passed together, cut to the keys that the last of them
sees. The tree's first chain then has the bits of plain decoding but for one element in about a hundred thousand,
for a few per cent of the pass's time; nodes beside that chain are passed as they stand.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from copyspec.targets.facts import configs

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from copyspec.targets.columns import Columns

VECTOR = 16  # float32 numbers in an AVX-512 register; with shorter ones the grouping is finer than it need be

NAME = "copyspec_near_plain"
"""Of the attention implementation, as transformers lists it."""


class Segment(NamedTuple):
    """Columns begin..end of a pass, and how many of the key slots they are shown."""

    begin: int
    end: int
    keys: int


_SEGMENTS: ContextVar[tuple[Segment, ...]] = ContextVar("copyspec_segments", default=())


@contextmanager
def near_plain(model: PreTrainedModel, columns: Columns) -> Iterator[None]:
    """For its length the model's fused attention works segment by segment, where it applies: one row in bfloat16
    on a CPU. The configuration is then as it was."""
    parts = [part for part in configs(model.config) if part._attn_implementation == "sdpa"]
    if len(columns.tokens) > 1 or model.dtype != torch.bfloat16 or model.device.type != "cpu" or not parts:
        yield
        return
    AttentionInterface.register(NAME, _attention)
    token = _SEGMENTS.set(segments(columns))
    try:
        for part in parts:
            part._attn_implementation_internal = NAME
        yield
    finally:
        _SEGMENTS.reset(token)
        for part in parts:
            part._attn_implementation_internal = "sdpa"


def segments(columns: Columns) -> tuple[Segment, ...]:
    """Segments of a pass of one row: the prompt, the tree's first chain vector by vector, the other nodes."""
    slots = columns.slots[0]
    total, width = len(slots), columns.visible.shape[2]
    # A column sees all slots up to its own where its position is its slot; other nodes stand further behind.
    in_order = np.append(columns.positions[0] == slots, False)
    chain = int(in_order.argmin())
    prompt = total - columns.kept + 1
    found = [Segment(0, prompt, int(slots[prompt - 1]) + 1)] if prompt > 1 else []
    begin = found[0].end if found else 0
    while begin < chain:
        vectors = (int(slots[begin]) + 1) // VECTOR
        end = min(chain, begin + VECTOR * (vectors + 1) - 1 - int(slots[begin]))
        found.append(Segment(begin, end, int(slots[end - 1]) + 1))
        begin = end
    if begin < total:
        found.append(Segment(begin, total, width))
    return tuple(found)


def _attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor,
    **options: object,
) -> tuple[torch.Tensor, None]:
    """transformers' own fused attention, a call per segment. Query [1, H, Q, D]; returns [1, Q, H, D]."""
    parts = [
        sdpa_attention_forward(
            module,
            query[:, :, begin:end],
            key[:, :, :keys],
            value[:, :, :keys],
            attention_mask[:, :, begin:end, :keys],
            **options,  # type: ignore[arg-type]
        )[0]
        for begin, end, keys in _SEGMENTS.get()
    ]
    return torch.cat(parts, dim=1), None
