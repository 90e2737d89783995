"""Early exit: a model's own first layers as a smaller model that drafts for it."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import nn

from copyspec.targets.locks import share_lock

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

# Settings that hold one entry per layer.
_PER_LAYER = ("layer_types", "no_rope_layers", "attention_layers", "mlp_layer_types")


def early_exit(model: PreTrainedModel, layers: int) -> PreTrainedModel:
    """A model of the first `layers` layers of a decoder-only `model`, with its norm and its head behind them.

    It shares every module with `model`, which is not altered and may be moved or used meanwhile: no weight is
    copied, and the two take turns. LayerSkip (Elhoushi et al. 2024, arXiv 2404.16710) trains models for this; others
    have likely tokens in their early layers now and then. Raises ValueError where the architecture has no such layers,
    and for a number that leaves none or all of them.
    """
    decoder = model.base_model
    stack = getattr(decoder, "layers", None)
    if model.config.is_encoder_decoder or decoder is model or not isinstance(stack, nn.ModuleList):
        raise ValueError(
            f"{type(model).__name__} has no list of layers at model.{model.base_model_prefix}.layers to leave early; "
            "give a smaller model as draft_model"
        )
    if not isinstance(layers, int) or isinstance(layers, bool) or not 1 <= layers < len(stack):
        raise ValueError(f"layers must be a whole number from 1 to {len(stack) - 1}, got {layers!r}")
    return new_stack(model, dict(enumerate(list(stack)[:layers])))


def new_stack(model: PreTrainedModel, layers: Mapping[int, nn.Module]) -> PreTrainedModel:
    """A decoder-only model with these layers, by their numbers in `model`, whose other modules it shares. Raises
    ValueError where it keeps weights outside of its modules."""
    decoder = model.base_model
    config = _shortened(model.config, list(layers), model.config.get_text_config(decoder=True).num_hidden_layers)
    with torch.device("meta"):
        shallow = type(model)(config)
    inner = shallow.base_model
    _share(model, shallow, leave_out=model.base_model_prefix)
    _share(decoder, inner, leave_out="layers")
    inner.layers = nn.ModuleList(layers.values())
    missing = [name for name, tensor in [*shallow.named_parameters(), *shallow.named_buffers()] if tensor.is_meta]
    if missing:
        raise ValueError(f"{type(model).__name__} cannot be left early: it keeps {missing[0]!r} outside its modules")
    shallow.generation_config = model.generation_config
    shallow.train(model.training)
    share_lock(shallow, model)
    return shallow


def _share(source: nn.Module, target: nn.Module, *, leave_out: str) -> None:
    for name, module in source.named_children():
        if name != leave_out:
            setattr(target, name, module)


def _shortened(config: PreTrainedConfig, layers: Sequence[int], of: int) -> PreTrainedConfig:
    shortened = copy.deepcopy(config)
    text = shortened.get_text_config(decoder=True)
    text.num_hidden_layers = len(layers)
    for name in _PER_LAYER:
        value = getattr(text, name, None)
        if isinstance(value, (list, tuple)) and len(value) == of:
            setattr(text, name, [value[number] for number in layers])
    return shortened
