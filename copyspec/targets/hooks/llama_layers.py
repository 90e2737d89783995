"""Recognises decoder layers that compute what Llama's do, by their class and parts, for `cpu/layers.py` and
`static/fused_layers.py`, which compute them in fewer steps."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from types import MethodType
from typing import Any, NamedTuple

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from copyspec.targets.hooks.modules import cache_argument, decoder_layers, is_hooked, parameters_of

FAMILIES = ("Llama", "Mistral", "Qwen2", "Qwen3")
"""transformers' classes: RMSNorm, attention with rotary positions, RMSNorm, MLP with a SiLU gate, each added to its
input. Qwen3 also normalises each head of queries and keys."""

_ATTENTION = {"q_proj", "k_proj", "v_proj", "o_proj"}
_HEAD_NORMS = {"q_norm", "k_norm"}
_MLP = {"gate_proj", "up_proj", "down_proj", "act_fn"}


FusedAttention = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None, float], torch.Tensor]
"""Queries, [B, H, Q, D], keys and values, [B, H, K, D], a mask, and the factor of the scores to [B, Q, H, D]."""


Rotary = Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]
"""Hidden states, for their dtype, and positions, [B, Q], to cosines and sines, [B, Q, D]."""


class LlamaLayer(NamedTuple):
    """The parts of a layer."""

    layer: nn.Module
    attention: nn.Module
    linears: Sequence[nn.Linear]
    """Queries, keys, values, output, gate, up, down."""
    norms: Sequence[nn.Module | None]
    """Before attention, before the MLP, of queries, of keys; the latter two may be None."""
    places: Sequence[tuple[Mapping[str, nn.Module | None], str, nn.Module]]
    """Every part with its owner's modules and its name among them."""

    def is_unchanged(self) -> bool:
        """Whether the layer still consists of these parts, and none has a hook or another forward that would be
        skipped."""
        return all([owner.get(name) is part and is_unchanged(part) for owner, name, part in self.places])

    def has_plain_norms(self) -> bool:
        """Whether the norms' weights are contiguous parameters of the dtype of the linear layers."""
        dtype = self.linears[0].weight.dtype
        weights = [parameters_of(norm).get("weight") for norm in self.norms if norm is not None]
        return all([weight is not None and weight.dtype == dtype and weight.is_contiguous() for weight in weights])


class ReplacedLayer(ABC):
    """A layer whose passes over one kind of cache are computed otherwise than by its module, with the same results."""

    cache_kind: type
    entered = 0
    """Passes over that kind of cache that have reached this layer. If there are none, transformers calls layers in
    another way than this class knows."""
    computed = 0
    """Those of them that were computed here; the module ran the others."""

    def __init__(self, parts: LlamaLayer) -> None:
        self._parts, self._attention = parts, parts.attention
        self._forward = MethodType(type(parts.layer).forward, parts.layer)
        self._cache = cache_argument(list(inspect.signature(self._forward).parameters))

    def forward(
        self, hidden_states: torch.Tensor, attention_mask: torch.Tensor | None = None, *more: Any, **named: Any
    ) -> torch.Tensor:
        """The layer's forward, for passes over that kind of cache; any other pass runs its own."""
        cache, angles = named.get(self._cache), named.get("position_embeddings")
        if type(cache) is self.cache_kind and angles is not None:
            self.entered += 1
            ours = self._run(hidden_states, attention_mask, cache, *angles)
            if ours is not None:
                self.computed += 1
                return ours
        theirs: torch.Tensor = self._forward(hidden_states, attention_mask, *more, **named)
        return theirs

    @abstractmethod
    def _run(
        self,
        hidden: torch.Tensor,
        mask: torch.Tensor | None,
        cache: Any,
        cosines: torch.Tensor,
        sines: torch.Tensor,
    ) -> torch.Tensor | None:
        """The layer's output, [B, Q, D], with its keys and values written to the cache; None: the module must run."""


def llama_layers(model: nn.Module) -> Iterator[LlamaLayer]:
    """The layers of a model that compute what Llama's do; none if its class is not known to."""
    for layer in decoder_layers(model) if isinstance(model, PreTrainedModel) else ():
        kind = type(layer)
        family = kind.__name__.removesuffix("DecoderLayer")
        if family not in FAMILIES or not kind.__module__.startswith("transformers.models."):
            return
        parts = dict(layer.named_children())
        if set(parts) != {"self_attn", "mlp", "input_layernorm", "post_attention_layernorm"}:
            return
        attention, mlp = dict(parts["self_attn"].named_children()), dict(parts["mlp"].named_children())
        head_norms = _HEAD_NORMS if family == "Qwen3" else set[str]()
        if set(attention) != _ATTENTION | head_norms or set(mlp) != _MLP:
            return
        if type(mlp["act_fn"]).__name__ not in ("SiLU", "SiLUActivation"):
            return
        linears = [attention[name] for name in ("q_proj", "k_proj", "v_proj", "o_proj")]
        linears += [mlp[name] for name in ("gate_proj", "up_proj", "down_proj")]
        norms = [parts["input_layernorm"], parts["post_attention_layernorm"]]
        norms += [attention.get("q_norm"), attention.get("k_norm")]  # type: ignore[list-item]
        if any(type(linear) is not nn.Linear for linear in linears):
            return
        expected = [(parts["self_attn"], "Attention"), (parts["mlp"], "MLP")]
        expected += [(norm, "RMSNorm") for norm in norms if norm is not None]
        if any(
            (type(part).__module__, type(part).__name__) != (kind.__module__, family + name) for part, name in expected
        ):
            return
        owners = (layer, parts["self_attn"], parts["mlp"])
        places = [(owner._modules, name, part) for owner in owners for name, part in owner.named_children()]
        yield LlamaLayer(layer, parts["self_attn"], linears, norms, places)  # type: ignore[arg-type]


def rotary_of(model: nn.Module) -> Rotary | None:
    """A copy of the module that computes a Llama model's positions: some adapt to the longest they have seen."""
    rotary = getattr(getattr(model, "base_model", None), "rotary_emb", None)
    return deepcopy(rotary) if isinstance(rotary, nn.Module) else None


def is_unchanged(part: nn.Module) -> bool:
    """Whether calling a module runs its class's forward and nothing else: it has no hooks and no other forward."""
    return not ("forward" in vars(part) or is_hooked(part))


def attention_of(attention: nn.Module) -> FusedAttention:
    """The attention that the module calls. It must be one of transformers' registry, which "eager" is not."""
    call = ALL_ATTENTION_FUNCTIONS[object.__getattribute__(attention.config, "_attn_implementation_internal")]

    def attend(
        queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor | None, scaling: float
    ) -> torch.Tensor:
        output: torch.Tensor = call(attention, queries, keys, values, mask, dropout=0.0, scaling=scaling)[0]
        return output

    return attend
