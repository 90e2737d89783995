"""The state of a model, compared to see whether cached keys and values are still valid."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING
from weakref import ref

from copyspec.targets.hooks.detours import replacement

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel


class ModelState:
    """Everything besides tokens that keys and values depend on: weights, buffers, activations, hooks, replaced
    forwards, adapters, autocast.

    In-place writes count as new weights. Writes through `tensor.data` are only noticed if they come from merging
    adapters.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        """Read the state. Takes half a millisecond for 400 modules, since it runs before each pass."""
        read: list[torch.Tensor | None] = []
        self._modules: list[tuple[object, ...]] = []
        waiting: list[torch.nn.Module | None] = [model]
        while waiting:
            if (module := waiting.pop()) is None:
                continue
            of_module = module.__dict__  # takes a third of the time of `parameters()` and `modules()`
            parameters, buffers, modules = of_module["_parameters"], of_module["_buffers"], of_module["_modules"]
            if of_module["_forward_hooks"] or of_module["_forward_pre_hooks"] or "merged_adapters" in of_module:
                self._modules.append(_module_state(module))
            if "forward" in of_module and (placed := replacement(module, "forward")) is not None:
                self._modules.append((id(module), id(placed)))
            if buffers:
                if "rope_type" in of_module and "longrope" in str(of_module["rope_type"]):
                    buffers = _without_frequencies(of_module["rope_type"], buffers)
                read += buffers.values()
            if parameters:
                read += parameters.values()
            if modules:
                waiting += modules.values()
            elif not (parameters or of_module["_buffers"]):
                self._modules.append((ref(module),))  # an activation: no weight tells one from another
        # Parameters on the meta device stand for offloaded ones, and are created anew after every pass.
        weights = [weight for weight in read if weight is not None and not weight.is_meta]
        self._autocast = _autocast(weights[0].device.type) if weights else None
        self._weights = [
            (id(weight), weight.data_ptr(), 0 if weight.is_inference() else weight._version) for weight in weights
        ]
        self._alive = [ref(weight) for weight in weights]  # an address can be reused, but a dead reference stays dead

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ModelState) or self._autocast != other._autocast:
            return False
        return self.has_weights_of(other) and self._modules == other._modules

    __hash__ = None  # type: ignore[assignment]

    def has_weights_of(self, other: ModelState) -> bool:
        """Whether the weights are the same; the adapters may differ."""
        return self._weights == other._weights and all(
            [reference() is not None for reference in (*self._alive, *other._alive)]
        )


def _without_frequencies(
    rope_type: object, buffers: Mapping[str, torch.Tensor | None]
) -> Mapping[str, torch.Tensor | None]:
    """The buffers of a rotary module without those that LongRoPE writes anew in every pass, from the others.
    `rope_type`: the module's, or those of each type of layers."""
    types = rope_type if isinstance(rope_type, dict) else {"": rope_type}
    written = {f"{layers}_inv_freq".lstrip("_") for layers, kind in types.items() if kind == "longrope"}
    return {name: buffer for name, buffer in buffers.items() if name not in written}


def _autocast(device: str) -> torch.dtype | None:
    """The dtype that autocast gives to products on a device; None where it is off."""
    import torch

    if not torch.amp.autocast_mode.is_autocast_available(device) or not torch.is_autocast_enabled(device):
        return None
    return torch.get_autocast_dtype(device)


def _module_state(module: torch.nn.Module) -> tuple[object, ...]:
    """The hooks of a module, and its `peft` settings."""
    settings = [repr(getattr(module, name, None)) for name in ("active_adapters", "disable_adapters", "scaling")]
    merged = repr(getattr(module, "merged_adapters", None))
    return id(module), *module._forward_hooks, -1, *module._forward_pre_hooks, *settings, merged
