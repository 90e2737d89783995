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


@dataclass(slots=True)
class BlockLayers:
    """The layers' weights. State of a row is in `BlockReader`."""

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

    def reader(self) -> BlockReader:
        """The state of a new row."""
        return BlockReader(len(self.blocks))

    def block(self, token: int) -> list[int]:
        """The block's tokens behind the text, which ends with `token`."""
        return [token, *[self.mask] * self.depth]

    def moved(self, like: torch.Tensor) -> BlockLayers:
        """Return the layers on the device and in the dtype of `like`."""
        held, *blocks = (
            {name: each.to(like).contiguous() for name, each in tensors.items()}
            for tensors in (self.tensors, *self.blocks)
        )
        return BlockLayers(held, blocks, self.sizes, self.size, self.mask, self.layers, self.windows)

    def head_inputs(self, features: torch.Tensor) -> torch.Tensor:
        """Return the inputs of the output weights. [..., D]"""
        return self.norm(self.tensors["norm"], features)

    def norm(self, weight: torch.Tensor, given: torch.Tensor) -> torch.Tensor:
        return rms_norm(given, given.shape[-1:], weight, self.sizes.epsilon)

    def keys_and_values(
        self, tensors: Tensors, given: torch.Tensor, places: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of n tokens in one layer, [KV, n, d] each."""
        keys, values = linear(given, tensors["kv"]).view(len(given), 2, -1, self.sizes.head_dim).unbind(1)
        return self._turned(tensors["k_norm"], keys, places), values.transpose(0, 1)

    def layer(
        self, number: int, hidden: torch.Tensor, places: torch.Tensor, held: tuple[torch.Tensor, torch.Tensor]
    ) -> torch.Tensor:
        """Run one layer on a block, [n, D], at positions `places` [n]; `held`: keys and values of what is before it."""
        tensors, window, mask = self.blocks[number], self.windows[number], None
        if window:
            count = held[0].shape[1] + len(places)
            keys_at = torch.arange(1 - count, 1, device=places.device) + places[-1]
            back = places[:, None] - keys_at
            mask = (back >= 0) & (back < window)
        given = self.norm(tensors["before_norm"], hidden)
        queries = linear(given, tensors["q"]).view(len(given), -1, self.sizes.head_dim)
        queries = self._turned(tensors["q_norm"], queries, places)
        keys, values = self.keys_and_values(tensors, given, places)
        keys, values = torch.cat([held[0], keys], 1), torch.cat([held[1], values], 1)
        found = scaled_dot_product_attention(queries[None], keys[None], values[None], mask, enable_gqa=True)
        hidden = hidden + linear(found[0].transpose(0, 1).flatten(1), tensors["o"])
        gate, up = linear(self.norm(tensors["after_norm"], hidden), tensors["gate_up"]).chunk(2, -1)
        return hidden + linear(silu(gate) * up, tensors["down"])

    def _turned(self, weight: torch.Tensor, heads: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        """Normalise and rotate heads, [n, H, d]; return them as [H, n, d]."""
        cos, sin = rotation(places, self.sizes.head_dim, self.sizes.theta, heads.dtype)
        return rotated(self.norm(weight, heads), cos, sin).transpose(0, 1)


class BlockReader:
    """State of one row: keys and values of the target's states read so far, by layer."""

    def __init__(self, layers: int) -> None:
        self._held: list[tuple[torch.Tensor, torch.Tensor] | None] = [None] * layers  # [KV, S, d] each
        self._places = 0

    def read(self, layers: BlockLayers, states: torch.Tensor, block: torch.Tensor) -> torch.Tensor:
        """Read the target's states at n further tokens, [n, L D], and predict from the embeddings of a block, [m, D].
        Returns the features at the masks, [m - 1, D]."""
        given = layers.norm(layers.tensors["state_norm"], linear(states, layers.tensors["fc"]))
        places = torch.arange(self._places, self._places + len(states) + len(block), device=states.device)
        hidden = block
        for number, tensors in enumerate(layers.blocks):
            pair, before = layers.keys_and_values(tensors, given, places[: len(states)]), self._held[number]
            if before is not None:
                pair = torch.cat([before[0], pair[0]], 1), torch.cat([before[1], pair[1]], 1)
            held = pair[0][:, -layers.context :], pair[1][:, -layers.context :]
            self._held[number] = held
            hidden = layers.layer(number, hidden, places[len(states) :], held)
        self._places += len(states)
        return hidden[1:]

    def skip(self, count: int) -> None:
        """Leave out the next `count` tokens."""
        self._places += count
