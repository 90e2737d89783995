"""Parts of a model that others need: its head, its layers, their weights, and the hooks that other code has set."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import nn
    from transformers import PreTrainedModel

OUTPUT_CAPTURING = "transformers.utils.output_capturing"


def output_head(model: PreTrainedModel) -> nn.Module | None:
    """The module that computes logits from the last hidden states; None if there is none."""
    head: nn.Module | None = model.get_output_embeddings()  # type: ignore[no-untyped-call]
    return head


def real_weight(module: nn.Module | None) -> torch.Tensor | None:
    """A layer's weights [V, D], or None. Weights that accelerate has offloaded to disk or CPU memory are read from
    there, without loading them into the model."""
    weight: torch.Tensor | None = getattr(module, "weight", None)
    if weight is None or not weight.is_meta:
        return weight
    hook = getattr(module, "_hf_hook", None)
    for each in (hook, *getattr(hook, "hooks", ())):
        if getattr(each, "weights_map", None) is not None:
            found: torch.Tensor = each.weights_map["weight"]
            return found
    return None


def decoder_layers(model: PreTrainedModel) -> Sequence[nn.Module]:
    """The decoder's layers if they are stored as in Llama, else none."""
    from torch import nn

    layers = getattr(model.base_model, "layers", None)
    return layers if isinstance(layers, nn.ModuleList) else ()  # type: ignore[return-value]


def hooked(model: PreTrainedModel) -> str | None:
    """The first module whose forward runs other code: a hook of torch, or one of accelerate, which moves weights. None
    if there is none."""
    for name, module in model.named_modules():
        if is_hooked(module) or hasattr(module, "_hf_hook"):
            return repr(name) if name else "the model itself"
    return None


def is_hooked(module: nn.Module) -> bool:
    """Whether hooks run with the module's forward. Those that transformers installs for good when hidden states or
    attentions are asked for do not count: they do nothing in other calls."""
    if not (module._forward_hooks or module._forward_pre_hooks):  # as in most of the modules that each call asks about
        return False
    hooks = [*module._forward_hooks.values(), *module._forward_pre_hooks.values()]
    return any([getattr(hook, "__module__", None) != OUTPUT_CAPTURING for hook in hooks])
