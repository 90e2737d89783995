"""What a failed capture of a CUDA graph leaves behind in torch."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import torch


def leave_capture(stream: torch.cuda.Stream, pool: Any) -> None:
    """Undo what a failed capture on `stream` has begun, unless torch has: it does not where it cannot end the capture.
    That is the allocation to the capture's memory pool and, in torch 2.11, a state of the device's random number
    generator in which neither random numbers can be drawn nor other graphs replayed. It ends with another capture."""
    device = stream.device_index
    with suppress(AttributeError, RuntimeError):  # the names are private; an allocation that has ended is an error
        torch._C._cuda_endAllocateToPool(device, pool)
        torch._C._cuda_releasePool(device, pool)  # of this graph, as torch does when it drops a captured one
        with torch.cuda.graph(torch.cuda.CUDAGraph(), stream=stream, capture_error_mode="thread_local"):
            torch.zeros(1, device=stream.device)
