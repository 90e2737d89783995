"""Masked grouped-query attention without copying the keys.

With a mask, transformers first expands keys and values to all query heads (`repeat_kv`): 4.2 GB per pass at 8,000
tokens of a model of Llama-3-8B's shape. On a GPU, query heads that share a key head are concatenated as if they were
additional queries. PyTorch's kernel for CPUs takes grouped keys as they are, with bitwise equal results.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from copyspec.targets.hooks.attention import own_implementation

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

NAME = "copyspec_grouped"
"""The name of this attention in transformers' registry."""


def group_size(model: PreTrainedModel, config: PreTrainedConfig) -> int:
    """Query heads per key head if the model calls fused attention through transformers' interface, else 1."""
    heads, keys = getattr(config, "num_attention_heads", None), getattr(config, "num_key_value_heads", None)
    if not (isinstance(heads, int) and isinstance(keys, int) and keys and heads % keys == 0):
        return 1
    takes_any = (
        model._supports_attention_backend and model._supports_sdpa and own_implementation(model.config) != "eager"
    )
    return heads // keys if takes_any else 1


def grouped_attention_forward(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Attention with transformers' signature. `attention_mask` [B, 1, Q, K], or [B, 1, G * Q, K] for all heads of a
    group."""
    (rows, heads, nodes, width), key_heads = query.shape, key.shape[1]
    group = heads // key_heads
    is_additive = attention_mask is not None and attention_mask.shape[1] == 1
    if query.is_cpu and nodes == 1 and attention_mask is not None and attention_mask.shape[2] == nodes:
        is_additive = False  # a mask of the model's own, in the call of plain decoding
    if not is_additive or kwargs.get("softcap") is not None or kwargs.get("position_bias") is not None:
        if attention_mask is not None and attention_mask.shape[2] > nodes:
            attention_mask = attention_mask[:, :, :nodes]  # the heads of a group have the same
        attended, _ = sdpa_attention_forward(
            module, query, key, value, attention_mask, scaling=scaling, dropout=dropout, **kwargs
        )
        return attended, None
    assert attention_mask is not None
    if query.is_cpu and attention_mask.shape[2] == nodes:
        out = torch.nn.functional.scaled_dot_product_attention(
            query, key, value, attn_mask=attention_mask, dropout_p=dropout, scale=scaling, enable_gqa=group > 1
        )
        return out.transpose(1, 2).contiguous(), None
    if attention_mask.shape[2] != group * nodes:
        attention_mask = attention_mask[:, :, :nodes].repeat(1, 1, group, 1)
    out = torch.nn.functional.scaled_dot_product_attention(
        query.reshape(rows, key_heads, group * nodes, width),
        key,
        value,
        attn_mask=attention_mask,
        dropout_p=dropout,
        scale=scaling,
    )
    return out.reshape(rows, heads, nodes, -1).transpose(1, 2).contiguous(), None


AttentionInterface.register(NAME, grouped_attention_forward)
AttentionMaskInterface.register(NAME, sdpa_mask)  # for models that build their own mask
