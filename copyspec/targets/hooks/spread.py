"""Whether other processes take part in the passes of a model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import distributed
from transformers.integrations.deepspeed import is_deepspeed_zero3_enabled
from transformers.integrations.fsdp import is_fsdp_managed_module

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def is_spread(model: PreTrainedModel) -> bool:
    """Whether the model is spread over several processes, by tensor parallelism, FSDP or ZeRO-3."""
    mesh = getattr(model, "_device_mesh", None)
    if (mesh is not None and mesh.size() > 1) or (getattr(model, "_tp_size", None) or 1) > 1:
        return True
    if not (distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1):
        return False
    is_zero3: bool = is_deepspeed_zero3_enabled()  # type: ignore[no-untyped-call]
    return is_zero3 or any(is_fsdp_managed_module(part) for part in model.modules())
