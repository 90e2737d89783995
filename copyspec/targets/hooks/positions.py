"""Explicit positions for models that derive positions from the cache's length and accept none from the caller.

Each context manager changes a single module instance, for one pass and only in the thread that runs it
(`copyspec.targets.hooks.detours`). Classes are never patched.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Literal

import torch
from torch import nn

from copyspec.targets.hooks.detours import detour, original
from copyspec.targets.hooks.modules import real_weight

if TYPE_CHECKING:
    from transformers import PreTrainedModel

PositionStyle = Literal["argument", "temperature", "bloom", "mpt", "relative", "learned", "none"]
"""How a model gets positions: from `position_ids` ("argument"), with an attention temperature computed from the cache's
length as well (Llama 4, "temperature"); from a linear bias per row (bloom) or shared by all rows (mpt); from a bias of
bucketed distances (T5, "relative"); from the decoder's position embeddings (BART, "learned"); or in no known way."""

_BLOOM_BIAS, _MPT_BIAS, _BUCKET_BIAS = "build_alibi_tensor", "build_mpt_alibi_tensor", "compute_bias"
_TEMPERATURE, _FORWARD = "attn_temperature_tuning", "forward"


def position_style(model: PreTrainedModel, arguments: frozenset[str]) -> PositionStyle:
    """Detect the style from the model's attributes, not its name."""
    if model.config.is_encoder_decoder:
        decoder = _decoder(model)
        if _bucketed(decoder):
            return "relative"
        weight = getattr(getattr(decoder, "embed_positions", None), "weight", None)
        return "learned" if isinstance(weight, torch.Tensor) else "none"
    if "position_ids" in arguments:
        return "temperature" if _tempered(model) else "argument"
    if hasattr(model.base_model, _BLOOM_BIAS):
        return "bloom"
    return "mpt" if hasattr(model.base_model, _MPT_BIAS) else "none"


@contextmanager
def positions_from_outside(
    model: PreTrainedModel, style: PositionStyle, queries: torch.Tensor, keys: torch.Tensor
) -> Iterator[None]:
    """Give the model's tokens positions `queries` [1, T], and the keys `keys` [1, K], during the context."""
    with ExitStack() as changes:
        if style == "temperature":
            for attention in _tempered(model):
                changes.enter_context(_tempered_queries(attention, queries))
        elif style == "bloom":
            changes.enter_context(detour(model.base_model, _BLOOM_BIAS, _bloom_bias(model.base_model, keys)))
        elif style == "mpt":
            changes.enter_context(detour(model.base_model, _MPT_BIAS, _mpt_bias(model.base_model, keys)))
        elif style == "relative":
            for attention in _bucketed(_decoder(model)):
                changes.enter_context(detour(attention, _BUCKET_BIAS, _bucket_bias(attention, queries, keys)))
        elif style == "learned":
            embedding = _decoder(model).get_submodule("embed_positions")
            changes.enter_context(detour(embedding, _FORWARD, _embedding(embedding, queries)))
        yield


def _embedding(embedding: nn.Module, positions: torch.Tensor) -> Callable[..., torch.Tensor]:
    weight, offset = real_weight(embedding), getattr(embedding, "offset", 0)
    assert weight is not None
    device = positions.device if weight is not embedding.weight else weight.device  # offloaded: where the passes run

    def embed(*args: object, **kwargs: object) -> torch.Tensor:
        return nn.functional.embedding(positions.to(weight.device) + offset, weight).to(device)

    return embed


def _tempered(model: PreTrainedModel) -> list[nn.Module]:
    """Layers without rotary positions whose attention temperature depends on the position (Llama 4)."""
    return [
        part for part in model.modules() if getattr(part, _TEMPERATURE, None) and not getattr(part, "use_rope", True)
    ]


@contextmanager
def _tempered_queries(attention: nn.Module, positions: torch.Tensor) -> Iterator[None]:
    """Scale the queries in their projection, by the formula of Llama4TextAttention, whose own scaling is disabled."""
    settings = vars(attention)
    steps = torch.floor((positions.float() + 1.0) / settings["floor_scale"])
    scales = (torch.log1p(steps) * settings["attn_scale"] + 1.0).unsqueeze(-1)

    projection = attention.get_submodule("q_proj")
    project = original(projection, _FORWARD)

    def scale(*args: object, **kwargs: object) -> torch.Tensor:
        output: torch.Tensor = project(*args, **kwargs)
        scaled: torch.Tensor = output * scales.to(output.device)
        return scaled.to(output.dtype)

    with detour(projection, _FORWARD, scale), detour(attention, _TEMPERATURE, False):
        yield


def _decoder(model: PreTrainedModel) -> nn.Module:
    decoder: nn.Module = model.get_decoder()  # type: ignore[no-untyped-call]
    return decoder


def _bloom_bias(decoder: nn.Module, keys: torch.Tensor) -> Callable[..., torch.Tensor]:
    build = original(decoder, _BLOOM_BIAS)

    def bias(attention_mask: torch.Tensor, num_heads: int, dtype: torch.dtype) -> torch.Tensor:
        ones = torch.ones((1, attention_mask.shape[-1]), device=attention_mask.device)
        by_position: torch.Tensor = build(ones, num_heads, dtype)  # [H, 1, K]
        rows = by_position[:, 0][:, keys.to(by_position.device)]  # [H, B, K]
        return rows.transpose(0, 1).reshape(-1, 1, keys.shape[1])

    return bias


def _mpt_bias(decoder: nn.Module, keys: torch.Tensor) -> Callable[..., torch.Tensor]:
    build = original(decoder, _MPT_BIAS)

    def bias(*args: object, **kwargs: object) -> torch.Tensor:
        by_position: torch.Tensor = build(*args, **kwargs)  # [H, 1, max_seq_len]
        last = by_position.shape[2] - 1  # longer passes have unused slots, which no token attends to
        return by_position[:, :, keys[0].to(by_position.device).clamp(max=last)]

    return bias


def _bucketed(decoder: nn.Module) -> list[nn.Module]:
    """The decoder's self-attention modules that own a table of bucketed distances (block 0 in T5)."""
    return [part for part in decoder.modules() if isinstance(getattr(part, "relative_attention_bias", None), nn.Module)]


def _bucket_bias(attention: nn.Module, queries: torch.Tensor, keys: torch.Tensor) -> Callable[..., torch.Tensor]:
    table = attention.relative_attention_bias
    bucket = attention._relative_position_bucket
    assert isinstance(table, nn.Embedding) and callable(bucket)
    settings: dict[str, object] = {}
    if "bidirectional" in inspect.signature(bucket).parameters:  # UMT5 takes them from its own attributes
        settings = {
            "bidirectional": False,
            "num_buckets": attention.relative_attention_num_buckets,
            "max_distance": attention.relative_attention_max_distance,
        }

    def bias(*args: object, **kwargs: object) -> torch.Tensor:
        distances = keys[:, None, :] - queries[:, :, None]
        if not table.weight.is_meta:  # the hook of an offloaded table moves its inputs
            distances = distances.to(table.weight.device)
        buckets = bucket(distances, **settings)
        values: torch.Tensor = table(buckets)  # [B, Q, K, H]
        return values.permute(0, 3, 1, 2)

    return bias
