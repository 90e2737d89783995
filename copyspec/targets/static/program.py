"""The program of a static pass, from tensors to tensors. Its shapes, addresses and branches do not depend on data."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Protocol

import torch

from copyspec.targets.hooks.positions import positions_from_outside
from copyspec.targets.static.buffers import KeyValues, StaticCache, move
from copyspec.targets.static.masks_on_device import PassInputs, additive_masks, key_positions
from copyspec.targets.static.packing import FIELDS, words
from copyspec.targets.static.tree_attention import tree_masks
from copyspec.targets.static.triton_kernels import kernels_run

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from copyspec.targets.facts import ModelFacts

Masks = torch.Tensor | dict[str, torch.Tensor]


class EnterModel(Protocol):
    """Calls a kind of model (decoder-only, encoder-decoder)."""

    def __call__(self, tokens: torch.Tensor, positions: torch.Tensor, masks: Masks, cache: StaticCache) -> torch.Tensor:
        """Logits of all columns, [B, Q, V]."""
        ...


class StaticProgram:
    """A pass over `rows` rows of `nodes` columns that attend to the first `width` slots of `key_values`."""

    def __init__(
        self,
        enter: EnterModel,
        model: PreTrainedModel,
        facts: ModelFacts,
        key_values: KeyValues,
        size: tuple[int, int, int],
        *,
        tree_attention: bool = False,
        compiled: bool = False,
    ) -> None:
        """`size`: rows, nodes, width. `tree_attention`: pass tree masks instead of additive ones. `compiled`:
        torch.compile will trace this program."""
        rows, nodes, width = size
        device = key_values.layout.device
        self._enter, self._model, self._facts = enter, model, facts
        self._cache = StaticCache(key_values, rows, nodes, width)
        self._moved = [buffer[:, :rows] for buffer in key_values.buffers.values()]
        self._columns = torch.arange(nodes, device=device)
        self._slots = torch.arange(width, device=device)
        self._words = words(nodes)
        self._tree_attention = tree_attention
        self._by_kernel = not compiled and kernels_run(device)

    def fields(self) -> int:
        """Number of fields of the packed array, [fields, rows, nodes]."""
        return FIELDS + self._words

    def __call__(self, packed: torch.Tensor) -> torch.Tensor:
        """Return logits [B, Q, V] of a pass packed as in `packing`, [F, B, Q]."""
        tokens, depths, lengths, sources, targets, *bits = packed.unbind(0)
        inputs = PassInputs(depths, lengths[:, :1], tuple(bits))
        cache = self._cache
        for buffer in self._moved:  # moves the keys and values of nodes accepted in the previous pass
            move(buffer, sources, targets, cache.row_index, by_kernel=self._by_kernel)
        torch.add(inputs.lengths, self._columns, out=cache.slots)
        positions = inputs.lengths + depths
        if self._tree_attention:
            masks = tree_masks(packed, self._facts)
        else:
            masks = additive_masks(inputs, self._slots, self._facts)
        with self._with_positions(inputs, positions):
            return self._enter(tokens, positions, masks, cache)

    def _with_positions(self, inputs: PassInputs, positions: torch.Tensor) -> AbstractContextManager[None]:
        style = self._facts.positions
        if style == "argument":
            return nullcontext()
        keys = key_positions(inputs, self._slots)
        return positions_from_outside(self._model, style, positions, keys)


def enter_causal(model: PreTrainedModel, facts: ModelFacts) -> EnterModel:
    """Calls a decoder-only model through its public forward."""
    by_argument = "position_ids" in facts.arguments
    forward: Callable[..., Any] = model

    def enter(tokens: torch.Tensor, positions: torch.Tensor, masks: Masks, cache: StaticCache) -> torch.Tensor:
        keywords: dict[str, object] = {facts.cache: cache}
        if by_argument:
            keywords["position_ids"] = positions
        output = forward(input_ids=tokens, attention_mask=masks, use_cache=True, **keywords)
        logits: torch.Tensor = output.logits
        return logits

    return enter
