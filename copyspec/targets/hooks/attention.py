"""Attention under tree masks: implementations that accept them, selected for the duration of a pass; and, in bfloat16
on a CPU, calls with the shapes, and so the bits, of plain decoding.

Fused attention on a CPU gives bitwise equal results only among equal shapes: with several queries of one row its matrix
products add in another order, and with other numbers of keys it computes more or fewer exponentials in vectors. One
element in a thousand then differs, and after thirty layers nearly every logit does, which changes the output wherever
two scores are as close as bfloat16 leaves them. So each node of a tree becomes a row of its own with one query. Nodes
on one path that see equally many full vectors of keys share a call; keys after a node's own are masked. Branches are
moved next to their path's keys for their call. A prompt is read with a causal call, as plain decoding reads it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from transformers import AttentionInterface

from copyspec.forks import fork_safe
from copyspec.targets.base import UnsupportedModelError
from copyspec.targets.hooks.inference import in_inference_mode

if TYPE_CHECKING:
    import numpy.typing as npt
    from transformers import PreTrainedConfig, PreTrainedModel

MASKED_ATTENTION = ("sdpa", "eager")
"""Attention implementations that accept any additive mask; others support causal and padding masks only."""

RECURRENT_KINDS = frozenset({"linear_attention", "conv", "hybrid", "hybrid_sliding", "mamba", "recurrent"})

VECTORS = (16, 8, 4, 2)
"""Numbers of keys that fused attention may compute together, the largest first. Its exponentials are computed in
vectors, of 16 with AVX-512 and of 8 with AVX2, and its sums of values may be in other groups: of 4 with AVX2."""

LENGTHS = (*range(1, 18), *range(64, 80))
"""Numbers of keys of a query, of which `vector` tries how many are computed together."""

Masks = torch.Tensor | dict[str, torch.Tensor]

_fused = torch.nn.functional.scaled_dot_product_attention
_ARGUMENTS = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")  # its own, in order


@cache
@in_inference_mode
def vector() -> int:
    """How many keys fused attention computes together on this processor, the last of its keys in smaller groups.

    Determined by experiment. The values cancel in pairs, so the result is exactly the rounding error that a different
    summation order would change; random values would show it about once in a million elements.
    """
    for size in VECTORS:
        if all(_shares(seen, size, *heads) for heads in ((8, 8, 64), (4, 2, 16)) for seen in LENGTHS):
            return size
    return 1


def _shares(seen: int, size: int, heads: int, key_heads: int, width: int) -> bool:
    """Whether the result for `seen` keys stays bitwise equal when masked keys are appended up to the next multiple of
    `size`. width: numbers per head."""
    drawn = torch.Generator().manual_seed(seen)
    query = torch.randn((1, heads, 1, width), generator=drawn, device="cpu")
    shapes = [(1, key_heads, each, width) for each in (seen + size, seen // 2)]
    keys, half = (torch.randn(shape, generator=drawn, device="cpu") for shape in shapes)
    half *= torch.exp(4.0 * torch.randn(half.shape, generator=drawn, device="cpu"))
    values = torch.cat([half, -half, half.new_zeros((1, key_heads, seen % 2 + size, width))], dim=2)
    values[:, :, :seen] = values[:, :, torch.randperm(seen, generator=drawn, device="cpu")]
    mask = half.new_full((1, 1, 1, seen + size), -torch.inf)
    mask[..., :seen] = 0.0
    for factor in (0.0, 1.0):  # uniform attention weights, then random ones
        q, k, v = (factor * query).bfloat16(), keys.bfloat16(), values.bfloat16()
        own = _fused(q, k[:, :, :seen], v[:, :, :seen], enable_gqa=True)
        for end in range(seen + 1, seen - seen % size + size):
            shared = _fused(q, k[:, :, :end], v[:, :, :end], attn_mask=mask[..., :end].bfloat16(), enable_gqa=True)
            if not torch.equal(own, shared):
                return False
    return True


def is_recurrent(model: PreTrainedModel) -> bool:
    """Whether a layer keeps a recurrent state, which cannot be rolled back when a draft is rejected."""
    layer_types = getattr(model.config.get_text_config(decoder=True), "layer_types", None) or ()
    return bool(model._is_stateful) or not RECURRENT_KINDS.isdisjoint(layer_types)


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
    Nothing is changed where masks are already accepted. Raises UnsupportedModelError for an attention that the program
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


def restore_attention(model: PreTrainedModel) -> None:
    """Give the model the attention back that an interrupted pass left changed. The caller holds the model's lock, and
    no pass is running."""
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


class Group(NamedTuple):
    """Nodes that attend in one call, as rows of one query each."""

    columns: Sequence[int]
    """Of the pass, in the order of their path."""
    slots: Sequence[int]
    """Slots from the root to the group's last node, inclusive. Their keys follow the cached ones."""


