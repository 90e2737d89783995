"""One pass of the model over a finished output, for what `generate` records along the way: the cache that it leaves
behind, hidden states and attentions."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import torch
from transformers.generation.utils import GenerateDecoderOnlyOutput
from transformers.utils.generic import ModelOutput

from copyspec.integrations.transformers.arguments import CACHES
from copyspec.integrations.transformers.caches import cache_of, cached_columns, layers_of

if TYPE_CHECKING:
    from transformers import GenerationConfig, PreTrainedModel

    Recorded = Sequence[torch.Tensor | None] | None  # of one pass, one tensor per layer
    Steps = tuple[tuple[torch.Tensor | None, ...] | None, ...]  # one of these per output token

CACHE_FIELD = next(field.name for field in fields(GenerateDecoderOnlyOutput) if field.name in CACHES)
"""Under which name this version of transformers returns the cache."""


def replay(
    model: PreTrainedModel, ids: torch.Tensor, width: int, arguments: Mapping[str, object], config: GenerationConfig
) -> dict[str, object]:
    """Read `ids`, [rows, columns], into the cache among the arguments, but for the last column, which `generate` does
    not read either. Their first `width` columns are the caller's. Returns the fields of the output that this gives."""
    generation: Any = model  # typed Any, since its type does not show GenerationMixin's methods
    is_encoder_decoder = bool(model.config.is_encoder_decoder)
    cache, written = cache_of(arguments), ids.shape[1] - width - 1
    windows = None if cache is None else [_window(layer) for layer in layers_of(cache)]
    cached = cached_columns(cache)
    prefilled, config = dict(arguments), copy.copy(config)
    config.prefill_chunk_size = None
    if written:
        prefilled = generation._update_model_kwargs_for_generation(
            ModelOutput(), prefilled, is_encoder_decoder=is_encoder_decoder, num_new_tokens=written
        )
        if (length := getattr(config, "_mask_length", None)) is not None:
            config._mask_length = length + written  # type: ignore[attr-defined]
    outputs = generation._prefill(ids[:, :-1], config, prefilled)
    found: dict[str, object] = {CACHE_FIELD: _named(outputs, CACHE_FIELD) if cache is None else cache}
    prefix = "decoder_" if is_encoder_decoder else ""
    states, attentions = f"{prefix}hidden_states", f"{prefix}attentions"
    encoded: Any = arguments.get("encoder_outputs") or {}
    if config.return_dict_in_generate and config.output_hidden_states:
        found[states] = _states(_named(outputs, states), written, rereads=cache is None)
        if is_encoder_decoder:
            found["encoder_hidden_states"] = encoded.get("hidden_states")
    if config.return_dict_in_generate and config.output_attentions:
        found[attentions] = _attentions(_named(outputs, attentions), written, windows, cached)
        if is_encoder_decoder:
            crossed = _named(outputs, "cross_attentions")
            found["cross_attentions"] = _states(crossed, written, rereads=cache is None)
            found["encoder_attentions"] = encoded.get("attentions")
    return found


def _named(outputs: Any, name: str) -> Any:
    return outputs[name] if name in outputs else None


def _window(layer: object) -> int | None:
    return getattr(layer, "sliding_window", None) if getattr(layer, "is_sliding", False) else None


def _states(recorded: Recorded, written: int, *, rereads: bool) -> Steps:
    """Cut what a pass recorded for its columns, [..., columns, n], into the steps of `generate`: what the caller gave,
    and `written` tokens, one after another. `rereads`: without a cache, each step reads all columns again."""

    def step(each: torch.Tensor | None, index: int) -> torch.Tensor | None:
        if each is None:
            return None
        first = each.shape[-2] - written
        return each[..., : first + index, :] if rereads or not index else each[..., [first + index - 1], :]

    return tuple(
        None if recorded is None else tuple(step(each, index) for each in recorded) for index in range(written + 1)
    )


def _attentions(recorded: Recorded, written: int, windows: Sequence[int | None] | None, cached: int) -> Steps:
    """`_states` of self-attention, [rows, heads, columns, keys]. `windows`: of the cache's layers, of which sliding ones
    keep no more keys; None without a cache. `cached`: columns that it held before."""

    def step(each: torch.Tensor | None, layer: int, index: int) -> torch.Tensor | None:
        if each is None:
            return None
        columns, keys = each.shape[-2:]
        read = columns - written + index
        end = keys - columns + read
        if windows is None or not index:
            return each[..., :read, :end]
        window = windows[layer] if layer < len(windows) else None
        start = 0 if window is None else end - 1 - min(cached + read - 1, window - 1)
        return each[..., [read - 1], start:end]

    return tuple(
        None if recorded is None else tuple(step(each, layer, index) for layer, each in enumerate(recorded))
        for index in range(written + 1)
    )
