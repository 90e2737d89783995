"""Draft heads: what tells the tokens after the next one from the target's last hidden state.

The target's head says token t + 1 of the state at t. Parallel heads (Stern et al. 2018, arXiv 1811.03115; Medusa, Cai
et al. 2024, arXiv 2401.10774) say the ones behind it, each from that state alone. A recurrent head is told which tokens
came in between, and carries a state of its own from one to the next (Hydra, Ankner et al. 2024, arXiv 2402.05109;
ReDrafter, Cheng et al. 2024, arXiv 2403.09919). Either may share the target's output weights, all of them or the rows
of its most frequent tokens (FR-Spec, Zhao et al. 2025, arXiv 2502.14856).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch.nn.functional import linear, rms_norm, silu

from copyspec.drafters.predictors.feature_layer import FeatureLayer, Tensors
from copyspec.targets.linears import Forward, few_row_product

EPSILON = 1e-6


@dataclass(slots=True)
class ParallelHeads:
    """A residual block or several per head, and the head's own output weights or the target's."""

    blocks: list[list[Tensors]]  # [depth][layers]: "weight" [D, D] and "bias" [D], or "down" [R, D] and "up" [D, R]
    outputs: list[torch.Tensor] = field(default_factory=list)  # [depth], [V, D]; empty: the target's

    @property
    def depth(self) -> int:
        return len(self.blocks)

    def features(self, state: torch.Tensor) -> torch.Tensor:
        """What output weights make logits of: of states [n, D] for each head. [depth, n, D]"""
        return torch.stack([self._feature(state, layers) for layers in self.blocks])

    def logits(self, state: torch.Tensor, shared: torch.Tensor) -> torch.Tensor:
        """Of each head, for one state [1, D]; `shared` [V, D]: the target's output weights. [depth, V]"""
        features = self.features(state)[:, 0]
        if not self.outputs:
            return linear(features, shared)
        pairs = zip(features, self.outputs, strict=True)
        return torch.stack([linear(feature, weight) for feature, weight in pairs])

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
    """One step for all depths: state and token embedding in, the next state out, whose logits are the target head's."""

    tensors: Tensors  # "gate" and "up" [I, 2 D], "down" [D, I], "norms" [2, D]; with layers "mix" [D, L D]
    depth: int
    layers: Sequence[int] = ()  # of the target, what these L were given is read beside its last state
    products: Mapping[str, Forward] = field(default_factory=dict)  # faster ones with these tensors

    def entered(self, states: torch.Tensor) -> torch.Tensor:
        """The state that drafting begins with, of the target's last one and what the layers were given.
        [n, (1 + L) D] -> [n, D]

        Layers in the middle know more of the tokens behind the next one than the last state does (Pal et al. 2023,
        arXiv 2311.04897; EAGLE-3)."""
        if not self.layers:
            return states
        size = states.shape[-1] // (1 + len(self.layers))
        last, *inner = torch.split(states, size, -1)
        known = torch.cat([rms_norm(each, (size,), None, EPSILON) for each in inner], -1)
        return torch.add(last, self._times("mix", known))

    def step(self, states: torch.Tensor, embeddings: torch.Tensor) -> torch.Tensor:
        """The states after these tokens. [n, D] each"""
        held, size = self.tensors, states.shape[-1:]
        before, token = held["norms"][0], held["norms"][1]
        given = torch.cat([rms_norm(states, size, before, EPSILON), rms_norm(embeddings, size, token, EPSILON)], -1)
        return states + self._times("down", silu(self._times("gate", given)) * self._times("up", given))

    def _times(self, name: str, given: torch.Tensor) -> torch.Tensor:
        product = self.products.get(name)
        return linear(given, self.tensors[name]) if product is None else product(given)


Heads = ParallelHeads | RecurrentHead | FeatureLayer


def moved(heads: Heads, like: torch.Tensor) -> Heads:
    """The heads on the device and in the dtype of `like`."""
    if isinstance(heads, FeatureLayer):
        return heads.moved(like)
    if isinstance(heads, RecurrentHead):
        tensors = {name: each.to(like).contiguous() for name, each in heads.tensors.items()}
        products = {name: few_row_product(each) for name, each in tensors.items() if name != "norms"}
        return RecurrentHead(tensors, heads.depth, heads.layers, products)
    blocks = [[{name: each.to(like) for name, each in block.items()} for block in layers] for layers in heads.blocks]
    return ParallelHeads(blocks, [each.to(like) for each in heads.outputs])


def probe(weight: torch.Tensor) -> torch.Tensor:
    """A few of a model's output weights, [V, D], by which heads know the model that they were trained on. [64]"""
    rows = torch.linspace(0, weight.shape[0] - 1, 64, device=weight.device).long()
    columns = torch.arange(64, device=weight.device) * 7 % weight.shape[1]
    return weight.detach()[rows, columns].float().cpu()
