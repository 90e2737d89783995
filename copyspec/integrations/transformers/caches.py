"""Caches of `generate`: what one holds of each row, and how rows are written to one."""

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
"""Layers that hold keys and values as they are; those of other types compress them, or hold a state."""


def cache_of(arguments: Mapping[str, object]) -> Cache | None:
    """The cache among the arguments of a call, empty or not."""
    return next((cache for name in CACHES if isinstance(cache := arguments.get(name), Cache)), None)


def layers_of(cache: Cache) -> Sequence[Any]:
    """The layers of a cache; those of self-attention for encoder-decoder models."""
    own: Any = cache.self_attention_cache if isinstance(cache, EncoderDecoderCache) else cache
    layers: Sequence[Any] = own.layers
    return layers


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
        if not _is_readable(layer):
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
    return [[_unmasked(layer, row, own) for layer in layers] for row, own in enumerate(seen)]


def _unmasked(layer: Any, row: int, seen: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Keys and values of a row's unmasked tokens, [H, n, D]; zeros for those that have left the layer's window, which
    no later token attends to. None for a layer without any."""
    if getattr(layer, "keys", None) is None:
        return None
    first = max(0, len(seen) - layer.keys.shape[2])
    columns = seen[first:].nonzero().flatten().to(layer.keys.device)

    def of_row(states: torch.Tensor) -> torch.Tensor:
        lost = states.new_zeros((states.shape[1], int(seen[:first].sum()), states.shape[3]))
        return torch.cat([lost, states[row].index_select(1, columns)], dim=1)

    return of_row(layer.keys), of_row(layer.values)


def can_write(cache: Cache | None) -> bool:
    """Whether keys and values can be written to a cache as a model does it, but without the model."""
    return cache is not None and not isinstance(cache, EncoderDecoderCache) and all(map(_is_readable, layers_of(cache)))


def write_rows(cache: Cache, rows: Sequence[Layers], columns: int) -> int:
    """Write rows without masked tokens, [H, n, D] per layer, after the first `columns`, which the cache holds, up to
    where each has some. Returns how many columns it holds then."""
    stop = min(pair[0].shape[1] for row in rows for pair in row if pair is not None)
    for index, pairs in enumerate(zip(*rows, strict=True)):
        if pairs[0] is not None:
            keys, values = (torch.stack([pair[part][:, columns:stop] for pair in pairs]) for part in (0, 1))
            cache.update(keys, values, index)
    return stop


def _is_readable(layer: Any) -> bool:
    """Whether a layer holds keys and values as they are, or nothing."""
    return type(layer) in _READ or (getattr(layer, "keys", None) is None and not hasattr(layer, "has_previous_state"))


def _is_filled(layer: Any) -> bool:
    """Whether a layer holds tokens, or the state of a recurrent one."""
    states = getattr(layer, "has_previous_state", None)
    if isinstance(states, Mapping) and any(states.values()):
        return True
    return getattr(layer, "keys", None) is not None and int(layer.get_seq_length()) > 0
