"""EAGLE's drafter: one decoder layer over the target's features, which predicts the next feature.

Feature i is the target's last hidden state at token i. The layer reads the pair of feature i and the embedding of token
i + 1, attends to the earlier pairs, and predicts feature i + 1, whose logits come from the target's output head (EAGLE,
Li et al. 2024, arXiv 2401.15077). EAGLE-3 (Li et al. 2025, arXiv 2503.01840) reads a mixture of three layers' states
instead, and has its own output weights. Draft trees grow by the layer's own probabilities, as in EAGLE-2 (arXiv
2406.16858).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch.nn.functional import linear, rms_norm, silu

from copyspec.drafters.predictors.head_pairs import DraftNodes, KeptPairs, Where
from copyspec.targets.base import LAST
from copyspec.targets.cpu.linears import Forward, few_row_product

Tensors = dict[str, torch.Tensor]

EPSILON, THETA, CONTEXT = 1e-6, 10_000.0, 2048  # defaults for files that do not state them
FEATURE_DEPTH = 6  # tokens ahead for a layer whose files do not say it; as in EAGLE's trees
PRODUCTS = ("fc", "qkv", "o", "gate_up", "down")


@dataclass(frozen=True, slots=True)
class LayerSizes:
    """The numbers that determine the shapes of a layer."""

    hidden: int
    inner: int
    heads: int
    kv_heads: int
    head_dim: int
    epsilon: float = EPSILON
    theta: float = THETA  # base of the rotary embedding
    is_fused: bool = False  # EAGLE-3: three states are mixed, and token and feature are normed and concatenated
    context: int = CONTEXT  # maximum number of earlier pairs attended to

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of all tensors except the optional ones: "fc_bias", "token_norm", "feature_norm"."""
        size, attended = self.hidden, self.heads * self.head_dim
        entered = 2 * size if self.is_fused else size
        shapes: dict[str, tuple[int, ...]] = {
            "fc": (size, (3 if self.is_fused else 2) * size),
            "qkv": (attended + 2 * self.kv_heads * self.head_dim, entered),
            "o": (size, attended),
            "gate_up": (2 * self.inner, size),
            "down": (size, self.inner),
            "after_norm": (size,),
        }
        return shapes | (dict.fromkeys(("token_norm", "feature_norm", "norm"), (size,)) if self.is_fused else {})


@dataclass(frozen=True, slots=True)
class Projected:
    """Attention inputs of n pairs of each of B rows."""

    residual: torch.Tensor  # [B, n, D]
    queries: torch.Tensor  # [B, n, KV, H / KV, d]
    keys: torch.Tensor  # [B, n, KV, d]
    values: torch.Tensor  # [B, n, KV, d]


