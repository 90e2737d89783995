"""Early exit: the target's own first layers as its draft model (`draft_model="layers:N"`)."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import torch
from torch import nn

from copyspec.common.building import building
from copyspec.targets.hooks.recurrence import STATE_KINDS
from copyspec.targets.model.locks import share_lock

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

# Config attributes with one entry per layer.
_PER_LAYER = ("layer_types", "no_rope_layers", "attention_layers", "mlp_layer_types")


def early_exit(model: PreTrainedModel, layers: int) -> PreTrainedModel:
    """Return a model of the first `layers` layers of a decoder-only `model`, followed by its final norm and LM head.

    It shares all modules with `model`: `model` is not altered and may be moved or used meanwhile, and a lock makes the
    two take turns. No weight is copied, but on CPUs it packs weights of its own (`FastLinears`). LayerSkip (Elhoushi
    et al. 2024, arXiv 2404.16710) trains models for this; the early layers of other models predict some tokens, too.
    Raises ValueError if the architecture has no list of layers or keeps weights outside its submodules, or if `layers`
    is not from 1 to one less than their number, or reaches no layer with attention in a hybrid model, whose forward
    takes the number of cached tokens from one.
    """
    decoder = model.base_model
    stack = getattr(decoder, "layers", None)
    if model.config.is_encoder_decoder or decoder is model or not isinstance(stack, nn.ModuleList):
        raise ValueError(
            f"{type(model).__name__} has no list of layers at model.{model.base_model_prefix}.layers to leave early; "
            "give a smaller model as draft_model"
        )
    if not isinstance(layers, int) or isinstance(layers, bool) or not 1 <= layers < len(stack):
        raise ValueError(f"layers must be an integer from 1 to {len(stack) - 1}, got {layers!r}")
    kinds = getattr(model.config.get_text_config(decoder=True), "layer_types", None) or ()
    attending = next((index for index, kind in enumerate(kinds) if kind not in STATE_KINDS), 0)
    if layers <= attending:
        raise ValueError(
            f"the first {attending} layers of {type(model).__name__} do not attend, and its forward needs one that "
            f"does: give at least {attending + 1}, or a smaller model"
        )
    config = _shortened(model.config, layers, model.config.get_text_config(decoder=True).num_hidden_layers)
    with building(), torch.device("meta"):
        shallow = type(model)(config)
    inner = shallow.base_model
    _share(model, shallow, leave_out=model.base_model_prefix)
    _share(decoder, inner, leave_out="layers")
    inner.layers = nn.ModuleList(list(stack)[:layers])
    missing = [name for name, tensor in [*shallow.named_parameters(), *shallow.named_buffers()] if tensor.is_meta]
    if missing:
        raise ValueError(f"{type(model).__name__} cannot be left early: it keeps {missing[0]!r} outside its modules")
    shallow.generation_config = model.generation_config
    for module in (shallow, inner, inner.layers):  # `train` would also set the flags of the shared modules
        module.training = model.training
    share_lock(shallow, model)
    return shallow


def _share(source: nn.Module, target: nn.Module, *, leave_out: str) -> None:
    for name, module in source.named_children():
        if name != leave_out:
            setattr(target, name, module)


def _shortened(config: PreTrainedConfig, layers: int, of: int) -> PreTrainedConfig:
    shortened = copy.deepcopy(config)
    text = shortened.get_text_config(decoder=True)
    text.num_hidden_layers = layers
    for name in _PER_LAYER:
        value = getattr(text, name, None)
        if isinstance(value, (list, tuple)) and len(value) == of:
            setattr(text, name, list(value[:layers]))
    return shortened
