"""Finds a transformers model's output head, decoder layers, weights and hooks, and the argument for its cache."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import nn
    from transformers import PreTrainedModel

CACHE_NAMES = ("cache", "past_key_values", "cache_params")
"""transformers' names: since 5.24, and before, where recurrent models had one of their own. The old ones are still
accepted there, with a warning for each module."""

OWN = frozenset(("weight", "bias"))
"""The parameters of a linear layer; a bias may be None. After pruning, for example, they are computed from others."""

OUTPUT_CAPTURING = "transformers.utils.output_capturing"


def output_head(model: PreTrainedModel) -> nn.Module | None:
    """The module that maps the last hidden states to logits; None if the model has none."""
    head: nn.Module | None = model.get_output_embeddings()  # type: ignore[no-untyped-call]
    return head


def real_weight(module: nn.Module | None) -> torch.Tensor | None:
    """The module's weight; None if it has none. One that accelerate has offloaded to disk or CPU memory is read from
    there, and not loaded into the model."""
    weight: torch.Tensor | None = getattr(module, "weight", None)
    if weight is None or not weight.is_meta:
        return weight
    hook = getattr(module, "_hf_hook", None)
    for candidate in (hook, *getattr(hook, "hooks", ())):
        if getattr(candidate, "weights_map", None) is not None:
            stored: torch.Tensor = candidate.weights_map["weight"]
            return stored
    return None


def decoder_layers(model: PreTrainedModel) -> Sequence[nn.Module]:
    """The decoder's layers, if `base_model.layers` holds them, as in Llama; else an empty sequence."""
    from torch import nn

    layers = getattr(model.base_model, "layers", None)
    return layers if isinstance(layers, nn.ModuleList) else ()  # type: ignore[return-value]


def hooked(model: PreTrainedModel) -> str | None:
    """The name of the first module with a hook: one of torch, or one of accelerate, which moves weights. None if there
    is none."""
    for name, module in model.named_modules():
        if is_hooked(module) or hasattr(module, "_hf_hook"):
            return repr(name) if name else "the model itself"
    return None


def is_hooked(module: nn.Module) -> bool:
    """Whether hooks run before or after the module's forward. The hooks with which transformers captures hidden states
    and attentions do not count: once installed they stay, but do nothing in calls that do not return these."""
    if not (module._forward_hooks or module._forward_pre_hooks):  # the fast path: every call asks about many modules
        return False
    hooks = [*module._forward_hooks.values(), *module._forward_pre_hooks.values()]
    return any([getattr(hook, "__module__", None) != OUTPUT_CAPTURING for hook in hooks])


def cache_argument(arguments: Sequence[str]) -> str:
    """The argument that takes the cache, of those of a forward; the first, if it has several."""
    return next((name for name in arguments if name in CACHE_NAMES), CACHE_NAMES[1])


def parameters_of(module: nn.Module) -> dict[str, torch.Tensor | None]:
    """The module's own parameters by name, as they are at any time: attributes of a module take ten times as long."""
    return module._parameters  # type: ignore[return-value]


def state_of(weight: torch.Tensor) -> tuple[int, int]:
    """Where the numbers are and how often torch has changed them in place; not for inference tensors, which do not
    count. Changes through `.data` are not counted."""
    return weight.data_ptr(), weight._version


def is_spread(model: PreTrainedModel) -> bool:
    """Whether the model is spread over several processes, by tensor parallelism, FSDP or ZeRO-3."""
    from torch import distributed
    from transformers.integrations.deepspeed import is_deepspeed_zero3_enabled
    from transformers.integrations.fsdp import is_fsdp_managed_module

    mesh = getattr(model, "_device_mesh", None)
    if (mesh is not None and mesh.size() > 1) or (getattr(model, "_tp_size", None) or 1) > 1:
        return True
    if not (distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1):
        return False
    is_zero3: bool = is_deepspeed_zero3_enabled()  # type: ignore[no-untyped-call]
    return is_zero3 or any(is_fsdp_managed_module(part) for part in model.modules())
