"""The cache that a call of `generate` begins with: what it holds of each row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from transformers import Cache, EncoderDecoderCache
from transformers.cache_utils import (
    DynamicLayer,
    DynamicSlidingWindowLayer,
    StaticLayer,
    StaticSlidingWindowLayer,
)

from copyspec.integrations.transformers.arguments import CACHES

if TYPE_CHECKING:
    from copyspec.targets.prefixes import Layers

_READ = (DynamicLayer, DynamicSlidingWindowLayer, StaticLayer, StaticSlidingWindowLayer)


def cache_of(arguments: Mapping[str, object]) -> Cache | None:
    """The cache among the arguments of a call, empty or not."""
    return next((each for name in CACHES if isinstance(each := arguments.get(name), Cache)), None)


def cached_columns(cache: Cache | None) -> int:
    """Columns of tokens, padding included, that a cache holds of each row. Raises ValueError for one that cannot be
    read."""
    if cache is None or not any(map(_is_filled, layers_of(cache))):
        return 0
    if isinstance(cache, EncoderDecoderCache):
        raise ValueError(
            "past_key_values holds tokens, and copyspec begins an encoder-decoder model's output with an empty cache: "
            "leave it out"
        )
    for layer in layers_of(cache):
        if type(layer) not in _READ and (_is_filled(layer) or getattr(layer, "keys", None) is not None):
            raise ValueError(
                f"past_key_values holds tokens in a {type(layer).__name__}, from which copyspec cannot continue: "
                "leave it out, and give the whole text, or leave out custom_generate"
            )
    if getattr(cache, "offloading", False):
        raise ValueError("past_key_values holds tokens and is offloaded: leave it out, or leave out custom_generate")
    return max(int(layer.get_seq_length()) for layer in layers_of(cache) if type(layer) in _READ)


def cached_rows(cache: Cache, seen: torch.Tensor) -> list[Layers]:
    """Keys and values of each row's unmasked tokens, [H, n, D] per layer. `seen`: which columns are not masked, [rows,
    columns]."""
    layers = layers_of(cache)
    for layer in layers:
        if getattr(layer, "keys", None) is not None and len(layer.keys) != len(seen):
            raise ValueError(f"past_key_values holds {len(layer.keys)} rows, and the ids have {len(seen)}")
    return [[_unmasked(layer, row, kept) for layer in layers] for row, kept in enumerate(seen)]


def _unmasked(layer: Any, row: int, seen: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Keys and values of a row's unmasked tokens, [H, n, D]; zeros for those that have left the layer's window, which
    no later token attends to. None for a layer without any."""
    if getattr(layer, "keys", None) is None:
        return None
    held = min(len(seen), layer.keys.shape[2])
    lost = int(seen[: len(seen) - held].sum())
    columns = seen[len(seen) - held :].nonzero().flatten().to(layer.keys.device)
    keys, values = (each[row].index_select(1, columns) for each in (layer.keys, layer.values))
    gone = [each.new_zeros((each.shape[0], lost, each.shape[2])) for each in (keys, values)]
    return torch.cat([gone[0], keys], dim=1), torch.cat([gone[1], values], dim=1)


def layers_of(cache: Cache) -> Sequence[Any]:
    """The layers of a cache; those of self-attention for encoder-decoder models."""
    layers: Sequence[Any] = cache.self_attention_cache.layers if isinstance(cache, EncoderDecoderCache) else cache.layers
    return layers


def _is_filled(layer: Any) -> bool:
    """Whether a layer holds tokens, or the state of a recurrent one."""
    states = getattr(layer, "has_previous_state", None)
    if isinstance(states, Mapping) and any(states.values()):
        return True
    return getattr(layer, "keys", None) is not None and int(layer.get_seq_length()) > 0
