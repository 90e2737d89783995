"""Encoder-decoder targets: the encoder runs once, and the decoder scores trees like a decoder-only model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from transformers import DynamicCache, EncoderDecoderCache
from transformers.modeling_outputs import BaseModelOutput

from copyspec.targets.eager.causal import TreeSession, WrappedModel, wanted_logits
from copyspec.targets.hooks.attention import masked_attention
from copyspec.targets.hooks.inference import in_inference_mode
from copyspec.targets.rows.passes import RowCache, computed_cache

if TYPE_CHECKING:
    from copyspec.targets.base import Session

Layer = tuple[torch.Tensor, torch.Tensor]


class Seq2SeqTarget(WrappedModel):
    """An encoder-decoder model. `supports_trees` is False if only chains, one row at a time, match its plain logits."""

    def open(self, prompts: Sequence[Sequence[int]], new_tokens: int = 0, *, keeps_states: bool = False) -> Session:
        return Seq2SeqSession(self, prompts, new_tokens)


@dataclass(slots=True, eq=False)
class EncodedRow(RowCache):
    """A row with the states of its encoder, and the keys and values of cross-attention, once a pass has made them."""

    states: torch.Tensor = field(kw_only=True)  # [S, D]
    cross: list[Layer] = field(default_factory=list)  # [H, S, D] each


class Seq2SeqSession(TreeSession):
    """The session of a `Seq2SeqTarget`. In a pass, the states of all rows' encoders follow each other, too."""

    def __init__(self, target: Seq2SeqTarget, prompts: Sequence[Sequence[int]], new_tokens: int = 0) -> None:
        super().__init__(target, target.facts, prompts, new_tokens)
        self._rows: list[EncodedRow]  # type: ignore[assignment]
        self._joined: tuple[list[EncodedRow], torch.Tensor, list[Layer]] = ([], torch.empty(0), [])
        """The rows of the last pass, with their states and cross-attention after each other."""

    def cross_contents(self) -> list[list[Layer]]:
        """Keys and values of each row and layer of cross-attention, [H, S, D]; none before a pass has computed them."""
        return [row.cross for row in self._rows]

    @in_inference_mode
    def add(self, prompts: Sequence[Sequence[int]], new_tokens: int = 0) -> None:
        before = len(self._rows)
        super().add(prompts, new_tokens)
        self._rows[before:] = [EncodedRow(self._ahead, states=states) for states in self._encode(prompts)]

    def select(self, rows: Sequence[int]) -> None:
        super().select(rows)
        self._joined = ([], torch.empty(0), [])

    def close(self) -> None:
        super().close()
        self._joined = ([], torch.empty(0), [])

    def _encode(self, prompts: Sequence[Sequence[int]]) -> list[torch.Tensor]:
        """Run the encoder; return its states for each prompt, [S, D]."""
        if self._chains_only and len(prompts) > 1:
            return [states for prompt in prompts for states in self._encode([prompt])]
        longest = max(map(len, prompts))
        pad = self._model.config.pad_token_id or 0
        rows = [[*prompt, *[pad] * (longest - len(prompt))] for prompt in prompts]
        tokens = torch.tensor(rows, device=self._facts.device)
        visible: torch.Tensor | None = None
        if any(len(prompt) < longest for prompt in prompts):
            lengths = torch.tensor([[len(prompt)] for prompt in prompts], device=self._facts.device)
            visible = (torch.arange(longest, device=self._facts.device) < lengths).long()
        with masked_attention(self._model, self._facts.configs):
            encoder = self._model.get_encoder()
            encoded: BaseModelOutput = encoder(input_ids=tokens, attention_mask=visible, return_dict=True)
        assert encoded.last_hidden_state is not None
        self._output = type(encoded)  # those of mixtures of experts have more fields, which models read
        of_rows = [states[: len(prompt)] for states, prompt in zip(encoded.last_hidden_state, prompts, strict=True)]
        return of_rows if len(prompts) == 1 else [states.clone() for states in of_rows]

    def _call(self, tokens: torch.Tensor, positions: torch.Tensor, masks: Any) -> torch.Tensor:
        states, cross = self._encoders(self._cache.rows)  # type: ignore[arg-type]
        logits: torch.Tensor = self._model(
            encoder_outputs=self._output(last_hidden_state=states.unsqueeze(0)),
            attention_mask=self._cross_mask(),
            decoder_input_ids=tokens,
            decoder_attention_mask=masks,
            use_cache=True,
            **{self._facts.cache: EncoderDecoderCache(self._cache, cross)},
        ).logits
        self._keep_cross(cross)
        return wanted_logits(logits, self._cache.work)

    def _encoders(self, rows: list[EncodedRow]) -> tuple[torch.Tensor, DynamicCache]:
        """The states and cross-attention of these rows after each other; none of the latter before it is computed."""
        known, states, layers = self._joined
        if list(map(id, known)) != list(map(id, rows)):
            states = rows[0].states if len(rows) == 1 else torch.cat([row.states for row in rows])
            layers = []
            if all([row.cross for row in rows]):
                of_layers = zip(*[row.cross for row in rows], strict=True)
                layers = [_joined(layer) for layer in of_layers]
            self._joined = list(rows), states, layers
        return states, computed_cache([(keys.unsqueeze(0), values.unsqueeze(0)) for keys, values in layers])

    def _keep_cross(self, cross: DynamicCache) -> None:
        """Give the rows of the pass their part of what it has computed for cross-attention."""
        rows, _, layers = self._joined
        if layers:
            return
        made: Sequence[Any] = cross.layers
        for row in rows:
            row.cross = []
        layers += [(layer.keys[0], layer.values[0]) for layer in made]
        sizes = [len(row.states) for row in rows]
        for keys, values in layers:
            parts = zip(rows, torch.split(keys, sizes, 1), torch.split(values, sizes, 1), strict=True)
            for row, of_keys, of_values in parts:
                # A part of its own, so that no row holds those of others that have left.
                row.cross.append((of_keys.clone(), of_values.clone()) if len(rows) > 1 else (of_keys, of_values))

    def _cross_mask(self) -> torch.Tensor | None:
        """The additive mask of cross-attention, [1, 1, T, sum of S]; None for one row, which sees all its states."""
        rows, work, facts = self._joined[0], self._cache.work, self._facts
        if len(rows) == 1:
            return None
        sizes = [len(row.states) for row in rows]
        visible, begin = np.zeros((work.first[-1], sum(sizes)), np.bool_), 0
        for first, last, size in zip(work.first, work.first[1:], sizes, strict=False):
            visible[first:last, begin : begin + size] = True
            begin += size
        return facts.additive(torch.from_numpy(visible[None, None]))


def _joined(layers: Sequence[Layer]) -> Layer:
    keys, values = zip(*layers, strict=True)
    return (keys[0], values[0]) if len(layers) == 1 else (torch.cat(keys, dim=1), torch.cat(values, dim=1))
