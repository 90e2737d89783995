"""Finds hooks that other code has registered on a model's modules."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

if TYPE_CHECKING:
    from transformers import PreTrainedModel

OUTPUT_CAPTURING = "transformers.utils.output_capturing"


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
