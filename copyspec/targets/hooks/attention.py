"""Attention under tree masks: implementations that accept them, selected for the duration of a pass."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from transformers import AttentionInterface

from copyspec.common.forks import fork_safe
from copyspec.targets.base import UnsupportedModelError
from copyspec.targets.hooks.detours import end_detours

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

ROWS = "copyspec_rows"
"""The name in transformers' registry of attention row by row (`eager.row_attention`). A thread that runs no pass gets
its model's own attention there, so that it may stay in place while another context is active."""

MASKED_ATTENTION = ("sdpa", "eager")
"""Attention implementations that accept any additive mask; others support causal and padding masks only."""


def configs(config: PreTrainedConfig) -> Iterator[PreTrainedConfig]:
    """The configuration and all nested ones; each has its own attention implementation."""
    yield config
    for name in config.sub_configs:
        part = getattr(config, name, None)
        if part is not None:
            yield from configs(part)


def use_masked_attention(model: PreTrainedModel, parts: Iterable[PreTrainedConfig]) -> None:
    """Permanently set an attention that takes masks, if possible the model's own, in configurations not yet in use."""
    attention = model.config._attn_implementation
    if attention not in MASKED_ATTENTION:
        attention = _masked(model)
    for part in parts:
        part._attn_implementation_internal = attention


def own_implementation(part: PreTrainedConfig) -> str:
    """The attention of a part of a model outside of passes that have swapped it."""
    swap = _swaps.get(id(part))
    name = part._attn_implementation if swap is None else swap[1]
    return "sdpa" if name == ROWS else name  # of a copy that was made during a pass


def masked_implementation(model: PreTrainedModel, part: PreTrainedConfig) -> str:
    """The attention of a part of a model in passes with masks."""
    name = own_implementation(part)
    return name if name in MASKED_ATTENTION else _masked(model)


def _masked(model: PreTrainedModel) -> str:
    return "sdpa" if model._supports_sdpa else "eager"


def _check_own(name: str | None) -> None:
    """Raise UnsupportedModelError for an attention that is neither transformers' own, nor ours, nor a kernel of the
    hub, all of which compute the same."""
    if name is None or name in MASKED_ATTENTION or "/" in name:
        return
    registered = AttentionInterface._global_mapping.get(name)
    source = str(getattr(registered, "__module__", "transformers"))
    if source.partition(".")[0] not in ("transformers", "copyspec"):
        raise UnsupportedModelError(
            f"the attention {name!r} was registered by {source}, and nothing tells whether it accepts masks of trees: "
            "call model.set_attn_implementation('sdpa')"
        )


_swaps: dict[int, tuple[PreTrainedConfig, str, set[object]]] = {}
"""By id: a configuration whose implementation is swapped, its original one, and the contexts that use it."""
_without_cudnn: set[object] = set()
"""The contexts that have disabled cuDNN attention."""
_SWAPPING = fork_safe(threading.RLock())


def takes_masks(parts: Sequence[PreTrainedConfig]) -> bool:
    """Whether these parts of a model accept 4-D masks without a change, and no swap is active."""
    # Read in every pass. The properties of configurations are bypassed: they take longer than the rest of the check.
    read = object.__getattribute__
    return all([read(part, "_attn_implementation_internal") in MASKED_ATTENTION for part in parts]) and not _swaps


@contextmanager
def masked_attention(
    model: PreTrainedModel, parts: Sequence[PreTrainedConfig], wanted: str | None = None
) -> Iterator[None]:
    """Let attention in these parts of a model accept 4-D masks while the context is active, then restore it.

    `wanted`: the name of an implementation known to transformers; None: the model's own, or one that takes masks.

    Other threads that read the configuration see the change, so those that run such a model must hold its lock.
    Nothing is changed where the wanted one is in place. Raises UnsupportedModelError for an attention that the program
    itself has registered: another one would give other outputs.
    """
    for part in parts:
        _check_own(part._attn_implementation)
    with _SWAPPING:
        fitting = (wanted,) if wanted is not None else MASKED_ATTENTION
        swapped = [part for part in parts if id(part) in _swaps or part._attn_implementation not in fitting]
        context = object()
        for part in swapped:
            _swaps.setdefault(id(part), (part, part._attn_implementation, set()))[2].add(context)
            if part._attn_implementation != ROWS:
                part._attn_implementation_internal = wanted or _masked(model)
    try:
        yield
    finally:
        with _SWAPPING:
            for part in swapped:
                _, before, users = _swaps.get(id(part), (part, "", set[object]()))
                if context in users:  # not restored after an interrupt
                    users.remove(context)
                    if not users:
                        part._attn_implementation_internal = before
                        del _swaps[id(part)]


def restore_after_interrupt(model: PreTrainedModel) -> None:
    """Give the model the attention and the methods back that an interrupted pass left changed. The caller holds the
    model's lock, and no pass is running."""
    end_detours(model)
    with _SWAPPING:
        for part in configs(model.config):
            if id(part) in _swaps:
                _, before, _ = _swaps.pop(id(part))
                part._attn_implementation_internal = before


@contextmanager
def without_cudnn_attention(device: torch.device) -> Iterator[None]:
    """Disable cuDNN attention while the context is active: on Hopper it takes 20 to 400 ms to plan each new shape. The
    setting is global to the process, and restored when the last of these contexts ends."""
    if device.type != "cuda":
        yield
        return
    context = object()
    try:
        with _SWAPPING:
            if _without_cudnn or torch.backends.cuda.cudnn_sdp_enabled():  # type: ignore[no-untyped-call]
                _without_cudnn.add(context)
                torch.backends.cuda.enable_cudnn_sdp(False)
        yield
    finally:
        with _SWAPPING:
            if context in _without_cudnn:
                _without_cudnn.remove(context)
                if not _without_cudnn:
                    torch.backends.cuda.enable_cudnn_sdp(True)
