"""Attention of a static pass without a mask over the whole context: all cached tokens are visible, the columns of the
pass according to ancestor bits.

In place of a mask, the model's layers receive a *tree mask*: a view of the packed pass on the device (`packing`), as
integers [B, 1 + window, Q, F] with the fields depth, length, (two unused ones) and words of ancestor bits. The size of
its second dimension tells a sliding layer its window (1: no window). Models that pass masks unchanged to transformers'
attention interface work with it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from copyspec.targets.static.packing import FIELDS, WORD, words
from copyspec.targets.static.triton_kernels import kernels_run

if TYPE_CHECKING:
    from copyspec.targets.facts import ModelFacts

logger = logging.getLogger(__name__)

NAME = "copyspec_tree"
"""The name of this attention in transformers' registry."""

DEPTH, LENGTH, WORDS = 0, 1, FIELDS - 1  # fields of a tree mask, which has no tokens

KINDS = frozenset({"full_attention", "sliding_attention"})


class _Recorded(threading.local):
    """The calls of this thread."""

    callers: list[torch.nn.Module] | None = None  # modules, in order; None: not recorded


_recorded = _Recorded()


def tree_masks(packed: torch.Tensor, facts: ModelFacts) -> torch.Tensor | dict[str, torch.Tensor]:
    """Tree masks as views of `packed` [F, B, Q]: one, or a dict by kind of attention."""
    tree = packed[1:].permute(1, 2, 0).unsqueeze(1)
    masks = {
        kind: tree.expand(-1, 1 + (facts.window or 0 if kind == "sliding_attention" else 0), -1, -1)
        for kind in facts.kinds
    }
    return masks if len(masks) > 1 else masks[facts.kinds[0]]


def attend(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    tree: torch.Tensor,
    scale: float,
    softcap: float | None = None,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """Attention of each column to the cached tokens and to its ancestors, itself included.

    `query` [B, H, Q, D]; `keys` and `values` [B, Hkv, S, D], whose slots length .. length + Q - 1 hold the columns;
    `tree`: a tree mask; `softcap`: scores s become softcap * tanh(s / softcap) (Gemma 2); `sinks` [H]: a score per head
    that takes part in the softmax but has no value (gpt-oss). Returns [B, Q, H, Dv].
    """
    if query.is_cuda and kernels_run(query.device):
        from copyspec.targets.static import tree_kernel

        attended: torch.Tensor = tree_kernel.attend(query, keys, values, tree, scale, softcap, sinks)
        return attended
    return attend_in_torch(query, keys, values, tree, scale, softcap, sinks)


def attend_in_torch(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    tree: torch.Tensor,
    scale: float,
    softcap: float | None = None,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """`attend` with torch operators: used without Triton, and as the reference for its kernel."""
    rows, heads, nodes, width = query.shape
    key_heads, slots = keys.shape[1:3]
    grouped = query.reshape(rows, key_heads, heads // key_heads * nodes, width)
    scores = (grouped @ keys.transpose(2, 3)).to(torch.promote_types(query.dtype, torch.float32)) * scale
    scores = scores.view(rows, heads, nodes, slots)
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    scores = torch.where(_seen(tree, slots).unsqueeze(1), scores, torch.finfo(scores.dtype).min)
    if sinks is not None:
        column = sinks.to(scores.dtype).view(1, heads, 1, 1).expand(rows, -1, nodes, -1)
        scores = torch.cat([scores, column], dim=-1)
    shares = scores.softmax(-1)[..., :slots].to(values.dtype)
    attended = shares.view(rows, key_heads, -1, slots) @ values
    return attended.view(rows, heads, nodes, -1).transpose(1, 2).contiguous()


def _seen(tree: torch.Tensor, slots: int) -> torch.Tensor:
    """Which slots each column attends to, [B, Q, S]."""
    window, fields = tree.shape[1] - 1, tree[:, 0]
    nodes = fields.shape[1]
    slot = torch.arange(slots, device=tree.device)
    lengths = fields[:, :1, LENGTH]  # [B, 1]
    column = (slot - lengths).clamp(0, nodes - 1)  # [B, S]
    in_tree = (slot >= lengths) & (slot < lengths + nodes)
    bits = fields[:, :, WORDS : WORDS + words(nodes)]
    word = bits.gather(2, (column // WORD).unsqueeze(1).expand(-1, nodes, -1))
    ancestor = (word >> (column % WORD).unsqueeze(1)) & 1 != 0
    seen = (slot < lengths).unsqueeze(1) | (ancestor & in_tree.unsqueeze(1))
    if window:
        depths = fields[:, :, DEPTH]
        places = torch.where(in_tree, lengths + depths.gather(1, column), slot)
        seen = seen & ((lengths + depths).unsqueeze(2) - places.unsqueeze(1) < window)
    return seen


def tree_attention_forward(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Attention with transformers' signature. A call without a tree mask comes from another thread that runs the model
    meanwhile, and gets transformers' attention. Raises ValueError within `callers`, and if that cannot compute it."""
    is_biased = kwargs.get("position_bias") is not None
    if attention_mask is None or attention_mask.dtype != torch.long or is_biased:
        if _recorded.callers is not None or is_biased or softcap is not None or s_aux is not None:
            raise ValueError(f"{type(module).__name__} passes attention something other than the mask it was given")
        attended: torch.Tensor = sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs
        )[0]
        return attended, None
    if _recorded.callers is not None:
        _recorded.callers.append(module)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    return attend(query, key, value, attention_mask, scale, softcap, s_aux), None


@contextmanager
def callers() -> Iterator[list[torch.nn.Module]]:
    """Record the layers that call this attention in this thread while the context is active, in order."""
    before, found = _recorded.callers, list[torch.nn.Module]()
    _recorded.callers = found
    try:
        yield found
    finally:
        _recorded.callers = before


AttentionInterface.register(NAME, tree_attention_forward)
AttentionMaskInterface.register(NAME, sdpa_mask)  # for calls of other threads, whose masks the model builds