class Split(NamedTuple):
    """How a row of a pass attends."""

    prompt: int  # columns that read a prompt and see all before them; 0: none, the row has a single uncached token
    cached: int  # slots before the pass
    groups: Sequence[Group]

    @property
    def width(self) -> int:
        """Columns that are not padding, which follows them."""
        return self.prompt + sum([len(group.columns) for group in self.groups])


class Seen(NamedTuple):
    """What the T tokens of a pass attend to, padding left out."""

    places: npt.NDArray[np.int64]
    """Of the tokens among the B * Q columns of all rows, rising. [T]"""
    starts: npt.NDArray[np.int64]
    """The number of slots before the pass, to all of which a token attends. [T]"""
    paths: npt.NDArray[np.int64]
    """Slots of the token's path in this pass, root first, itself last, padded with -1. [T, n]"""


Part = tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor]
"""(columns, None if contiguous; permutation of this pass's keys, None if already in place; mask), of a group. The mask
is [n, 1 or H, 1, K]."""


class SplitMask(torch.Tensor):
    """A mask that makes fused attention run by the `Split` of each row, transparently to the model and to other
    threads."""

    calls: Sequence[Split]
    parts: list[list[Part]]
    """For the groups of each row, what follows from the values of the mask; set by the first layer that uses it."""
    seen: Seen | None
    """The same for the compiled module's attention; set by the first layer that uses it. See `cpu_attention.py`."""

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        named = dict(kwargs or {})
        if func is _fused:
            given = {**dict(zip(_ARGUMENTS, args, strict=False)), **named}
            if isinstance(given.get("attn_mask"), SplitMask):
                return _by_row(**given)
        with torch._C.DisableTorchFunctionSubclass():
            result = func(*args, **named)
        mask = args[0] if args else named.get("input")
        if isinstance(mask, SplitMask) and _is_mask_like(result, mask):
            result = result.as_subclass(SplitMask)
            result.calls = mask.calls
        return result


def split_masks(masks: Masks, slots: npt.NDArray[np.int64], visible: npt.NDArray[np.bool_], prompt: int) -> Masks:
    """Convert the masks of a bfloat16 pass on a CPU, so that fused attention runs in the calls of a `Split` per row.

    `slots` [B, Q], `visible` [B, Q, K] and `prompt`: see `tree_cache.Columns`. Several rows read no prompt.
    """
    calls = [_split(*row, prompt) for row in zip(slots, visible, strict=True)]
    converted = {}
    for kind, mask in masks.items() if isinstance(masks, dict) else [("", masks)]:
        converted[kind] = marked = mask.as_subclass(SplitMask)
        marked.calls = calls
    return {**converted} if isinstance(masks, dict) else converted[""]


def _split(slots: npt.NDArray[np.int64], visible: npt.NDArray[np.bool_], prompt: int) -> Split:
    """The calls of one row; `slots` [Q], `visible` [Q, K]."""
    cached, size = int(slots[0]), vector()
    groups: list[Group] = []
    last: dict[int, int] = {}  # the group whose last node has this slot
    for column in range(prompt, int((slots >= 0).sum())):
        path = (np.flatnonzero(visible[column, cached:]) + cached).tolist()
        own = last.pop(path[-2], None) if len(path) > 1 else None
        if own is not None:
            before = groups[own]
            if (cached + len(before.slots)) // size == (cached + len(path)) // size:
                groups[own] = Group([*before.columns, column], path)
                last[path[-1]] = own
                continue
        last[path[-1]] = len(groups)
        groups.append(Group([column], path))
    return Split(prompt, cached, groups)


def _is_mask_like(result: object, mask: torch.Tensor) -> bool:
    """Whether the result of the model's own mask handling (a slice, a cast) is still a mask of this pass."""
    return isinstance(result, torch.Tensor) and result.shape[-2:] == mask.shape[-2:] and result.is_floating_point()


