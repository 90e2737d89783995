"""Attention of a pass over several rows, row by row: each row's queries over its own keys and values.

A pass gives the model the tokens of all rows as one row. Where its attention layers call transformers' interface with
what the cache has returned, their call comes here, and is made once for each row, by the function that plain decoding
uses. Other models get the keys of all rows, and a mask that hides those of other rows.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from threading import local
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from copyspec.targets.hooks.attention import ROWS, masked_implementation, own_implementation

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

    from copyspec.targets.model.facts import ModelFacts
    from copyspec.targets.rows.passes import Pass, RowCache

_EAGER = "eager_attention_forward"


class NotByRow(Exception):
    """A layer calls attention in another way: its model must get the keys of all rows."""


class RowAttention:
    """How the layers of a running pass attend."""

    def __init__(self, model: PreTrainedModel, work: Pass, rows: Sequence[RowCache], facts: ModelFacts) -> None:
        self._work, self._rows, self._facts = work, rows, facts
        self._names = {id(part): facts.attention or masked_implementation(model, part) for part in facts.configs}
        self._written: dict[int, tuple[int, torch.Tensor, torch.Tensor]] = {}
        """By the id of keys: the number of their layer, the keys and the values."""
        self._attended: set[int] = set()  # ids of these keys
        self._by_kind: dict[str, list[tuple[slice | torch.Tensor, torch.Tensor | None]]] = {}

    def wrote(self, number: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Record that a layer was given back these keys and values, [1, H, T, D], after its rows' buffers were
        written."""
        self._written[id(keys)] = number, keys, values

    def markers(self) -> Any:
        """What the model gets in place of masks: the number of a kind of layer, [1, 1, T, 1]."""
        kinds, tokens = self._facts.kinds, self._work.first[-1]
        return self._facts.by_kind(
            lambda kind: torch.full((1, 1, 1, 1), kinds.index(kind), device="cpu").expand(1, 1, tokens, 1)
        )

    def masks(self, marker: torch.Tensor | None) -> list[torch.Tensor | None]:
        """The additive mask of each row for a layer with this marker, [1, 1, n, L]; None: it sees all."""
        return self._work.masks(self._kind(marker), self._facts)

    def _kind(self, marker: torch.Tensor | None) -> str:
        if marker is None or marker.dtype != torch.long:
            raise NotByRow("a layer changes its mask")
        return self._facts.kinds[int(marker[0, 0, 0, 0])]

    def _name(self, module: nn.Module) -> str:
        return self._names.get(id(module.config), self._facts.attention or "sdpa")

    def end(self) -> None:
        """Raise NotByRow if a layer of the pass that has ended did not attend in this way."""
        written, self._written = set(self._written), {}
        if self._attended != written:
            raise NotByRow("a layer calls no attention of transformers' interface")

    def attend(
        self,
        module: nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        **named: Any,
    ) -> tuple[torch.Tensor, None]:
        """The attention of all rows, [1, T, H, D], with transformers' signature: queries, keys and values of the pass's
        tokens, [1, H, T, D] each, and the kind of layer as a marker."""
        written = self._written.get(id(key))
        if written is None or value is not written[2] or named.get("position_bias") is not None:
            raise NotByRow("a layer attends to other numbers than the cache has returned, or adds a bias of its own")
        self._attended.add(id(key))
        work, facts = self._work, self._facts
        name = self._name(module)
        call, masks, parts = _function(module, name), self.masks(attention_mask), list[torch.Tensor]()
        # Without a mask, several tokens of a new row see those before them.
        is_causal = name != "eager" and facts.window is None and facts.chunk is None
        for row, start, first, last, scored, mask in zip(
            self._rows, work.starts, work.first, work.first[1:], work.scored, masks, strict=False
        ):
            buffers, end = row.layers[written[0]], start + last - first
            keys, values = buffers.keys[:, :end].unsqueeze(0), buffers.values[:, :end].unsqueeze(0)
            own = None if mask is None or (is_causal and not start and scored == 1) else mask.to(query.device)
            parts.append(call(module, query[:, :, first:last], keys, values, own, **named)[0])
        return torch.cat(parts, dim=1), None


