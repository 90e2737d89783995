"""Layers of transformers' cache that hold more than keys and values, and the modules that read and write recurrent
states (mixers)."""

from __future__ import annotations

import inspect
import math
from collections.abc import Hashable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn
from transformers import DynamicCache
from transformers.cache_utils import LinearAttentionLayer

if TYPE_CHECKING:
    from transformers import PreTrainedModel

STATE_KINDS = frozenset({"linear_attention", "conv", "mamba", "recurrent"})
"""Kinds of layers that keep recurrent states and take no mask of ours."""

RECURRENT_KINDS = STATE_KINDS | {"hybrid", "hybrid_sliding"}

State = Mapping[tuple[str, int], torch.Tensor]
"""The states of one row in one mixer, [1, ...] each, by attribute and number."""


class LayerParts(NamedTuple):
    """What a layer of the cache holds."""

    states: int = 0  # recurrent ones of each kind
    attends: bool = True  # keys and values
    indexes: bool = False  # keys of an indexer, which chooses the tokens to attend to


_STATES = ("conv_states", "recurrent_states")
_UPDATES = ("update_conv_state", "update_recurrent_state")


def is_recurrent(model: PreTrainedModel) -> bool:
    """Whether a layer keeps a recurrent state, which cannot be rolled back when a draft is rejected."""
    layer_types = getattr(model.config.get_text_config(decoder=True), "layer_types", None) or ()
    return bool(model._is_stateful) or not RECURRENT_KINDS.isdisjoint(layer_types)


def special_layers(model: PreTrainedModel) -> Sequence[LayerParts]:
    """What the layers of the model's own cache hold; none if all hold keys and values alone."""
    if model.config.is_encoder_decoder:
        return ()
    parts = [_parts(layer) for layer in DynamicCache(config=model.config).layers]
    return parts if any(part != LayerParts() for part in parts) else ()


def _parts(layer: object) -> LayerParts:
    states = layer.number_of_states if isinstance(layer, LinearAttentionLayer) else 0
    return LayerParts(states, not states or hasattr(layer, "update"), hasattr(layer, "update_indexer"))


def mixers(model: PreTrainedModel) -> Sequence[tuple[int, nn.Module]]:
    """The modules that update recurrent states through the cache, with the numbers of their layers."""
    layers = [(getattr(module, "layer_idx", None), module) for module in model.modules()]
    return [(index, module) for index, module in layers if isinstance(index, int) and _updates_states(type(module))]


def limits_prompts(model: PreTrainedModel) -> bool:
    """Whether mixers keep the time steps of prompts within limits, and those of outputs as they are, so that a state
    behind an output is not that behind a prompt of the same tokens."""
    limits = [getattr(mixer, "time_step_limit", None) for _, mixer in mixers(model)]
    return any(limit is not None and tuple(limit) != (0.0, math.inf) for limit in limits)


def _updates_states(kind: type) -> bool:
    """Whether a class, or one that it is derived from, updates states. Some are derived at run time, without source."""
    return any(map(_names_update, kind.__mro__))


@cache
def _names_update(kind: Hashable) -> bool:
    try:
        source = inspect.getsource(kind)  # type: ignore[arg-type]
    except (OSError, TypeError):
        return False
    return any(name in source for name in _UPDATES)


def read_state(layer: Any) -> dict[tuple[str, int], torch.Tensor]:
    """The states that a layer of the cache holds, [B, ...] each, of the mixer that has just run on them."""
    return {
        (name, number): state for name in _STATES for number, state in getattr(layer, name).items() if state is not None
    }


def write_state(layer: Any, state: State) -> None:
    """Let a layer of the cache hold these states alone; none: as before the first pass."""
    for name in _STATES:
        numbers = range(layer.number_of_states)
        setattr(layer, name, {number: state.get((name, number)) for number in numbers})
        setattr(layer, f"is_{name}_initialized", {number: (name, number) in state for number in numbers})
    layer.has_previous_state = dict.fromkeys(range(layer.number_of_states), bool(state))
