"""Attention implementations: which one takes masks, exchanged for the length of a pass; and recurrent layers."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from copyspec.forks import at_rest

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

MASKED_ATTENTION = ("sdpa", "eager")
"""Attention implementations that add any mask they are given; the others know causal and padding masks only."""

RECURRENT_KINDS = frozenset({"linear_attention", "conv", "hybrid", "hybrid_sliding", "mamba", "recurrent"})


def is_recurrent(model: PreTrainedModel) -> bool:
    """Whether some layer keeps a running state, which cannot return to where a draft was rejected."""
    layer_types = getattr(model.config.get_text_config(decoder=True), "layer_types", None) or ()
    return bool(model._is_stateful) or not RECURRENT_KINDS.isdisjoint(layer_types)


def configs(config: PreTrainedConfig) -> Iterator[PreTrainedConfig]:
    """The configuration and those inside it, which carry an attention implementation of their own."""
    yield config
    for name in config.sub_configs:
        part = getattr(config, name, None)
        if part is not None:
            yield from configs(part)


def use_masked_attention(model: PreTrainedModel, parts: Iterable[PreTrainedConfig]) -> None:
    """For good, in configurations that are nobody's yet: the attention of `model`, or one that takes masks."""
    attention = model.config._attn_implementation
    if attention not in MASKED_ATTENTION:
        attention = _masked(model)
    for part in parts:
        part._attn_implementation_internal = attention


def _masked(model: PreTrainedModel) -> str:
    return "sdpa" if model._supports_sdpa else "eager"


_swaps: dict[int, tuple[PreTrainedConfig, str, int]] = {}  # by id: what is swapped, for what, and how often
_SWAPPING = at_rest(threading.RLock())


def takes_masks(parts: Sequence[PreTrainedConfig]) -> bool:
    """Whether attention of these parts of a model accepts 4-D masks as it is, and nobody has exchanged it."""
    # Asked for every pass, past the properties of configurations, which take longer than all the rest of it.
    read = object.__getattribute__
    return all([read(part, "_attn_implementation_internal") in MASKED_ATTENTION for part in parts]) and not _swaps


@contextmanager
def masked_attention(
    model: PreTrainedModel, parts: Sequence[PreTrainedConfig], wanted: str | None = None
) -> Iterator[None]:
    """For its length attention of these parts of a model accepts 4-D masks; the configurations are then as they were.

    `wanted`: an implementation that transformers knows by this name; None: the model's own, or one that takes masks.

    Threads that read the configuration meanwhile see the change: those that pass something through such a model
    themselves hold its lock. Where masks are accepted anyway, nothing is changed.
    """
    with _SWAPPING:
        fitting = (wanted,) if wanted is not None else MASKED_ATTENTION
        swapped = [part for part in parts if id(part) in _swaps or part._attn_implementation not in fitting]
        for part in swapped:
            _, before, users = _swaps.get(id(part), (part, part._attn_implementation, 0))
            _swaps[id(part)] = part, before, users + 1
            part._attn_implementation_internal = wanted or _masked(model)
    try:
        yield
    finally:
        with _SWAPPING:
            for part in swapped:
                _, before, users = _swaps.pop(id(part))
                if users > 1:
                    _swaps[id(part)] = part, before, users - 1
                else:
                    part._attn_implementation_internal = before


@contextmanager
def without_cudnn_attention(device: torch.device) -> Iterator[None]:
    """For its length fused attention does not go to cuDNN, which on Hopper plans each new shape for 20 to 400 ms.
    A setting of the whole process: it is then as it was."""
    if device.type != "cuda" or not torch.backends.cuda.cudnn_sdp_enabled():  # type: ignore[no-untyped-call]
        yield
        return
    torch.backends.cuda.enable_cudnn_sdp(False)
    try:
        yield
    finally:
        torch.backends.cuda.enable_cudnn_sdp(True)
