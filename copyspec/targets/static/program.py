"""The program of a static pass, from tensors to tensors. Its shapes, addresses and branches do not depend on data."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from typing import TYPE_CHECKING, Any, Protocol

import torch
from transformers import EncoderDecoderCache
from transformers.modeling_outputs import BaseModelOutput

from copyspec.targets.base import LAST
from copyspec.targets.hooks.positions import positions_from_outside
from copyspec.targets.hooks.recurrence import mixers
from copyspec.targets.hooks.states import HiddenStates, hidden_states
from copyspec.targets.rows.passes import computed_cache
from copyspec.targets.static.buffers import KeyValues, StaticCache, move
from copyspec.targets.static.layout import PLACE, ROW, Shape
from copyspec.targets.static.masks_on_device import PassInputs, additive_masks, key_positions, own_slots, seen
from copyspec.targets.static.pass_paths import mixing
from copyspec.targets.static.row_states import PooledStates
from copyspec.targets.static.tree_attention import attending, markers
from copyspec.targets.static.triton_kernels import kernels_run

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from copyspec.targets.model.facts import ModelFacts

Masks = torch.Tensor | dict[str, torch.Tensor] | None


class EnterModel(Protocol):
    """Calls a kind of model (decoder-only, encoder-decoder)."""

    def __call__(self, work: PassInputs, masks: Masks, cache: StaticCache, wanted: torch.Tensor | None) -> torch.Tensor:
        """Logits of all tokens of the pass, [T, V]; of the `wanted` ones, [L, V]."""
        ...


class StaticProgram:
    """A pass of one shape over the rows of a pool."""

    def __init__(
        self,
        enter: EnterModel,
        model: PreTrainedModel,
        facts: ModelFacts,
        key_values: KeyValues,
        block_table: torch.Tensor,
        shape: Shape,
        tile: int,
        *,
        states: PooledStates | None = None,
        tree_attention: bool = False,
        compiled: bool = False,
    ) -> None:
        """`block_table`: the pages of each row, [R, P]; `tile`: see `lay_out`. `states`: of the rows' recurrent layers.
        `tree_attention`: pass markers instead of additive masks. `compiled`: torch.compile will trace this program."""
        device = key_values.layout.device
        runs_kernels = kernels_run(device)
        self._enter, self._model, self._facts, self._shape = enter, model, facts, shape
        by_kernel = tree_attention and runs_kernels and bool(key_values.buffers)  # else states alone show what broke
        self._cache = StaticCache(key_values, shape.tokens, by_kernel=by_kernel)
        self._moved, self._block_table = list(key_values.buffers.values()), block_table
        self._tile, self._tree_attention = tile, tree_attention
        self._by_kernel = not compiled and runs_kernels
        self._row_states, self._mixers = states, mixers(model) if states is not None else ()
        self.states: HiddenStates | None = None
        """Of the last pass, padding included; None unless the shape keeps some."""

    def __call__(self, packed: torch.Tensor) -> torch.Tensor:
        """Return the logits of the scored tokens, [L, V], of a pass that is laid out as in `layout`."""
        layers = self._shape.layers
        if not layers:
            return self._run(packed)
        with hidden_states(self._model, [layer for layer in layers if layer != LAST]) as self.states:
            return self._run(packed)

    def _run(self, packed: torch.Tensor) -> torch.Tensor:
        shape, cache = self._shape, self._cache
        fields, moves, wanted, units = packed.split(list(shape.parts))  # type: ignore[no-untyped-call]
        fields = fields.view(-1, shape.tokens)
        work = PassInputs(fields, units, self._block_table, self._tile, shape.ordered)
        sources, targets = moves.view(2, -1)
        nonfinite = cache.writer.nonfinite
        for buffer in self._moved:  # moves the keys and values of nodes accepted in the previous pass
            move(buffer, sources, targets, by_kernel=self._by_kernel)
        cache.writer.places.copy_(fields[PLACE : PLACE + 1])
        if nonfinite is not None:
            nonfinite[targets] = nonfinite[sources]
            nonfinite.index_fill_(0, fields[PLACE], 0)
        chosen = wanted if shape.scored < shape.tokens else None
        with ExitStack() as contexts:
            if self._tree_attention:
                contexts.enter_context(attending(work, caps=self._facts.caps_scores))
            if self._row_states is not None:
                contexts.enter_context(mixing(self._mixers, cache.static_layers, self._row_states, work, nonfinite))
            if nonfinite is None:  # attention by kernels, which takes no masks and no positions
                return self._enter(work, markers(work, self._facts), cache, chosen)
            slots = own_slots(work, cache.width)
            visible = seen(work, slots)
            if self._facts.positions != "argument":
                contexts.enter_context(self._positioned(work, key_positions(work, slots)))
            if self._tree_attention:
                masks = markers(work, self._facts)
            else:
                masks = additive_masks(work, slots, visible, self._facts)
            logits = self._enter(work, masks, cache, chosen)
        is_nonfinite = (visible & nonfinite).any(1)
        return logits.masked_fill((is_nonfinite if chosen is None else is_nonfinite[chosen]).unsqueeze(1), torch.nan)

    def _positioned(self, work: PassInputs, keys: torch.Tensor) -> AbstractContextManager[None]:
        return positions_from_outside(self._model, self._facts.positions, work.positions, keys)


def enter_causal(model: PreTrainedModel, facts: ModelFacts) -> EnterModel:
    """Calls a decoder-only model through its public forward."""
    by_argument, by_index = "position_ids" in facts.arguments, "logits_to_keep" in facts.arguments
    forward: Callable[..., Any] = model

    def enter(work: PassInputs, masks: Masks, cache: StaticCache, wanted: torch.Tensor | None) -> torch.Tensor:
        keywords: dict[str, object] = {facts.cache: cache}
        if by_argument:
            keywords["position_ids"] = work.positions
        if by_index and wanted is not None:
            keywords["logits_to_keep"] = wanted
        output = forward(input_ids=work.tokens, attention_mask=masks, use_cache=True, **keywords)
        logits: torch.Tensor = output.logits
        return logits[0] if wanted is None or by_index else logits[0, wanted]

    return enter


def enter_encoder_decoder(
    model: PreTrainedModel, facts: ModelFacts, cross: KeyValues, ranges: torch.Tensor
) -> EnterModel:
    """Calls the decoder through the model's public forward; cross-attention reads `cross`, which was filled before.
    `ranges`: the places of each row's states in it, [R, 2]: first, behind the last."""
    forward: Callable[..., Any] = model
    width = int(model.config.get_text_config(encoder=True).hidden_size)
    # A placeholder, never read.
    states = torch.zeros((1, 1, 1), dtype=facts.zero.dtype, device=ranges.device).expand(1, cross.slots, width)

    def enter(work: PassInputs, masks: Masks, cache: StaticCache, wanted: torch.Tensor | None) -> torch.Tensor:
        own = ranges[work.fields[ROW]]
        places = torch.arange(cross.slots, device=own.device)
        seen = (places >= own[:, :1]) & (places < own[:, 1:])
        computed = computed_cache([(cross.view(keys), cross.view(values)) for keys, values in cross.layout.planes])
        output = forward(
            encoder_outputs=BaseModelOutput(last_hidden_state=states),
            attention_mask=facts.additive(seen[None, None]),
            decoder_input_ids=work.tokens,
            decoder_attention_mask=masks,
            use_cache=True,
            **{facts.cache: EncoderDecoderCache(cache, computed)},
        )
        logits: torch.Tensor = output.logits[0]
        return logits if wanted is None else logits[wanted]

    return enter
