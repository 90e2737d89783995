"""Hooks that others have put on a model's modules."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def hooked(model: PreTrainedModel) -> str | None:
    """The first module that runs somebody's code with its forward: a hook of torch's, or one of accelerate's, which
    moves weights; None where no module does."""
    for name, module in model.named_modules():
        if module._forward_hooks or module._forward_pre_hooks or hasattr(module, "_hf_hook"):
            return repr(name) if name else "the model itself"
    return None
