"""Checkpoints with a layer for multi-token prediction, written in the layout of each family that publishes one."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import AutoModelForCausalLM, PreTrainedModel

from tests.helpers.models import tiny

WEIGHTS = "model.safetensors"


class Family(NamedTuple):
    """A family's names: of the block, the projection, the norms of embeddings and states, and the last norm."""

    model: str
    block: str
    projection: str
    token_norm: str
    state_norm: str
    norm: str | None
    states_first: bool = False
    layer: int = -1
    """The model's layer whose kind it is."""


_QWEN = (
    "mtp.layers.0.", "mtp.fc", "mtp.pre_fc_norm_embedding", "mtp.pre_fc_norm_hidden", "mtp.norm",
)  # fmt: skip
_DEEPSEEK = (
    "model.layers.2.", "model.layers.2.eh_proj", "model.layers.2.enorm", "model.layers.2.hnorm",
    "model.layers.2.shared_head.norm",
)  # fmt: skip
_MIMO = (
    "model.mtp_layers.0.", "model.mtp_layers.0.input_proj", "model.mtp_layers.0.token_layernorm",
    "model.mtp_layers.0.hidden_layernorm", "model.mtp_layers.0.final_layernorm",
)  # fmt: skip
_ERNIE = (
    "model.mtp_block.0.", "model.mtp_linear_proj.0", "model.mtp_emb_norm.0", "model.mtp_hidden_norm.0", None,
)  # fmt: skip

FAMILIES = {
    "Qwen3-Next": Family("qwen3_next", *_QWEN),
    "Qwen3.5": Family("qwen3_5_text", *_QWEN),
    "Qwen3.5 MoE": Family("qwen3_5_moe_text", *_QWEN),
    "DeepSeek-V3": Family("deepseek_v3", *_DEEPSEEK),
    "GLM-4 MoE": Family("glm4_moe", *_DEEPSEEK),
    "MiMo": Family("qwen2", *_MIMO, states_first=True),
    "Ernie 4.5": Family("ernie4_5_moe", *_ERNIE, layer=0),  # a dense layer, in a model of experts
}


def write(
    name: str, folder: Path, changes: Mapping[str, torch.Tensor | None] | None = None, **sizes: int
) -> PreTrainedModel:
    """Write a checkpoint of a family with random weights and load it. `changes`: tensors that replace or, with None,
    leave out others; `sizes`: of the configuration."""
    family = FAMILIES[name]
    model = tiny(family.model, **sizes)
    model.save_pretrained(folder)
    tensors = load_file(folder / WEIGHTS)
    tensors |= mtp_tensors(family, model)
    for key, change in (changes or {}).items():
        if change is None:
            del tensors[key]
        else:
            tensors[key] = change
    (folder / WEIGHTS).unlink()
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    loaded: PreTrainedModel = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    return loaded


def mtp_tensors(family: Family, model: PreTrainedModel) -> dict[str, torch.Tensor]:
    """The layer's tensors, drawn at random, as the family's checkpoints hold them."""
    generator = torch.Generator().manual_seed(5)

    def drawn(like: torch.Tensor) -> torch.Tensor:
        if like.dim() < 2:
            return torch.rand(like.shape, generator=generator) + 0.5
        return torch.randn(like.shape, generator=generator) * like.shape[-1] ** -0.5

    size = model.config.hidden_size
    tensors = {f"{family.projection}.weight": drawn(torch.empty(size, 2 * size))}
    for norm in (family.token_norm, family.state_norm, family.norm):
        if norm is not None:
            tensors[f"{norm}.weight"] = drawn(torch.empty(size))
    for key, like in model.base_model.layers[family.layer].state_dict().items():
        tensors |= _one_by_one(family, f"{family.block}{key}", drawn(like))
    return tensors


def _one_by_one(family: Family, name: str, weight: torch.Tensor) -> dict[str, torch.Tensor]:
    """Experts as they are published: each by itself, but for Qwen3.5's."""
    stem, _, last = name.rpartition(".")
    if not stem.endswith("experts") or weight.dim() < 3 or "3_5" in family.model:
        return {name: weight}
    tensors = dict[str, torch.Tensor]()
    for number, expert in enumerate(weight):
        parts = zip(("gate_proj", "up_proj"), expert.chunk(2), strict=True) if "gate" in last else [(last, expert)]
        tensors |= {f"{stem}.{number}.{part}.weight": tensor.contiguous() for part, tensor in parts}
    return tensors


def reference(
    name: str, model: PreTrainedModel, states: torch.Tensor, embeddings: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """What the layer that `write` wrote makes of n pairs of the model's last states and embeddings, [n, D] each: its
    states for a next step, and the inputs of the output head. As the families' own code computes it, with the model's
    classes, from the tensors as they were drawn."""
    family = FAMILIES[name]
    tensors = mtp_tensors(family, model)
    layer = copy.deepcopy(model.base_model.layers[family.layer])
    generator_order = {key: held_part(tensors, family, key) for key in layer.state_dict()}
    layer.load_state_dict(generator_order)

    def normed(x: torch.Tensor, key: str) -> torch.Tensor:
        norm: Any = copy.deepcopy(layer.input_layernorm)
        norm.weight = nn.Parameter(tensors[f"{key}.weight"])
        normalized: torch.Tensor = norm(x)
        return normalized

    parts = [normed(embeddings, family.token_norm), normed(states, family.state_norm)]
    joined = torch.cat(parts[::-1] if family.states_first else parts, -1)
    hidden = nn.functional.linear(joined, tensors[f"{family.projection}.weight"])[None]
    count = len(states)
    places = torch.arange(count)[None]
    mask = torch.full((1, 1, count, count), float("-inf")).triu(1)
    three = places.expand(3, 1, -1) if "3_5" in family.model else places  # Qwen3.5 also sees images
    turned = model.base_model.rotary_emb(hidden, three)
    output = layer(hidden, attention_mask=mask, position_ids=places, position_embeddings=turned)
    output = (output[0] if isinstance(output, tuple) else output)[0]
    if family.norm is None:
        return output, model.base_model.norm(output)
    last = normed(output, family.norm)
    return last, last


def held_part(tensors: dict[str, torch.Tensor], family: Family, key: str) -> torch.Tensor:
    """A weight of transformers' layer from the published tensors."""
    name = family.block + key
    if name in tensors:
        return tensors[name]
    stem, _, last = name.rpartition(".")
    kinds = ("gate_proj", "up_proj") if "gate" in last else (last,)
    experts = range(sum(name.startswith(stem) and name.endswith(f"{kinds[0]}.weight") for name in tensors))
    return torch.stack([torch.cat([tensors[f"{stem}.{expert}.{kind}.weight"] for kind in kinds]) for expert in experts])