@dataclass(slots=True)
class FeatureLayer:
    """The layer's weights. What rows have read is in a `PairMemory`."""

    tensors: Tensors
    sizes: LayerSizes
    depth: int
    output: torch.Tensor | None = None  # [V', D], its own output weights; None: the target's
    products: Mapping[str, Forward] = field(default_factory=dict)  # fast multiplications by these tensors
    layers: tuple[int, ...] = ()  # of the target, whose inputs EAGLE-3 reads; none: those that it is published with

    @property
    def context(self) -> int:
        """Number of earlier pairs attended to."""
        return self.sizes.context

    def reads(self, layers: int) -> tuple[int, ...]:
        """The layers of a target of so many whose inputs it reads; LAST: the last hidden states."""
        if not self.sizes.is_fused:
            return (LAST,)
        return self.layers or (2, layers // 2, layers - 3)

    def fused(self, states: torch.Tensor) -> torch.Tensor:
        """Features from the target's states: [..., D] unchanged, or [..., 3 D] mixed."""
        return self._times("fc", states) if self.sizes.is_fused else states

    def project(self, features: torch.Tensor, embeddings: torch.Tensor, places: torch.Tensor) -> Projected:
        """Project pairs, [B, n, D] each, at positions `places` of the text, [n] or [B, n]."""
        tensors, sizes = self.tensors, self.sizes
        if "token_norm" in tensors:
            embeddings = self._norm("token_norm", embeddings)
        if sizes.is_fused:
            residual, entered = features, torch.cat([embeddings, self._norm("feature_norm", features)], -1)
        else:
            residual = self._times("fc", torch.cat([embeddings, features], -1))
            if "fc_bias" in tensors:
                residual = residual + tensors["fc_bias"]
            entered = self._norm("feature_norm", residual) if "feature_norm" in tensors else residual
        rows, count = entered.shape[:2]
        heads = self._times("qkv", entered).view(rows, count, -1, sizes.head_dim)  # [B, n, H + 2 KV, d]
        queries, keys, values = torch.split(heads, [sizes.heads, sizes.kv_heads, sizes.kv_heads], -2)
        cos, sin = rotation(places, sizes.head_dim, sizes.theta, queries.dtype)
        queries, keys = rotated(queries, cos, sin), rotated(keys, cos, sin)
        return Projected(residual, queries.view(rows, count, sizes.kv_heads, -1, sizes.head_dim), keys, values)

    def attend(
        self,
        pairs: Projected,
        context: tuple[torch.Tensor, torch.Tensor],
        visible: torch.Tensor,
        own: tuple[torch.Tensor, torch.Tensor],
    ) -> torch.Tensor:
        """Return the next features of n pairs. [B, n, D]

        `context`: keys and values that all pairs attend to, [B, S, KV, d] each, unless `visible`, [n, S] or [B, 1, S],
        hides them.
        `own`: those of the path that leads to each pair, itself included, [B, n, L, KV, d] each.
        """
        queries = pairs.queries * self.sizes.head_dim**-0.5
        seen = torch.einsum("bnkgd,bskd->bnkgs", queries, context[0])
        seen = seen.masked_fill(~visible[..., None, None, :], float("-inf"))
        scores = torch.cat([seen, torch.einsum("bnkgd,bnlkd->bnkgl", queries, own[0])], -1)
        weights = scores.float().softmax(-1).to(own[1].dtype)
        count = context[0].shape[1]
        attended = torch.einsum("bnkgs,bskd->bnkgd", weights[..., :count], context[1])
        attended = attended + torch.einsum("bnkgl,bnlkd->bnkgd", weights[..., count:], own[1])
        features = pairs.residual + self._times("o", attended.flatten(-3))
        gate, up = self._times("gate_up", self._norm("after_norm", features)).chunk(2, -1)
        return features + self._times("down", silu(gate) * up)

    def begin(self, pairs: KeptPairs) -> FeatureNodes:
        """Read pairs; return the nodes behind the last of each row.

        In a single layer, keys and values depend on their own pair only, so that just the last pairs need attention.
        """
        made = self.project(self.fused(pairs.states)[None], pairs.embeddings[None], pairs.places[None])
        pairs.write([made.keys[0], made.values[0]])
        parts = made.residual, made.queries, made.keys, made.values
        last = Projected(*[part[0, pairs.last][:, None] for part in parts])
        none = last.keys[:, :, None][:, :, :0]  # no pair is of the draft
        return self._attended(last, _Text(pairs.read(), pairs.visible()[:, None], pairs.counts), (none, none))

    def follow(self, nodes: FeatureNodes, parents: Where, embeddings: torch.Tensor) -> FeatureNodes:
        """The nodes behind some of `nodes`, for tokens with these embeddings. [B, W, D]"""
        text = nodes.text
        places = (text.counts[:, None] + nodes.keys.shape[2]).expand_as(parents[1])
        pairs = self.project(nodes.features[parents], embeddings, places)
        before = zip((nodes.keys, nodes.values), (pairs.keys, pairs.values), strict=True)
        keys, values = [torch.cat([path[parents], own[:, :, None]], 2) for path, own in before]
        return self._attended(pairs, text, (keys, values))

    def _attended(self, pairs: Projected, text: _Text, own: tuple[torch.Tensor, torch.Tensor]) -> FeatureNodes:
        keys, values = text.context
        return FeatureNodes(self.attend(pairs, (keys, values), text.visible, own), *own, text)

    def head_inputs(self, features: torch.Tensor) -> torch.Tensor:
        """Return the inputs of the output weights. [..., D]"""
        return self._norm("norm", features) if self.sizes.is_fused else features

    def moved(self, like: torch.Tensor) -> FeatureLayer:
        """Return the layer on the device and in the dtype of `like`, with fast multiplications for few rows."""
        tensors = {name: tensor.to(like).contiguous() for name, tensor in self.tensors.items()}
        products = {name: few_row_product(tensors[name]) for name in PRODUCTS}
        output = None if self.output is None else self.output.to(like).contiguous()
        return FeatureLayer(tensors, self.sizes, self.depth, output, products, self.layers)

    def _norm(self, name: str, states: torch.Tensor) -> torch.Tensor:
        return rms_norm(states, states.shape[-1:], self.tensors[name].to(states.dtype), self.sizes.epsilon)

    def _times(self, name: str, states: torch.Tensor) -> torch.Tensor:
        product = self.products.get(name)
        return linear(states, self.tensors[name]) if product is None else product(states)


def rotation(places: torch.Tensor, size: int, theta: float, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines of the rotary embedding at positions `places` [...], for heads of this size. [..., 1, size]"""
    speeds = theta ** -(torch.arange(0, size, 2, device=places.device).float() / size)
    angles = torch.outer(places.float().flatten(), speeds).repeat(1, 2).view(*places.shape, 1, size)
    return angles.cos().to(dtype), angles.sin().to(dtype)


def rotated(heads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Apply rotary embeddings as Llama does, rotating the two halves of a head."""
    first, second = heads.chunk(2, -1)
    return heads * cos + torch.cat([-second, first], -1) * sin


@dataclass(frozen=True, slots=True)
class _Text:
    """What B rows have read."""

    context: Sequence[torch.Tensor]  # keys and values, [B, S, KV, d] each
    visible: torch.Tensor  # [B, 1, S], which of them are there
    counts: torch.Tensor  # [B], pairs read so far


@dataclass(frozen=True, slots=True)
class FeatureNodes(DraftNodes):
    """Nodes, with the keys and values of their paths' pairs, [B, W, L, KV, d] each; L = 0 at the root."""

    keys: torch.Tensor
    values: torch.Tensor
    text: _Text
