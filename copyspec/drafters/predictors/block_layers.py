"""DFlash's drafter: a few decoder layers that predict a block of tokens in one pass (z-lab, 2026, arXiv 2602.06036).

The block is the last token and, behind it, one mask token for each that is to be predicted. Its tokens attend to each
other in both directions, and to keys and values made of the target's states in several layers at all earlier tokens.
The target's own output head then predicts the token at each mask, without knowing those at the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.nn.functional import linear, rms_norm, scaled_dot_product_attention, silu

from copyspec.drafters.predictors.feature_layer import LayerSizes, Tensors, rotated, rotation
from copyspec.drafters.predictors.head_pairs import KeptPairs


@dataclass(slots=True)
class BlockLayers:
    """The layers' weights. What rows have read is in a `PairMemory`."""

    tensors: Tensors  # "fc" [D, L D], "state_norm" and "norm" [D]
    blocks: Sequence[Tensors]  # of each layer: the matrices "q", "kv", "o", "gate_up", "down" and four norms
    sizes: LayerSizes
    size: int  # tokens of a block
    mask: int  # the mask token
    layers: tuple[int, ...]  # of the target, whose inputs are read; LAST: the last hidden states
    windows: Sequence[int]  # of each layer: the tokens back to which it attends, itself included; 0: to all, both ways
    output = None

    @property
    def depth(self) -> int:
        return self.size - 1

    @property
    def context(self) -> int:
        """Number of earlier tokens attended to."""
        return self.sizes.context

    def reads(self, layers: int) -> tuple[int, ...]:
        """See `MtpLayer.reads`."""
        return self.layers

    def moved(self, like: torch.Tensor) -> BlockLayers:
        """Return the layers on the device and in the dtype of `like`."""
        own, *blocks = (
            {name: tensor.to(like).contiguous() for name, tensor in tensors.items()}
            for tensors in (self.tensors, *self.blocks)
        )
        return BlockLayers(own, blocks, self.sizes, self.size, self.mask, self.layers, self.windows)

    def head_inputs(self, features: torch.Tensor) -> torch.Tensor:
        """Return the inputs of the output weights. [..., D]"""
        return self.norm(self.tensors["norm"], features)

    def norm(self, weight: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        return rms_norm(hidden, hidden.shape[-1:], weight, self.sizes.epsilon)

    def keys_and_values(
        self, tensors: Tensors, hidden: torch.Tensor, places: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of tokens [..., D] in one layer, [..., KV, d] each."""
        made = linear(hidden, tensors["kv"]).view(*hidden.shape[:-1], 2, -1, self.sizes.head_dim)
        return self._turned(tensors["k_norm"], made[..., 0, :, :], places), made[..., 1, :, :]

    def layer(
        self,
        number: int,
        hidden: torch.Tensor,
        places: torch.Tensor,
        context: Sequence[torch.Tensor],
        visible: torch.Tensor,
    ) -> torch.Tensor:
        """Run one layer on blocks, [B, m, D], at positions `places` [B, m]; `context`: keys and values of what is
        before them, [B, S, KV, d] each; `visible`: [B, m, S + m]."""
        tensors = self.blocks[number]
        normed = self.norm(tensors["before_norm"], hidden)
        queries = linear(normed, tensors["q"]).view(*normed.shape[:-1], -1, self.sizes.head_dim)
        queries = self._turned(tensors["q_norm"], queries, places)
        both = zip(context, self.keys_and_values(tensors, normed, places), strict=True)
        keys, values = [torch.cat(pair, 1).transpose(1, 2) for pair in both]
        attended = scaled_dot_product_attention(
            queries.transpose(1, 2), keys, values, visible[:, None], enable_gqa=True
        )
        hidden = hidden + linear(attended.transpose(1, 2).flatten(2), tensors["o"])
        gate, up = linear(self.norm(tensors["after_norm"], hidden), tensors["gate_up"]).chunk(2, -1)
        return hidden + linear(silu(gate) * up, tensors["down"])

    def features(self, pairs: KeptPairs, mask: torch.Tensor) -> torch.Tensor:
        """Read pairs, and predict a block behind the last of each row; `mask`: the embedding of the mask token, [1, D].
        Returns the features at the masks, [B, m - 1, D]."""
        states = self.norm(self.tensors["state_norm"], linear(pairs.states, self.tensors["fc"]))
        made = [self.keys_and_values(tensors, states, pairs.places) for tensors in self.blocks]
        pairs.write([part for both in made for part in both])
        context, counts, rows = pairs.read(), pairs.counts[:, None], len(pairs.counts)
        hidden = torch.cat([pairs.embeddings[pairs.last][:, None], mask.expand(rows, self.depth, -1)], 1)
        places = counts + torch.arange(self.size, device=counts.device)
        # Slot s holds the latest token whose place is s modulo the ring.
        slots = torch.arange(pairs.used, device=counts.device)
        keys_at = torch.cat([counts - 1 - (counts - 1 - slots) % pairs.memory.ring, places], 1)
        there, back = (keys_at >= 0)[:, None], places[:, :, None] - keys_at[:, None]
        for number, window in enumerate(self.windows):
            visible = there & (back >= 0) & (back < window) if window else there.expand_as(back)
            hidden = self.layer(number, hidden, places, context[2 * number : 2 * number + 2], visible)
        return hidden[:, 1:]

    def _turned(self, weight: torch.Tensor, heads: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        """Normalise and rotate heads, [..., H, d], at `places` [...]."""
        cos, sin = rotation(places, self.sizes.head_dim, self.sizes.theta, heads.dtype)
        return rotated(self.norm(weight, heads), cos, sin)
