"""Finds hooks that other code has registered on a model's modules."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def hooked(model: PreTrainedModel) -> str | None:
    """The first module whose forward runs other code: a hook of torch, or one of accelerate, which moves weights. None
    if there is none."""
    for name, module in model.named_modules():
        if module._forward_hooks or module._forward_pre_hooks or hasattr(module, "_hf_hook"):
            return repr(name) if name else "the model itself"
    return None
