"""Whether the Triton kernels of static passes can be used."""

from __future__ import annotations

import logging
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from importlib.util import find_spec

import torch

logger = logging.getLogger(__name__)


def on_device(device: torch.device) -> AbstractContextManager[object]:
    """Make this the current device, on which Triton and CUDA graphs run whatever device their tensors are on."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
@cache
def kernels_run(device: torch.device) -> bool:
    """Whether kernels run on this device. Triton may be missing, or the C compiler with which it builds what launches
    them. Tried once per process, before anything is captured."""
    if device.type != "cuda" or find_spec("triton") is None:
        return False
    try:
        from copyspec.targets.static import layer_kernels

        buffer = torch.arange(32.0, device=device).view(1, 1, 2, 16)
        slots = torch.tensor([1, 0], device=device)
        with on_device(device):
            layer_kernels.move(buffer, slots[:1], slots[1:])
        return bool((buffer[0, 0, 0] == buffer[0, 0, 1]).all().item())
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0][:200]
        logger.warning("Triton's kernels do not run here (%s); static passes use PyTorch's, which take longer", reason)
        return False
