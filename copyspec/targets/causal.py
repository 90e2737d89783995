"""Decoder-only models: prefill and trees through the model's public forward."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
import torch

from copyspec.targets.columns import Columns
from copyspec.targets.facts import ModelFacts
from copyspec.targets.hooks.attention import masked_attention
from copyspec.targets.hooks.cpu_parity import near_plain
from copyspec.targets.hooks.positions import positions_from_outside
from copyspec.targets.masks import tree_masks
from copyspec.targets.rows import RowSessions
from copyspec.targets.session import TreeSession
from copyspec.targets.wrapped import WrappedModel

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from copyspec.targets.base import Session


class CausalTarget(WrappedModel):
    """A decoder-only model. `supports_trees` is False where only chains, row by row, give its own logits."""

    supports_drafts = True
    is_encoder_decoder = False

    def __init__(self, model: PreTrainedModel, facts: ModelFacts, *, supports_trees: bool = True) -> None:
        super().__init__(model, facts)
        self.supports_trees = supports_trees

    def _open(self, prompts: Sequence[Sequence[int]]) -> Session:
        if self.supports_trees and self.facts.positions != "mpt":
            return CausalSession(self, len(prompts))
        return RowSessions([CausalSession(self, 1) for _ in prompts])

    def start(self, prompt: Sequence[int]) -> list[int]:
        return list(prompt)


class CausalSession(TreeSession):
    def __init__(self, target: CausalTarget, rows: int) -> None:
        super().__init__(rows, chains_only=not target.supports_trees)
        self._model, self._facts = target.model, target.facts
        self._linears = target.linears

    @contextmanager
    def _entered(self) -> Iterator[None]:
        with masked_attention(self._model, self._facts.configs), self._linears.used():
            yield

    def _continue(self, chains: Sequence[Sequence[int]], start: int, kept: int) -> torch.Tensor:
        device = self._facts.device
        tokens = torch.tensor(chains).to(device, non_blocking=True)
        positions = torch.arange(start, start + tokens.shape[1], device=device).unsqueeze(0)
        return self._forward(tokens, positions, None, kept)

    def _score(self, columns: Columns) -> torch.Tensor:
        facts = self._facts
        packed = torch.from_numpy(np.stack([columns.tokens, columns.positions]))
        tokens, positions = packed.to(facts.device, non_blocking=True)
        masks = tree_masks(columns, facts)
        if facts.positions == "argument":
            return self._forward(tokens, positions, near_plain(self._model, masks, columns), columns.kept)
        keys = torch.from_numpy(columns.key_positions()).to(facts.device, non_blocking=True)
        with positions_from_outside(self._model, facts.positions, positions, keys):
            return self._forward(tokens, positions, masks, columns.kept)

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
