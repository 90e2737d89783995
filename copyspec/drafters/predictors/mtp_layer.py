"""A model's own layer for multi-token prediction (MTP), a decoder layer of the kind that the model consists of.

The layer reads the pair of the target's last hidden state at token i and the embedding of token i + 1, attends to the
earlier pairs, and gives a state from which the model's output head predicts token i + 2 (DeepSeek-V3, 2024, arXiv
2412.19437). Models are published with one such layer. For further tokens it reads its own state again, with the token
drafted.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
from transformers import Cache

from copyspec.drafters.predictors.feature_layer import FEATURE_DEPTH
from copyspec.targets.hooks.states import LAST
from copyspec.targets.linears import FastLinears
from copyspec.targets.passes import Buffers

CONTEXT = 4096
"""Earlier pairs that are kept for attention, at least. What a new word depends on is seldom further away, and what is
copied from there needs no prediction."""

MTP_ACCURACY = 0.8
"""Share of first tokens that are expected to be right before any was seen. Publishers report 0.85 to 0.9 (DeepSeek-V3,
MiMo); with less, a layer whose step takes half as long as a pass would seldom be tried."""

CHUNK = 1024
"""Pairs read at once, which bounds the memory of masks."""


@dataclass(frozen=True, slots=True)
class MtpParts:
    """The modules of a layer. `states_first`: the projection reads the state before the embedding, not after it."""

    block: nn.Module
    projection: nn.Linear
    token_norm: nn.Module
    state_norm: nn.Module
    norm: nn.Module
    """Before the output head."""
    rotary: nn.Module
    cache_name: str
    """Argument of the block's forward that takes the cache."""
    states_first: bool = False
    undone: nn.Module | None = None
    """The model's own last norm, where the layer was trained on states that have not passed it."""


class MtpLayer(nn.Module):
    """The layer's modules. The state of a row is in `MtpReader`."""

    depth, context = FEATURE_DEPTH, CONTEXT

    def __init__(
        self, parts: MtpParts, output: torch.Tensor | None = None, embeddings: torch.Tensor | None = None
    ) -> None:
        """`output`, `embeddings`: its own output weights and embeddings, [V, D] each; None: the model's."""
        super().__init__()
        self.block, self.projection, self.rotary = parts.block, parts.projection, parts.rotary
        self.token_norm, self.state_norm = parts.token_norm, parts.state_norm
        self.norm = None if parts.undone is not None else parts.norm  # else it is the model's
        self.output, self.embeddings = output, embeddings
        self._parts = parts
        self._linears: FastLinears | None = None
        self.requires_grad_(False).train(False)

    def reads(self, layers: int) -> tuple[int, ...]:
        """The target's layers whose inputs it reads; LAST: the last hidden states."""
        return (LAST,)

    def reader(self) -> MtpReader:
        """The state of a new row."""
        return MtpReader()

    def moved(self, like: torch.Tensor) -> MtpLayer:
        """Move the layer to the device and dtype of `like`; weights in another dtype than most keep theirs."""
        usual = self.projection.weight.dtype
        for each in (*self.parameters(), *self.buffers()):
            each.data = each.data.to(like.device, like.dtype if each.dtype == usual else each.dtype)
        self._linears = FastLinears(self) if like.dtype == torch.float32 else None
        return self

    def head_inputs(self, features: torch.Tensor) -> torch.Tensor:
        """Return the inputs of the output weights. [..., D]"""
        normed: torch.Tensor = features if self._parts.undone is None else self._parts.norm(features)
        return normed

    def entered(self, states: torch.Tensor) -> torch.Tensor:
        """States of the target, [n, D], as the layer reads them. The norm whose weight is taken out again had divided
        each state by its length, which the norm of the layer does anyway."""
        weight = getattr(self._parts.undone, "weight", None)
        if weight is None:
            return states
        return states / torch.where(weight.abs() > torch.finfo(weight.dtype).tiny, weight, 1.0)

    def forward(
        self,
        states: torch.Tensor,
        embeddings: torch.Tensor,
        places: torch.Tensor,
        mask: torch.Tensor | None,
        cache: LayerCache,
    ) -> torch.Tensor:
        """Return the features of n pairs, [n, D] each, at positions `places` [n]; `mask`: additive, [1, 1, n, K]."""
        parts, count = self._parts, len(states)
        given = [self.token_norm(embeddings), self.state_norm(states)]
        joined = torch.cat(given[::-1] if parts.states_first else given, -1)
        linears = self._linears
        pays = linears is not None and (linears.packs or count in linears.counts)
        with linears.used() if linears is not None and pays else nullcontext():
            hidden = self.projection(joined)[None]
            positions = places[None]
            # Rotary embeddings of models that see images have three kinds of positions, in text all the same.
            turned = positions.expand(3, 1, -1) if hasattr(self.rotary, "mrope_section") else positions
            named = {"position_embeddings": self.rotary(hidden, turned), parts.cache_name: cache}
            found = self.block(hidden, attention_mask=mask, position_ids=positions, **named)
        features: torch.Tensor = (found[0] if isinstance(found, tuple) else found)[0]
        return features if parts.undone is not None else parts.norm(features)