def _by_row(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attn_mask: SplitMask, **options: Any
) -> torch.Tensor:
    """Fused attention in the calls of the mask's splits. Query [B, H, Q, D]; returns [B, H, Q, D]."""
    mask, calls = attn_mask.as_subclass(torch.Tensor), attn_mask.calls
    if not hasattr(attn_mask, "parts"):
        attn_mask.parts = [_parts(mask[row], split) for row, split in enumerate(calls)]
    if len(calls) == 1:
        return _by_group(query, key, value, mask, calls[0], attn_mask.parts[0], **options)
    out = query.new_zeros((*query.shape[:3], value.shape[3]))
    for row, (split, parts) in enumerate(zip(calls, attn_mask.parts, strict=True)):
        own, width, end = slice(row, row + 1), split.width, split.cached + 1
        if mask.shape[2] == 1:
            hidden = mask[own, ..., :end]
            out[own] = _single(query[own], key[own, :, :end], value[own, :, :end], hidden, **options)
            continue
        out[own, :, :width] = _by_group(
            query[own, :, :width], key[own], value[own], mask[own, :, :width], split, parts, **options
        )
    return out


def _single(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor, **options: Any
) -> torch.Tensor:
    """Fused attention of one token. Query [1, H, 1, D], or [1, H / G, G, D] with the G heads of a group in place of
    columns, as transformers calls it with a mask; without one, which is plain decoding, it keeps the heads."""
    if mask.any():
        return _fused(query, key, value, mask, **options)
    heads = query.reshape(1, -1, 1, query.shape[3])
    found = _fused(heads, key, value, **{**options, "enable_gqa": heads.shape[1] > key.shape[1]})
    return found.view(*query.shape[:3], -1)


def _by_group(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor,
    split: Split,
    parts: Sequence[Part],
    **options: Any,
) -> torch.Tensor:
    """Fused attention of one row in the calls of a split. Query [1, H, Q, D]; returns [1, H, Q, D]."""
    prompt, cached, groups = split
    out = query.new_empty((*query.shape[:3], value.shape[3]))
    if prompt:
        end = cached + prompt
        theirs = mask[:, :, :prompt, :end]
        how = {"is_causal": True} if not cached and _is_causal(theirs) else {"attn_mask": theirs}
        out[:, :, :prompt] = _fused(query[:, :, :prompt], key[:, :, :end], value[:, :, :end], **{**options, **how})
    rows, results = query[0].transpose(0, 1).unsqueeze(2), out[0].transpose(0, 1)
    if any([order is not None for _, order, _ in parts]):
        # Branches are moved in the cache itself, where it is a view of that.
        key, value = (each if all(each.stride()) else each.clone() for each in (key, value))
    keys, values = key[:, :, cached:], value[:, :, cached:]
    found: tuple[torch.Tensor, torch.Tensor] | None = None  # in the order they came in
    try:
        for (columns, slots), (nodes, order, seen) in zip(groups, parts, strict=True):
            count, width = len(columns), len(slots)
            if order is not None:
                found = found or (keys.clone(), values.clone())
                keys[:, :, :width], values[:, :, :width] = found[0][:, :, order], found[1][:, :, order]
            elif found is not None:
                keys.copy_(found[0])
                values.copy_(found[1])
            place = slice(columns[0], columns[0] + count) if nodes is None else nodes
            results[place] = _fused(
                rows[place],
                key[:, :, : cached + width].expand(count, -1, -1, -1),
                value[:, :, : cached + width].expand(count, -1, -1, -1),
                seen,
                **options,
            )[:, :, 0]
    finally:
        if found is not None:
            keys.copy_(found[0])
            values.copy_(found[1])
    return out


def _parts(mask: torch.Tensor, found: Split) -> list[Part]:
    """What follows from the mask of one row, [1 or H, Q, K], for each group."""
    parts: list[Part] = []
    by_column = mask.transpose(0, 1).unsqueeze(2)  # [Q, 1 or H, 1, K]
    for columns, slots in found.groups:
        follow = columns[-1] - columns[0] + 1 == len(columns)
        nodes = None if follow else torch.tensor(columns, device=mask.device)
        seen = by_column[columns[0] : columns[0] + len(columns)] if nodes is None else by_column[nodes]
        end, order = found.cached + len(slots), None
        if slots[-1] == end - 1:
            seen = seen[..., :end]
        else:
            places = torch.tensor(slots, device=mask.device)
            order = places - found.cached
            seen = torch.cat([seen[..., : found.cached], seen[..., places]], dim=-1)
        parts.append((nodes, order, seen))
    return parts


def _is_causal(mask: torch.Tensor) -> bool:
    """Whether an additive mask, [1, 1, Q, Q], hides what follows and nothing else."""
    if mask.shape[1] != 1:
        return False
    return torch.equal(mask[0, 0] == 0, mask.new_ones(mask.shape[2:], dtype=torch.bool).tril())
