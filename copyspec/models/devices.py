"""Devices and dtypes as users name them: checked, compared with those of a model, and chosen where none is named."""

from __future__ import annotations

import importlib.util

import torch

from copyspec.common.checks import brief, check_type, shown
from copyspec.models.errors import LoadError

DTYPES = ("auto", "float32", "bfloat16", "float16")
_SHORT_DTYPES = {"fp32": "float32", "float": "float32", "bf16": "bfloat16", "fp16": "float16", "half": "float16"}
MAX_DEVICES = 128  # torch holds the number of a device in a byte


def check_dtype(dtype: object) -> str | torch.dtype:
    """Normalise `dtype` for loading; raises ValueError or TypeError listing the valid names."""
    if isinstance(dtype, str):
        dtype = dtype.removeprefix("torch.")
        dtype = _SHORT_DTYPES.get(dtype, dtype)
        if dtype not in DTYPES:
            raise ValueError(f"dtype must be one of {', '.join(DTYPES)} or a torch.dtype; got {brief(dtype)}")
        return dtype
    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"dtype must be one of {', '.join(DTYPES)} or a torch.dtype; got {shown(dtype)}")
    return dtype


def check_device(device: object) -> None:
    """Raise TypeError unless torch may know the device, by the name or the number given."""
    is_index = isinstance(device, int) and not isinstance(device, bool) and 0 <= device < MAX_DEVICES
    fits = isinstance(device, (str, torch.device)) or is_index
    check_type(fits, "device", device, "'cpu', 'cuda', 'cuda:1' or the like, or 'auto'")


def same_dtype(wanted: object, has: object) -> bool:
    return (getattr(torch, wanted) if isinstance(wanted, str) else wanted) == has


def same_device(wanted: object, has: object) -> bool:
    device = _parse_device(wanted)
    assert isinstance(has, torch.device)
    return device.type == has.type and device.index in (None, has.index)


def pick_device(wanted: object) -> str:
    """The device to load onto, or "auto". Raises LoadError listing the available devices."""
    if wanted is None:
        return "cuda" if torch.cuda.is_available() else "cpu"
    if wanted == "auto":
        if importlib.util.find_spec("accelerate") is None:
            raise LoadError("device='auto' spreads a model with accelerate: pip install accelerate, or name one device")
        return "auto"
    device = _parse_device(wanted)
    names = ["cpu", *(f"cuda:{i}" for i in range(torch.cuda.device_count()))]
    names += ["mps"] if torch.backends.mps.is_available() else []
    known = device.type in ("cpu", "cuda", "mps")
    there = any(same_device(device, torch.device(name)) for name in names) if known else _holds_numbers(device)
    if not there:
        raise LoadError(f"device={wanted!r} is not there; this machine and this build of torch have {', '.join(names)}")
    return str(device)


def _holds_numbers(device: torch.device) -> bool:
    """Whether numbers can be stored on a device of another kind and read again. "meta" keeps none."""
    try:
        return torch.ones(1, device=device).tolist() == [1.0]
    except Exception:  # backends that are missing raise errors of several types
        return False


def _parse_device(wanted: object) -> torch.device:
    try:
        return torch.device(wanted)  # type: ignore[call-overload,no-any-return]
    except (RuntimeError, TypeError) as error:
        raise ValueError(
            f"device must be 'cpu', 'cuda', 'cuda:1' or the like, or 'auto'; got {brief(wanted)}"
        ) from error