class LayerCache(Cache):
    """Keys and values of one row in one layer: those of the pairs read so far, then those of drafted nodes."""

    def __init__(self) -> None:
        super().__init__(layers=[])
        self.count = 0
        """Slots in use; the next pairs are written behind them."""
        self._buffers: Buffers | None = None

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: object, **kwargs: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write keys and values, [1, H, n, d]; return those of all slots in use."""
        keys, values = key_states[0], value_states[0]
        if self._buffers is None:
            self._buffers = Buffers(keys, values, keys.shape[1])
        self._buffers.write(self.count, keys, values)
        self.count += keys.shape[1]
        held = self._buffers
        return held.keys[None, :, : self.count], held.values[None, :, : self.count]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.count

    def keep_last(self, count: int) -> None:
        """Forget all but the last `count` slots."""
        assert self._buffers is not None
        keys, values = self._buffers.read(self.count - count, self.count)
        self._buffers, self.count = Buffers(keys, values, count), count
        self._buffers.write(0, keys, values)


@dataclass(frozen=True, slots=True)
class MtpNode:
    """The feature after a draft path, [D], and the slots of the path's pairs; none at the root."""

    feature: torch.Tensor
    slots: tuple[int, ...]


class MtpReader:
    """State of one row in the layer."""

    def __init__(self) -> None:
        self._cache = LayerCache()
        self._held = 0  # slots of pairs that were read; nodes of a draft stand behind them
        self._places = 0  # position of the next pair

    def read(self, layer: MtpLayer, states: torch.Tensor, embeddings: torch.Tensor) -> MtpNode:
        """Read n further pairs, states [n, D] and embeddings [n, D]; return the node after the last of them."""
        if self._held > 2 * layer.context:
            self._cache.count = self._held
            self._cache.keep_last(layer.context)
            self._held = layer.context
        feature = states
        for begin in range(0, len(states), CHUNK):
            part, tokens = layer.entered(states[begin : begin + CHUNK]), embeddings[begin : begin + CHUNK]
            self._cache.count, count = self._held, len(part)
            visible = np.tri(count, self._held + count, self._held, np.bool_)
            feature = layer(part, tokens, self._after(part, range(count)), _additive(visible, part), self._cache)
            self._held += count
            self._places += count
        return MtpNode(feature[-1], ())

    def skip(self, count: int) -> None:
        """Leave out the next `count` pairs, which no pair that is read later attends to."""
        self._places += count

    def step(self, layer: MtpLayer, nodes: Sequence[MtpNode], embeddings: torch.Tensor) -> list[MtpNode]:
        """Return the nodes after `nodes`, which have equal depth, for tokens with these embeddings. [n, D]"""
        states, first = torch.stack([node.feature for node in nodes]), self._cache.count
        paths = [(*node.slots, first + number) for number, node in enumerate(nodes)]
        visible = np.zeros((len(nodes), first + len(nodes)), np.bool_)
        visible[:, : self._held] = True
        for row, path in zip(visible, paths, strict=True):
            row[list(path)] = True
        places = self._after(states, [len(nodes[0].slots)] * len(nodes))
        features = layer(states, embeddings, places, _additive(visible, states), self._cache)
        return [MtpNode(*each) for each in zip(features, paths, strict=True)]

    def _after(self, like: torch.Tensor, offsets: Sequence[int]) -> torch.Tensor:
        return torch.tensor([self._places + offset for offset in offsets], device=like.device)


def _additive(visible: np.ndarray[tuple[int, int], np.dtype[np.bool_]], like: torch.Tensor) -> torch.Tensor | None:
    """The mask that hides what is not `visible` [n, K], in the dtype of `like`, [1, 1, n, K]; None: all is."""
    if visible.all():
        return None
    seen = torch.from_numpy(visible).to(like.device)
    lowest = torch.finfo(like.dtype).min
    return torch.zeros(seen.shape, dtype=like.dtype, device=like.device).masked_fill(~seen, lowest)[None, None]
