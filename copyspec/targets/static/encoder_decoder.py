"""Encoder-decoder models in static passes: cross-attention reads fixed buffers that are filled beforehand."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from transformers import DynamicCache, EncoderDecoderCache
from transformers.cache_utils import DynamicLayer
from transformers.modeling_outputs import BaseModelOutput

from copyspec.targets.static.buffers import KeyValues, StaticCache
from copyspec.targets.static.program import EnterModel, Masks

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from copyspec.targets.facts import ModelFacts


def enter_encoder_decoder(
    model: PreTrainedModel, facts: ModelFacts, cross: KeyValues, cross_mask: torch.Tensor
) -> EnterModel:
    """Calls the decoder through the model's public forward. `cross_mask`: additive, [B, 1, 1, S]."""
    forward: Callable[..., Any] = model
    width = int(model.config.get_text_config(encoder=True).hidden_size)
    states = cross_mask.new_zeros((1, 1, 1)).expand(len(cross_mask), cross.capacity, width)  # placeholder, never read

    def enter(tokens: torch.Tensor, positions: torch.Tensor, masks: Masks, cache: StaticCache) -> torch.Tensor:
        rows, columns = tokens.shape
        output = forward(
            encoder_outputs=BaseModelOutput(last_hidden_state=states[:rows]),
            attention_mask=cross_mask[:rows].expand(-1, -1, columns, -1),
            decoder_input_ids=tokens,
            decoder_attention_mask=masks,
            use_cache=True,
            **{facts.cache: EncoderDecoderCache(cache, _filled(cross, rows))},
        )
        logits: torch.Tensor = output.logits
        return logits

    return enter


def _filled(cross: KeyValues, rows: int) -> DynamicCache:
    """A cache of views into `cross`. The model treats its contents as already computed, and only reads them."""
    held = DynamicCache()
    for planes in cross.layout.planes:
        layer: Any = DynamicLayer()  # type: ignore[no-untyped-call]
        layer.keys, layer.values = (cross.view(plane, rows, cross.capacity) for plane in planes)
        layer.dtype, layer.device = planes[0].kind.dtype, cross.layout.device
        layer.is_initialized = True
        held.layers.append(layer)
    return held
