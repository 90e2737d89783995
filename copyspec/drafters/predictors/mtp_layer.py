"""A model's own layer for multi-token prediction (MTP), a decoder layer of the kind that the model consists of.

The layer reads the pair of the target's last hidden state at token i and the embedding of token i + 1, attends to the
earlier pairs, and gives a state from which the model's output head predicts token i + 2 (DeepSeek-V3, 2024, arXiv
2412.19437). Models are published with one such layer. For further tokens it reads its own state again, with the token
drafted.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import torch
from torch import nn
from transformers import Cache

from copyspec.drafters.predictors.feature_layer import FEATURE_DEPTH
from copyspec.drafters.predictors.head_pairs import DraftNodes, KeptPairs, Where, sent
from copyspec.targets.base import LAST
from copyspec.targets.cpu.linears import FastLinears

CONTEXT = 4096
"""Pairs that are kept for attention. What a new word depends on is seldom further away, and what is
copied from there needs no prediction."""

MTP_ACCURACY = 0.8
"""Share of first tokens that are expected to be right before any was seen. Publishers report 0.85 to 0.9 (DeepSeek-V3,
MiMo); with less, a layer whose step takes half as long as a pass would seldom be tried."""

CHUNK = 1024
"""Pairs of a long text read at once."""

TAIL = 16
"""Pairs of a row that are read with attention, at most: more than a pass usually accepts."""


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
    """The layer's modules. What rows have read is in a `PairMemory`."""

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

    def moved(self, like: torch.Tensor) -> MtpLayer:
        """Move the layer to the device and dtype of `like`; weights in another dtype than most keep theirs."""
        usual = self.projection.weight.dtype
        for tensor in (*self.parameters(), *self.buffers()):
            tensor.data = tensor.data.to(like.device, like.dtype if tensor.dtype == usual else tensor.dtype)
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
        cache: Cache,
    ) -> torch.Tensor:
        """Return the features of pairs, [B, n, D] each, at positions `places` [B, n]; `mask`: additive,
        [B, 1, n, K]."""
        parts, count = self._parts, places.numel()
        inputs = [self.token_norm(embeddings), self.state_norm(states)]
        joined = torch.cat(inputs[::-1] if parts.states_first else inputs, -1)
        linears = self._linears
        pays = linears is not None and (linears.packs or count in linears.counts)
        with linears.used() if linears is not None and pays else nullcontext():
            hidden = self.projection(joined)
            # Rotary embeddings of models that see images have three kinds of positions, in text all the same.
            turned = places.expand(3, *places.shape) if hasattr(self.rotary, "mrope_section") else places
            named = {"position_embeddings": self.rotary(hidden, turned), parts.cache_name: cache}
            output = self.block(hidden, attention_mask=mask, position_ids=places, **named)
        features: torch.Tensor = output[0] if isinstance(output, tuple) else output
        return features if parts.undone is not None else parts.norm(features)

    def begin(self, pairs: KeptPairs) -> MtpNodes:
        """Read pairs; return the nodes behind the last of each row.

        In a single layer, keys and values depend on their own pair only, so that just the last pairs need attention.
        Those of a long text are computed without it, and the latest are padded to one size for all rows."""
        states, rows, size = self.entered(pairs.states), len(pairs.lengths), min(TAIL, max(pairs.lengths))
        firsts = accumulate(pairs.lengths, initial=0)
        beyond = [first + place for first, n in zip(firsts, pairs.lengths, strict=False) for place in range(n - TAIL)]
        for at in range(0, len(beyond), CHUNK):
            part = sent(np.array(beyond[at : at + CHUNK]), states.device)
            cache = _Filling(pairs, part)
            self(states[None, part], pairs.embeddings[None, part], pairs.places[None, part], None, cache)
        taken = pairs.last[:, None] + torch.arange(1 - size, 1, device=states.device)
        taken = torch.maximum(taken, pairs.first[:, None])  # the first pair as padding
        text = pairs.visible()[:, None]
        drafting, mask = _Drafting(pairs, taken), _additive(text.expand(rows, size, -1), states)
        features = self(states[taken], pairs.embeddings[taken], pairs.places[taken], mask, drafting)
        return MtpNodes(features[:, -1:], text[:, :, :0], text, pairs.counts, drafting)

    def follow(self, nodes: MtpNodes, parents: Where, embeddings: torch.Tensor) -> MtpNodes:
        """The nodes behind some of `nodes`, for tokens with these embeddings. [B, W, D]"""
        rows, width = parents[1].shape
        own = torch.eye(width, dtype=torch.bool, device=embeddings.device).expand(rows, -1, -1)
        along = torch.cat([nodes.along[parents], own], -1)
        mask = _additive(torch.cat([nodes.text.expand(rows, width, -1), along], -1), embeddings)
        places = nodes.places[:, None].expand(rows, width)
        features = self(nodes.features[parents], embeddings, places, mask, nodes.cache)
        return MtpNodes(features, along, nodes.text, nodes.places + 1, nodes.cache)


class _Filling(Cache):
    """Keeps keys and values of pairs whose features nobody needs: they attend to one of them."""

    def __init__(self, pairs: KeptPairs, which: torch.Tensor) -> None:
        super().__init__(layers=[])
        self._pairs, self._which = pairs, which

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: object, **kwargs: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Keep keys and values, [1, H, n, d]."""
        self._pairs.write([part[0].transpose(0, 1) for part in (key_states, value_states)], self._which)
        return key_states[:, :, -1:], value_states[:, :, -1:]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0


class _Drafting(Cache):
    """Keys and values of rows in a layer: those of pairs, then those of drafted nodes, level by level."""

    def __init__(self, pairs: KeptPairs, taken: torch.Tensor) -> None:
        super().__init__(layers=[])
        self._pairs, self._taken = pairs, taken
        self._space: list[torch.Tensor] = []  # [B, S, H, d] each
        self._count = 0  # slots in use

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: object, **kwargs: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write keys and values, [B, H, n, d]; return those of all slots in use."""
        parts, pairs = [part.transpose(1, 2) for part in (key_states, value_states)], self._pairs
        if not self._space:
            pairs.write([part.flatten(0, 1) for part in parts], self._taken.flatten())
            self._space, self._count = pairs.read(pairs.used + pairs.nodes), pairs.used
        else:
            before, self._count = self._count, self._count + parts[0].shape[1]
            for space, part in zip(self._space, parts, strict=True):
                space[:, before : self._count] = part
        keys, values = [space[:, : self._count].transpose(1, 2) for space in self._space]
        return keys, values

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self._count


@dataclass(frozen=True, slots=True)
class MtpNodes(DraftNodes):
    """Nodes, and what attention needs of them."""

    along: torch.Tensor  # [B, W, n], which of the n nodes drafted so far are on the path to each
    text: torch.Tensor  # [B, 1, S], slots that hold pairs
    places: torch.Tensor  # [B], positions of the pairs behind them
    cache: _Drafting


def _additive(visible: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """The mask that hides what is not `visible` [B, n, K], in the dtype of `like`. [B, 1, n, K]"""
    hidden = torch.zeros(visible.shape, dtype=like.dtype, device=like.device)
    return hidden.masked_fill_(~visible, torch.finfo(like.dtype).min)[:, None]
