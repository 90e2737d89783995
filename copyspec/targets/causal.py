"""Decoder-only targets, which run prefill and draft trees through the model's public forward."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np
import torch

from copyspec.targets.cache import Columns, tree_masks
from copyspec.targets.hooks.attention import masked_attention, split_masks, without_cudnn_attention
from copyspec.targets.hooks.positions import positions_from_outside
from copyspec.targets.rows import RowSessions
from copyspec.targets.session import TreeSession, WrappedModel, last_logits, training_error

if TYPE_CHECKING:
    from copyspec.targets.base import Session


_UNCHANGED = nullcontext()

POSITIONS = 16
"""Positions that are made at once, for as many passes of a single token: one made alone takes three times as long."""


class CausalTarget(WrappedModel):
    """A decoder-only model. `supports_trees` is False if only chains, one row at a time, match its plain logits."""

    supports_drafts = True
    is_encoder_decoder = False

    def open(self, prompts: Sequence[Sequence[int]], new_tokens: int = 0) -> Session:
        if self.model.training:
            raise training_error(self.model)
        facts = self.facts
        if self.linears.counts:  # else no layer uses the module
            self.linears.check()
        if self.supports_trees and facts.positions != "mpt":
            return CausalSession(self, facts, len(prompts), new_tokens, few_shapes=facts.few_shapes)
        return RowSessions([CausalSession(self, facts, 1, new_tokens, few_shapes=facts.few_shapes) for _ in prompts])

    def start(self, prompt: Sequence[int]) -> list[int]:
        return list(prompt)


class CausalSession(TreeSession):
    """The session of a `CausalTarget`."""

    keeps_prefixes = True
    _positions: Mapping[int, torch.Tensor] = MappingProxyType({})  # [1, 1] each, of the next single tokens

    def _continue(self, chains: Sequence[Sequence[int]], start: int, kept: int) -> torch.Tensor:
        width = len(chains[0])
        tokens = torch.from_numpy(np.array(chains, dtype=np.int64))  # a third of the time of torch.tensor
        if not self._is_on_cpu:
            tokens = tokens.to(self._facts.device, non_blocking=True)
        if width > 1:
            positions = torch.arange(start, start + width, device=self._facts.device).unsqueeze(0)
            return self._forward(tokens, positions, None, kept, prompt=tokens.numel() if kept == 1 else 0)
        if start not in self._positions:
            following = range(start, start + POSITIONS)
            split = torch.arange(start, following.stop, device=self._facts.device).view(-1, 1, 1).unbind()
            self._positions = dict(zip(following, split, strict=True))
        return self._forward(tokens, self._positions[start], None, kept)

    def _score(self, columns: Columns) -> torch.Tensor:
        facts = self._facts
        self._cache.write = columns.write
        packed = torch.from_numpy(columns.packed)
        tokens, positions = packed if self._is_on_cpu else packed.to(facts.device, non_blocking=True)
        masks = columns.mask if columns.mask is not None else tree_masks(columns, facts)
        with _UNCHANGED if facts.attention is None and not facts.few_shapes else self._attending():
            if facts.positions == "argument":
                prompt = 0
                if self._is_on_cpu and facts.zero.dtype == torch.bfloat16 and tokens.shape[0] == 1:
                    prompt = columns.prompt
                    masks = split_masks(masks, columns.slots[0], columns.visible[0], prompt)
                return self._forward(tokens, positions, masks, columns.kept, prompt)
            keys = torch.from_numpy(columns.key_positions()).to(facts.device, non_blocking=True)
            with positions_from_outside(self._model, facts.positions, positions, keys):
                return self._forward(tokens, positions, masks, columns.kept)

    @contextmanager
    def _attending(self) -> Iterator[None]:
        facts = self._facts
        with masked_attention(self._model, facts.configs, facts.attention), without_cudnn_attention(facts.device):
            yield

    def _forward(
        self,
        tokens: torch.Tensor,
        positions: torch.Tensor,
        masks: torch.Tensor | dict[str, torch.Tensor] | None,
        kept: int,
        prompt: int = 0,
    ) -> torch.Tensor:
        """`prompt`: the leading tokens that read a prompt, as a pass of their own does in plain decoding."""
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
        linears = self._target.linears
        rows, width = tokens.shape
        pays = rows * width in linears.counts or rows * kept in linears.counts
        with linears.used(prompt, rows * width) if pays else _UNCHANGED:
            logits: torch.Tensor = self._model(**arguments).logits
        return logits if logits.shape[1] == kept else last_logits(logits, kept)