class TokenAttention(RowAttention):
    """How the layers of a pass attend in which each token has the bits that it has alone: by a call of its own, to the
    slots of its path in the order of positions. The cache returns the keys of all rows."""

    def end(self) -> None:
        """Nothing is known of what layers make of these keys."""

    def attend(
        self,
        module: nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        **named: Any,
    ) -> tuple[torch.Tensor, None]:
        """As that of `RowAttention`, with keys and values of the slots of all rows, [1, H, K, D]."""
        call, parts = _function(module, self._name(module)), list[torch.Tensor]()
        for token, (slots, mask) in enumerate(self._slots(self._kind(attention_mask))):
            own = [tensor[:, :, slots] for tensor in (key, value)]
            parts.append(call(module, query[:, :, token : token + 1], *own, mask, **named)[0])
        return torch.cat(parts, dim=1), None

    def _slots(self, kind: str) -> Sequence[tuple[slice | torch.Tensor, torch.Tensor | None]]:
        """For each token of the pass, the slots of its path and a mask of them in layers of this kind; None: it sees
        all."""
        if kind not in self._by_kind:
            work, offset = self._work, 0
            self._by_kind[kind] = tokens = []
            for row, end in enumerate(work.ends()):
                visible, seen = work.visible[row], work.seen(row, kind, self._facts)
                for token in range(work.first[row + 1] - work.first[row]):
                    path = np.arange(end) if visible is None else np.flatnonzero(visible[token])
                    last, mask = int(path[-1]) + 1, None
                    if seen is not None and not seen[token, path].all():
                        mask = self._facts.additive(torch.from_numpy(seen[token, path][None, None, None]))
                    is_whole = len(path) == last
                    slots = slice(offset, offset + last) if is_whole else torch.from_numpy(offset + path)
                    tokens.append((slots, mask))
                offset += end
        return self._by_kind[kind]


_running = local()


@contextmanager
def attending(attention: RowAttention) -> Iterator[None]:
    """Let attention in this thread be that of a pass while the context is active."""
    try:
        _running.attention = attention
        yield
    finally:
        _running.attention = None


def attend(module: nn.Module, *tensors: Any, **named: Any) -> Any:
    """Attention with transformers' signature, in the thread of a pass that of `RowAttention`. In another thread that
    runs the model in the meantime: its own attention."""
    attention: RowAttention | None = getattr(_running, "attention", None)
    if attention is not None:
        return attention.attend(module, *tensors, **named)
    return _function(module, own_implementation(module.config))(module, *tensors, **named)  # type: ignore[arg-type]


def make_mask(*arguments: Any, config: PreTrainedConfig, **named: Any) -> Any:
    """The mask that the model makes in another thread that runs it in the meantime."""
    return ALL_MASK_ATTENTION_FUNCTIONS[own_implementation(config)](*arguments, config=config, **named)


def attends_by_interface(model: PreTrainedModel) -> bool:
    """Whether all modules of a model that write to the cache call transformers' attention interface, by their
    sources."""
    sources = [_source(kind) for kind in {type(module) for module in model.modules()}]  # type: ignore[arg-type]
    writers = [source for source in sources if ".update(" in source and "self.layer_idx" in source]
    # Some compute otherwise under another name (GPT-2 with reorder_and_upcast_attn).
    if any([_COMPARES.search(source) for source in writers]) and getattr(model.config, "reorder_and_upcast_attn", True):
        return False
    return bool(writers) and all(["ALL_ATTENTION_FUNCTIONS" in source for source in writers])


_COMPARES = re.compile(r"_attn_implementation\s*(==|!=|in\b|not\b)")


@cache
def _source(kind: Any) -> str:
    """The source of a class's forward, of that which it inherits; "" for one that was made at run time."""
    try:
        return inspect.getsource(kind.forward)
    except (OSError, TypeError, AttributeError):
        return ""


def _function(module: nn.Module, name: str) -> Callable[..., Sequence[Any]]:
    """The attention function that the module calls in plain decoding."""
    if name != "eager":
        function: Callable[..., Sequence[Any]] = ALL_ATTENTION_FUNCTIONS[name]
        return function
    for kind in type(module).__mro__:
        function = getattr(sys.modules.get(kind.__module__), _EAGER, None)  # type: ignore[assignment]
        if function is not None:
            return function
    raise NotByRow(f"{type(module).__name__} has no {_EAGER}")


AttentionInterface.register(ROWS, attend)
AttentionMaskInterface.register(ROWS, make_mask)
