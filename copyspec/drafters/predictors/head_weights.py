"""Draft heads: small networks that predict the tokens after the next one from the target's last hidden state.

The target's own output head predicts token t + 1 from the state at t. Parallel heads (Stern et al. 2018, arXiv
1811.03115; Medusa, Cai et al. 2024, arXiv 2401.10774) predict the tokens after it, each from that state alone. A
recurrent head also reads the tokens in between and passes its own state on (Hydra, Ankner et al. 2024, arXiv
2402.05109; ReDrafter, Cheng et al. 2024, arXiv 2403.09919). Both may share the target's output weights, or only the
rows of its most frequent tokens (FR-Spec, Zhao et al. 2025, arXiv 2502.14856).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch.nn.functional import linear, rms_norm, silu

from copyspec.drafters.predictors.block_layers import BlockLayers
from copyspec.drafters.predictors.feature_layer import FeatureLayer, Tensors
from copyspec.drafters.predictors.head_pairs import DraftNodes, Pairs, Where
from copyspec.drafters.predictors.mtp_layer import MtpLayer
from copyspec.targets.base import LAST
from copyspec.targets.cpu.linears import Forward, few_row_product

EPSILON = 1e-6


@dataclass(slots=True)
class ParallelHeads:
    """One or more residual blocks per head, and the output weights, the head's own or the target's."""

    blocks: list[list[Tensors]]  # [depth][layers]: "weight" [D, D] and "bias" [D], or "down" [R, D] and "up" [D, R]
    outputs: list[torch.Tensor] = field(default_factory=list)  # [depth], [V, D]; empty: the target's
    context, output = 0, None

    @property
    def depth(self) -> int:
        return len(self.blocks)

    def reads(self, layers: int) -> tuple[int, ...]:
        """See `MtpLayer.reads`."""
        return (LAST,)

    def moved(self, like: torch.Tensor) -> ParallelHeads:
        """Return the heads on the device and in the dtype of `like`."""
        blocks = [[{name: tensor.to(like) for name, tensor in block.items()} for block in head] for head in self.blocks]
        return ParallelHeads(blocks, [output.to(like) for output in self.outputs])

    def features(self, state: torch.Tensor) -> torch.Tensor:
        """Inputs of the output weights, per head, for states [n, D]. [depth, n, D]"""
        return torch.stack([self._feature(state, layers) for layers in self.blocks])

    def logits(self, states: torch.Tensor, product: Forward) -> torch.Tensor:
        """Logits of each head for states [n, D]; `product`: by the target's output weights. [n, depth, V]"""
        features = self.features(states).transpose(0, 1)
        if not self.outputs:
            return product(features)
        pairs = zip(features.unbind(1), self.outputs, strict=True)
        return torch.stack([linear(feature, weight) for feature, weight in pairs], 1)

    @staticmethod
    def _feature(state: torch.Tensor, layers: Sequence[Tensors]) -> torch.Tensor:
        for block in layers:
            if "down" in block:
                state = state + linear(silu(linear(state, block["down"])), block["up"])
            else:
                state = state + silu(linear(state, block["weight"], block["bias"]))
        return state


@dataclass(slots=True)
class RecurrentHead:
    """One step for all depths: maps a state and a token embedding to the next state, an input of the output weights."""

    tensors: Tensors  # "gate" and "up" [I, 2 D], "down" [D, I], "norms" [2, D]; with layers "mix" [D, L D]
    depth: int
    layers: Sequence[int] = ()  # of the target: the inputs of these L layers are read beside its last state
    products: Mapping[str, Forward] = field(default_factory=dict)  # fast multiplications by these tensors
    context, output = 0, None

    def __post_init__(self) -> None:
        if "gate" in self.tensors:  # one product, norms included, in place of two and two norms
            tensors = dict(self.tensors)
            gate_up = torch.cat([tensors.pop("gate"), tensors.pop("up")]) * tensors.pop("norms").flatten()
            self.tensors = tensors | {"gate_up": gate_up}

    def reads(self, layers: int) -> tuple[int, ...]:
        """See `MtpLayer.reads`."""
        return (LAST, *self.layers)

    def moved(self, like: torch.Tensor) -> RecurrentHead:
        """Return the head on the device and in the dtype of `like`."""
        tensors = {name: tensor.to(like).contiguous() for name, tensor in self.tensors.items()}
        products = {name: few_row_product(tensor) for name, tensor in tensors.items()}
        return RecurrentHead(tensors, self.depth, self.layers, products)

    def entered(self, states: torch.Tensor) -> torch.Tensor:
        """Map the target's last state and the inputs of `layers` to the first draft state. [n, (1 + L) D] -> [n, D]

        Middle layers hold more information on the tokens after the next one than the last state does (Pal et al. 2023,
        arXiv 2311.04897; EAGLE-3)."""
        if not self.layers:
            return states
        size = states.shape[-1] // (1 + len(self.layers))
        last, *inner = torch.split(states, size, -1)
        known = torch.cat([rms_norm(state, (size,), None, EPSILON) for state in inner], -1)
        return torch.add(last, self._times("mix", known))

    def step(self, states: torch.Tensor, embeddings: torch.Tensor) -> torch.Tensor:
        """Return the states after these tokens. [..., D] each"""
        normed = rms_norm(torch.stack([states, embeddings], -2), states.shape[-1:], None, EPSILON)
        gate, up = self._times("gate_up", normed.flatten(-2)).chunk(2, -1)
        return states + self._times("down", silu(gate) * up)

    def begin(self, pairs: Pairs) -> DraftNodes:
        """The nodes behind one pair of each row."""
        return DraftNodes(self.step(self.entered(pairs.states), pairs.embeddings)[:, None])

    def follow(self, nodes: DraftNodes, parents: Where, embeddings: torch.Tensor) -> DraftNodes:
        """The nodes behind some of `nodes`, for tokens with these embeddings. [B, W, D]"""
        return DraftNodes(self.step(nodes.features[parents], embeddings))

    def head_inputs(self, features: torch.Tensor) -> torch.Tensor:
        """Return the inputs of the output weights. [..., D]"""
        return features

    def _times(self, name: str, states: torch.Tensor) -> torch.Tensor:
        product = self.products.get(name)
        return linear(states, self.tensors[name]) if product is None else product(states)


AtOnce = ParallelHeads | BlockLayers
"""Heads that predict several tokens at once, each without knowing the others."""

Stepwise = FeatureLayer | MtpLayer
"""Layers that read pairs of a state and the token behind it, and then their own states, one token at a time."""

Heads = AtOnce | Stepwise | RecurrentHead
"""All of them are given hidden states of the target and propose tokens. `reads` tells which states, `context` how many
earlier tokens they attend to, in a reader of each row, and `output` their own output weights, [V', D], if any."""


def probe(weight: torch.Tensor) -> torch.Tensor:
    """Return 64 of a model's output weights, [V, D], which identify the model that heads were trained on. [64]"""
    rows = torch.linspace(0, weight.shape[0] - 1, 64, device=weight.device).long()
    columns = torch.arange(64, device=weight.device) * 7 % weight.shape[1]
    return weight.detach()[rows, columns].float().cpu()
