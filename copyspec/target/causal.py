"""Decoder-only models: prefill and trees through the model's public forward."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

import numpy as np
import torch

from copyspec.target.columns import Columns, additive
from copyspec.target.facts import ModelFacts, masked_attention
from copyspec.target.session import TreeSession

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class CausalTarget:
    """A decoder-only model whose attention layers take trees."""

    supports_trees = True
    supports_drafts = True
    is_encoder_decoder = False

    def __init__(self, model: PreTrainedModel, facts: ModelFacts) -> None:
        self.model, self.facts = model, facts

    @property
    def vocab_size(self) -> int:
        return self.facts.vocab_size

    @property
    def max_length(self) -> int | None:
        return self.facts.max_length

    @property
    def device(self) -> torch.device:
        return self.facts.device

    def open(self, prompts: Sequence[Sequence[int]]) -> CausalSession:
        return CausalSession(self, len(prompts))

    def start(self, prompt: Sequence[int]) -> list[int]:
        return list(prompt)


class CausalSession(TreeSession):
    def __init__(self, target: CausalTarget, rows: int) -> None:
        super().__init__(rows)
        self._model, self._facts = target.model, target.facts

    def _entered(self) -> AbstractContextManager[object]:
        return masked_attention(self._model)

    def _continue(self, chains: Sequence[Sequence[int]], start: int, rows: Sequence[int]) -> torch.Tensor:
        tokens = torch.tensor(chains).to(self._facts.device, non_blocking=True)
        positions = torch.arange(start, start + len(chains[0]), device=self._facts.device).unsqueeze(0)
        return self._forward(tokens, positions, None, kept=1)

    def _score(self, columns: Columns) -> torch.Tensor:
        packed = torch.from_numpy(np.stack([columns.tokens, columns.positions]))
        tokens, positions = packed.to(self._facts.device, non_blocking=True)
        return self._forward(tokens, positions, tree_masks(columns, self._facts), columns.kept)

    def _forward(
        self,
        tokens: torch.Tensor,
        positions: torch.Tensor,
        masks: torch.Tensor | dict[str, torch.Tensor] | None,
        kept: int,
    ) -> torch.Tensor:
        arguments: dict[str, object] = {
            "input_ids": tokens,
            "attention_mask": masks,
            "past_key_values": self._cache,
            "use_cache": True,
        }
        if "position_ids" in self._facts.arguments:
            arguments["position_ids"] = positions
        if "logits_to_keep" in self._facts.arguments:
            arguments["logits_to_keep"] = kept
        logits: torch.Tensor = self._model(**arguments).logits
        return logits if logits.shape[1] == kept else logits[:, -kept:]


def tree_masks(columns: Columns, facts: ModelFacts) -> torch.Tensor | dict[str, torch.Tensor]:
    """Additive masks [B, 1, Q, K]: one, or one per kind of attention layer where the model has several."""
    full: torch.Tensor | None = None
    masks: dict[str, torch.Tensor] = {}
    for kind in facts.kinds:
        visible = columns.visible
        if kind == "sliding_attention" and facts.window is not None and visible.shape[2] > facts.window:
            visible = columns.within_window(facts.window)
        elif kind == "chunked_attention" and facts.chunk is not None and visible.shape[2] > facts.chunk:
            visible = columns.within_chunk(facts.chunk)
        if visible is not columns.visible:
            masks[kind] = to_mask(visible, facts)
        else:
            full = to_mask(visible, facts) if full is None else full
            masks[kind] = full
    return masks if len(masks) > 1 else masks[facts.kinds[0]]


def to_mask(visible: np.ndarray[tuple[int, ...], np.dtype[np.bool_]], facts: ModelFacts) -> torch.Tensor:
    """`visible` [B, Q, K] as additive mask [B, 1, Q, K] of the model's dtype, on its device."""
    # Half the range would do for any mask; the smallest float32 keeps float64 models within numpy's float32.
    lowest = max(torch.finfo(facts.dtype).min, torch.finfo(torch.float32).min)
    mask = torch.from_numpy(additive(visible, lowest))
    return mask.to(device=facts.device, dtype=facts.dtype, non_blocking=True)
