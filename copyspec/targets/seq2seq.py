"""Encoder-decoder targets: the encoder runs once, and the decoder scores trees like a decoder-only model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from transformers import DynamicCache, EncoderDecoderCache
from transformers.cache_utils import DynamicLayer
from transformers.modeling_outputs import BaseModelOutput

from copyspec.targets.causal import TreeSession, WrappedModel, last_logits, training_error
from copyspec.targets.hooks.attention import masked_attention
from copyspec.targets.hooks.inference import in_inference_mode
from copyspec.targets.hooks.positions import positions_from_outside
from copyspec.targets.rows import RowSessions
from copyspec.targets.tree_cache import Columns

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from copyspec.targets.base import Session


class Seq2SeqTarget(WrappedModel):
    """An encoder-decoder model. `supports_trees` is False if only chains, one row at a time, match its plain logits."""

    supports_drafts = True
    is_encoder_decoder = True

    def open(self, prompts: Sequence[Sequence[int]], new_tokens: int = 0, *, keeps_states: bool = False) -> Session:
        if self.model.training:
            raise training_error(self.model)
        if self.supports_trees:
            return Seq2SeqSession(self, prompts)
        return RowSessions([Seq2SeqSession(self, [prompt]) for prompt in prompts])

    def start(self, prompt: Sequence[int]) -> list[int]:
        return first_tokens(self.model)


class Seq2SeqSession(TreeSession):
    """The session of a `Seq2SeqTarget`: encoder states, cross-attention cache, and the decoder's tree cache."""

    @in_inference_mode
    def __init__(self, target: Seq2SeqTarget, prompts: Sequence[Sequence[int]]) -> None:
        super().__init__(target, target.facts, len(prompts))
        self._encoded, self._visible = self._encode(prompts)
        self._cross = DynamicCache()
        self._caches = EncoderDecoderCache(self._cache, self._cross)

    @in_inference_mode
    def select(self, rows: Sequence[int]) -> None:
        super().select(rows)
        index = torch.tensor(rows, device="cpu")
        for layer in self._cross.layers:
            assert isinstance(layer, DynamicLayer)
            layer.batch_select_indices(index.to(layer.device))
        states = self._encoded.last_hidden_state
        assert states is not None
        self._encoded.last_hidden_state = states.index_select(0, index.to(states.device))
        if self._visible is not None:
            self._visible = self._visible.index_select(0, index.to(self._visible.device))

    @in_inference_mode
    def join(self, other: Session) -> None:
        assert isinstance(other, Seq2SeqSession)
        visible, more = self.cross_mask(), other.cross_mask()
        states, added = self._encoded.last_hidden_state, other._encoded.last_hidden_state
        assert states is not None and added is not None
        width = max(states.shape[1], added.shape[1])
        self._encoded.last_hidden_state = torch.cat([_widened(states, width), _widened(added, width)])
        self._visible = torch.cat([_widened(visible, width), _widened(more, width)])
        for layer, extra in zip(self._cross.layers, other._cross.layers, strict=True):
            assert isinstance(layer, DynamicLayer) and isinstance(extra, DynamicLayer)
            layer.keys = torch.cat([_widened(layer.keys, width, 2), _widened(extra.keys, width, 2)])
            layer.values = torch.cat([_widened(layer.values, width, 2), _widened(extra.values, width, 2)])
        super().join(other)

    @property
    def has_no_cross(self) -> bool:
        """Whether no pass has computed the keys and values of cross-attention yet."""
        return not self._cross.layers

    def cross_contents(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Keys and values of each layer's cross-attention, [B, H, S, D]."""
        held: list[tuple[torch.Tensor, torch.Tensor]] = []
        for layer in self._cross.layers:
            assert isinstance(layer, DynamicLayer)
            assert layer.keys is not None and layer.values is not None
            held.append((layer.keys, layer.values))
        return held

    def cross_mask(self) -> torch.Tensor:
        """Which encoder states are not padding, [B, S]."""
        states = self._encoded.last_hidden_state
        assert states is not None
        return states.new_ones(states.shape[:2], dtype=torch.long) if self._visible is None else self._visible

    def close(self) -> None:
        super().close()
        self._cross = DynamicCache()
        self._caches = EncoderDecoderCache(self._cache, self._cross)
        self._encoded = BaseModelOutput()

    def _encode(self, prompts: Sequence[Sequence[int]]) -> tuple[BaseModelOutput, torch.Tensor | None]:
        """Run the encoder; return its states [B, S, D], and which of them are not padding [B, S] (None: all)."""
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
        return encoded, visible

    def _needs_pieces(self, uncached: Sequence[Sequence[int]], tree_width: int) -> bool:
        return False  # rows begin with the start token alone, and the cross-attention cache holds all rows

    def _continue(self, uncached: Sequence[Sequence[int]], start: int, kept: int) -> torch.Tensor:
        tokens = torch.tensor(uncached, device=self._facts.device)
        return self._forward(tokens, None, kept)

    def _score(self, columns: Columns) -> torch.Tensor:
        facts = self._facts
        self._cache.write = columns.write
        tokens = torch.from_numpy(columns.tokens).to(facts.device, non_blocking=facts.non_blocking)
        queries = torch.from_numpy(columns.positions).to(facts.device, non_blocking=facts.non_blocking)
        keys = torch.from_numpy(columns.key_positions()).to(facts.device, non_blocking=facts.non_blocking)
        masks = columns.mask if columns.mask is not None else columns.masks(facts)
        with positions_from_outside(self._model, facts.positions, queries, keys):
            return self._forward(tokens, masks, columns.kept)

    def _forward(
        self, tokens: torch.Tensor, masks: torch.Tensor | dict[str, torch.Tensor] | None, kept: int
    ) -> torch.Tensor:
        logits: torch.Tensor = self._model(
            encoder_outputs=self._encoded,
            attention_mask=self._visible,
            decoder_input_ids=tokens,
            decoder_attention_mask=masks,
            use_cache=True,
            **{self._facts.cache: self._caches},
        ).logits
        return logits if logits.shape[1] == kept else last_logits(logits, kept)


def first_tokens(model: PreTrainedModel) -> list[int]:
    """The decoder's start token, chosen as in `generate`; the prompt goes to the encoder."""
    for config in (model.generation_config, model.config):
        token = getattr(config, "decoder_start_token_id", None)
        token = getattr(config, "bos_token_id", None) if token is None else token
        if token is not None:
            return [int(token)]
    raise ValueError(
        f"{type(model).__name__} names no first decoder token; set generation_config.decoder_start_token_id"
    )


def _widened(values: torch.Tensor | None, width: int, dim: int = 1) -> torch.Tensor:
    """Pad `values` with zeros at the end of `dim`, up to `width`."""
    assert values is not None
    missing = width - values.shape[dim]
    if not missing:
        return values
    shape = [*values.shape[:dim], missing, *values.shape[dim + 1 :]]
    return torch.cat([values, values.new_zeros(shape)], dim)
