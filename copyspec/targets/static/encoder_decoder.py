"""Encoder-decoder models in static passes: cross-attention reads fixed buffers that are filled beforehand."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from transformers import DynamicCache, EncoderDecoderCache
from transformers.cache_utils import DynamicLayer
from transformers.modeling_outputs import BaseModelOutput

from copyspec.targets.static.buffers import KeyValues, StaticCache
from copyspec.targets.static.layout import ROW
from copyspec.targets.static.program import EnterModel, Masks

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from copyspec.targets.model.facts import ModelFacts
    from copyspec.targets.static.masks_on_device import PassInputs


def enter_encoder_decoder(
    model: PreTrainedModel, facts: ModelFacts, cross: KeyValues, ranges: torch.Tensor
) -> EnterModel:
    """Calls the decoder through the model's public forward. `ranges`: the places of each row's states in `cross`,
    [R, 2]: first, behind the last."""
    forward: Callable[..., Any] = model
    width = int(model.config.get_text_config(encoder=True).hidden_size)
    # A placeholder, never read.
    states = torch.zeros((1, 1, 1), dtype=facts.zero.dtype, device=ranges.device).expand(1, cross.slots, width)

    def enter(work: PassInputs, masks: Masks, cache: StaticCache, wanted: torch.Tensor | None) -> torch.Tensor:
        own = ranges[work.fields[ROW]]
        places = torch.arange(cross.slots, device=own.device)
        seen = (places >= own[:, :1]) & (places < own[:, 1:])
        output = forward(
            encoder_outputs=BaseModelOutput(last_hidden_state=states),
            attention_mask=facts.additive(seen[None, None]),
            decoder_input_ids=work.tokens,
            decoder_attention_mask=masks,
            use_cache=True,
            **{facts.cache: EncoderDecoderCache(cache, _filled(cross))},
        )
        logits: torch.Tensor = output.logits[0]
        return logits if wanted is None else logits[wanted]

    return enter


def _filled(cross: KeyValues) -> DynamicCache:
    """A cache of views into `cross`. The model treats its contents as already computed, and only reads them."""
    cache = DynamicCache()
    for planes in cross.layout.planes:
        layer: Any = DynamicLayer()  # type: ignore[no-untyped-call]
        layer.keys, layer.values = (cross.view(plane) for plane in planes)
        layer.dtype, layer.device = planes[0].kind.dtype, cross.layout.device
        layer.is_initialized = True
        cache.layers.append(layer)
    return cache
