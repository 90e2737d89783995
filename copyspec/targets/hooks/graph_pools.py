"""The memory pools of CUDA graphs."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import torch


def leave_pool(stream: torch.cuda.Stream, pool: Any) -> None:
    """End the allocation of a failed capture on `stream` to its pool, unless torch has: it does not where it cannot end
    the capture."""
    device = stream.device_index
    with suppress(AttributeError, RuntimeError):  # the names are private; an allocation that has ended is an error
        torch._C._cuda_endAllocateToPool(device, pool)
        torch._C._cuda_releasePool(device, pool)  # of this graph, as torch does when it drops a captured one
