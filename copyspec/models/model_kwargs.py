"""`model_kwargs=`: an allow-list of `from_pretrained` options, because others can run code or load pickles."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from copyspec.common.checks import shown
from copyspec.models.pretrained import ATTENTION

OWN_OPTIONS = {
    "dtype": "dtype=",
    "torch_dtype": "dtype=",
    "revision": "revision=",
    "trust_remote_code": "trust_remote_code=",
    "gguf_file": "model='a GGUF file'",
    "tokenizer": "tokenizer=",
    "config": "the model's own folder",
    "adapter_kwargs": "adapter=",
}
"""Options of `from_pretrained` that have an equivalent in this package."""


@dataclass(frozen=True, slots=True)
class ModelKwargs:
    """Checked options: those for the model and those for the hub client, which fetches all files. Hidden from repr
    because a token is secret."""

    model: Mapping[str, Any] = field(default_factory=dict, repr=False)
    hub: Mapping[str, Any] = field(default_factory=dict, repr=False)


def check_model_kwargs(kwargs: object) -> ModelKwargs:
    """Check `kwargs` and split it into its two parts. Raises TypeError or ValueError naming the option, value and
    remedy."""
    if isinstance(kwargs, ModelKwargs):
        return kwargs
    if not isinstance(kwargs, Mapping):
        raise TypeError(f"model_kwargs must be a dict of options of from_pretrained; got {shown(kwargs)}")
    for name, value in kwargs.items():
        if name in OWN_OPTIONS:
            raise ValueError(f"model_kwargs holds {name!r}; that is {OWN_OPTIONS[name]} here")
        if name not in _ALLOWED:
            known = ", ".join(sorted(_ALLOWED))
            raise ValueError(
                f"model_kwargs holds {name!r}, which is not passed on; it may hold {known}. For anything else load the "
                "model with transformers and give the object: model=model, tokenizer=tokenizer"
            )
        fits, wanted = _ALLOWED[name]
        if value is not None and not fits(value):
            got = "another value" if name == "token" else shown(value)
            raise ValueError(f"model_kwargs[{name!r}] must be {wanted}; got {got}")
    own = {name: value for name, value in kwargs.items() if value is not None}
    hub = {name: own.pop(name) for name in _HUB if name in own}
    return ModelKwargs(own, hub)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_place(value: object) -> bool:
    """The device "meta" is not allowed: a model without weights generates garbage."""
    return _is_count(value) or (isinstance(value, str) and _PLACE.fullmatch(value) is not None)


def _is_map(value: object) -> bool:
    if isinstance(value, Mapping):
        return bool(value) and all(isinstance(name, str) and _is_place(at) for name, at in value.items())
    return value in _SPREAD or (value != "disk" and _is_place(value))


def _is_memory(value: object) -> bool:
    return isinstance(value, Mapping) and all(
        _is_place(at) and (_is_count(most) or isinstance(most, str)) for at, most in value.items()
    )


def _is_quantization(value: object) -> bool:
    if isinstance(value, Mapping):
        plain = (str, int, float, bool, type(None), list)
        return isinstance(value.get("quant_method"), str) and all(
            isinstance(setting, plain) for setting in value.values()
        )
    from transformers.utils.quantization_config import QuantizationConfigMixin

    return isinstance(value, QuantizationConfigMixin)


_SPREAD = ("auto", "balanced", "balanced_low_0", "sequential")
_PLACE = re.compile(r"disk|(?:cpu|cuda|mps|xpu|npu|hpu)(?::\d{1,3})?")
_PATH = (lambda value: isinstance(value, (str, os.PathLike)), "a path")
_FLAG = (lambda value: isinstance(value, bool), "True or False")
_ALLOWED: dict[str, tuple[Callable[[object], bool], str]] = {
    # Other implementations take no tree mask, or are code from the hub.
    "attn_implementation": (lambda value: value in ATTENTION, f"one of {', '.join(ATTENTION)}"),
    "cache_dir": _PATH,
    "device_map": (_is_map, "'auto', 'balanced', 'sequential', a device, or a dict from modules to devices"),
    "local_files_only": _FLAG,
    "max_memory": (_is_memory, "a dict from devices to bytes or sizes such as '20GiB'"),
    "offload_buffers": _FLAG,
    "offload_folder": _PATH,
    "quantization_config": (
        _is_quantization,
        "a quantization config of transformers, or a dict of plain values with a quant_method",
    ),
    "token": (lambda value: isinstance(value, (str, bool)), "a str"),
}
_HUB = ("cache_dir", "local_files_only", "token")
OF_DEVICE_MAP = frozenset(("max_memory", "offload_buffers", "offload_folder"))
"""Options that say how a model is spread over devices."""
