"""Attention of a static pass without a mask over the whole pool: a token sees the cached tokens of its row, and its
ancestors according to bits.

In place of a mask, the model's layers receive a *marker*: integers [1, 1 + window, T, 1]. The size of its second
dimension tells a sliding layer its window (1: no window). Models that pass masks unchanged to transformers' attention
interface work with it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from copyspec.targets.hooks.recurrence import RECURRENT_KINDS
from copyspec.targets.static.layout import POSITION
from copyspec.targets.static.masks_on_device import PassInputs, key_positions, own_slots, places_in_order, seen
from copyspec.targets.static.triton_kernels import kernels_run

if TYPE_CHECKING:
    from copyspec.targets.model.facts import ModelFacts

NAME = "copyspec_tree"
"""The name of this attention in transformers' registry."""

KINDS = frozenset({"full_attention", "sliding_attention"}) | RECURRENT_KINDS


class _Running(threading.local):
    """The pass of this thread."""

    work: PassInputs | None = None
    caps: bool = True  # whether the attention in whose place this one is used caps scores
    callers: list[torch.nn.Module] | None = None  # modules that have called attention, in order; None: not recorded


_running = _Running()


@contextmanager
def attending(work: PassInputs, *, caps: bool = True) -> Iterator[None]:
    """Let attention with markers in this thread be that of a pass while the context is active. `caps`: see
    `ModelFacts.caps_scores`."""
    before, _running.work, _running.caps = (_running.work, _running.caps), work, caps
    try:
        yield
    finally:
        _running.work, _running.caps = before


def markers(work: PassInputs, facts: ModelFacts) -> Any:
    """The markers of a pass, None for recurrent layers: one, or a dict by kind of attention."""
    integers = work.fields[POSITION].view(1, 1, -1, 1)

    def of_kind(kind: str) -> torch.Tensor:
        return integers.expand(-1, 1 + (facts.window or 0 if kind == "sliding_attention" else 0), -1, -1)

    return facts.by_kind(of_kind)


def attend_in_torch(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    work: PassInputs,
    window: int,
    scale: float,
    softcap: float | None = None,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """Attention of each token to those that it sees, itself included.

    `query` [1, H, T, D]; `keys` and `values` [1, Hkv, S, D] of all places of the pool; `window`: 0: none; `softcap`:
    scores s become softcap * tanh(s / softcap) (Gemma 2); `sinks` [H]: a score per head that takes part in the softmax
    but has no value (gpt-oss). Returns [1, T, H, Dv].

    With torch operators: used without Triton, and as the reference for its kernel.
    """
    _, heads, tokens, width = query.shape
    key_heads, places = keys.shape[1:3]
    grouped = query[0].reshape(key_heads, heads // key_heads, tokens, width)
    if work.ordered:
        index = places_in_order(work)
        positions = torch.arange(index.shape[1], device=index.device)
        sees = positions <= work.fields[POSITION].unsqueeze(1)
        of_keys, of_values = keys[0, :, index], values[0, :, index]  # [Hkv, T, n, D]
        scores = (grouped.transpose(1, 2) @ of_keys.transpose(2, 3)).transpose(1, 2)  # [Hkv, group, T, n]
    else:
        slots = own_slots(work, places)
        sees, positions = seen(work, slots), key_positions(work, slots)
        scores = grouped @ keys[0].unsqueeze(1).transpose(2, 3)
    scores = scores.to(torch.promote_types(query.dtype, torch.float32)) * scale
    if window:
        sees = sees & (work.fields[POSITION].unsqueeze(1) - positions < window)
    scores = scores.flatten(0, 1)  # [H, T, n]
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    count = scores.shape[2]
    scores = torch.where(sees, scores, torch.finfo(scores.dtype).min)
    if sinks is not None:
        column = sinks.to(scores.dtype).view(heads, 1, 1).expand(-1, tokens, -1)
        scores = torch.cat([scores, column], dim=-1)
    shares = scores.softmax(-1)[..., :count].to(values.dtype).view(key_heads, -1, tokens, count)
    if work.ordered:
        shares, of_heads = shares.transpose(1, 2), of_values
    else:
        of_heads = values[0].unsqueeze(1)
    attended = shares @ of_heads
    attended = attended.transpose(1, 2) if work.ordered else attended
    return attended.flatten(0, 1).transpose(0, 1).unsqueeze(0).contiguous()


def tree_attention_forward(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Attention with transformers' signature. A call without a marker comes from another thread that runs the model
    meanwhile, and gets transformers' attention. Raises ValueError within `callers`, and if that cannot compute it."""
    is_biased, work = kwargs.get("position_bias") is not None, _running.work
    if attention_mask is None or attention_mask.dtype != torch.long or is_biased or work is None:
        if _running.callers is not None or is_biased or softcap is not None or s_aux is not None:
            raise ValueError(f"{type(module).__name__} passes attention something other than the mask it was given")
        attended: torch.Tensor = sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs
        )[0]
        return attended, None
    if _running.callers is not None:
        _running.callers.append(module)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    cap = softcap if _running.caps else None
    attend: Any = attend_in_torch
    if query.is_cuda and kernels_run(query.device):
        from copyspec.targets.static import tree_kernel

        attend = tree_kernel.attend
    return attend(query, key, value, work, attention_mask.shape[1] - 1, scale, cap, s_aux), None


@contextmanager
def callers() -> Iterator[list[torch.nn.Module]]:
    """Record the layers that call this attention in this thread while the context is active, in order."""
    before, layers = _running.callers, list[torch.nn.Module]()
    _running.callers = layers
    try:
        yield layers
    finally:
        _running.callers = before


AttentionInterface.register(NAME, tree_attention_forward)
AttentionMaskInterface.register(NAME, sdpa_mask)  # for calls of other threads, whose masks the model builds
