"""Low-rank adapters (Hu et al. 2021) on a frozen Llama in plain torch: forward pass, loss, `peft` files.

The pass is written out so that a CPU computes only what the gradient needs: layers below the first adapted one keep
nothing for the backward pass, the last layer and the output head process answer positions only, and the softmax covers
only frequent tokens and those of the batch.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor

TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
_PLACE = {name: "mlp" if name in ("gate_proj", "up_proj", "down_proj") else "self_attn" for name in TARGETS}
_FREQUENT = 12288  # tokens of the softmax besides those of the batch; BPE ids are in order of frequency
Adapter = dict[str, tuple[Tensor, Tensor]]  # "LAYER.TARGET" -> A [rank, in], B [out, rank]


@dataclass(frozen=True)
class LoraShape:
    """Which layers are adapted, and how."""

    rank: int = 16
    alpha: float = 32.0
    first_layer: int = 15  # layers below it are not adapted

    @property
    def scale(self) -> float:
        return self.alpha / self.rank


class FrozenLlama:
    """Weights of a Llama folder as saved by transformers; the residual stream stays in float32.

    bfloat16 matrix products take 0.45 of the time of float32 on CPUs with instructions for them, and far longer on
    others.
    """

    def __init__(self, folder: Path, device: str = "cpu", dtype: torch.dtype | None = None) -> None:
        config: dict[str, Any] = json.loads((folder / "config.json").read_text())
        if config["model_type"] != "llama":
            raise ValueError(f"{str(folder)!r} holds a {config['model_type']}; adapters are trained on a llama")
        self.dtype = dtype or (torch.float32 if device == "cpu" else torch.bfloat16)
        weights = {k: v.to(device, self.dtype) for k, v in load_file(folder / "model.safetensors").items()}
        self.layers: int = config["num_hidden_layers"]
        self.heads: int = config["num_attention_heads"]
        self.shared: int = config["num_key_value_heads"]
        self.eps: float = config["rms_norm_eps"]
        theta = (config.get("rope_parameters") or config)["rope_theta"]
        self.width: int = config["hidden_size"]
        size = self.width // self.heads
        self._turns = theta ** -(torch.arange(0, size, 2, device=device) / size)
        self.embedding = weights["model.embed_tokens.weight"]
        self.head = weights.get("lm_head.weight", self.embedding)
        self.norm = weights["model.norm.weight"]
        self.norms = [
            tuple(weights[f"model.layers.{i}.{name}_layernorm.weight"] for name in ("input", "post_attention"))
            for i in range(self.layers)
        ]
        self.linear = {
            f"{i}.{name}": weights[f"model.layers.{i}.{_PLACE[name]}.{name}.weight"]
            for i in range(self.layers)
            for name in TARGETS
        }

    def new_adapter(self, shape: LoraShape, seed: int) -> Adapter:
        """Random A and zero B, so that the model is unchanged."""
        generator = torch.Generator().manual_seed(seed)
        adapter = {}
        for key, weight in self.linear.items():
            if int(key.split(".")[0]) >= shape.first_layer:
                a = torch.randn(shape.rank, weight.shape[1], generator=generator) / math.sqrt(weight.shape[1])
                adapter[key] = (a.to(weight.device), torch.zeros(weight.shape[0], shape.rank, device=weight.device))
        return adapter

    def loss(self, adapter: Adapter, shape: LoraShape, ids: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Summed cross-entropy of the tokens with a weight above 0, and the sum of the weights.

        ``ids``: [rows, length], padded right; ``weights``: [rows, length], of each token as a target.
        """
        length = ids.shape[1]
        wanted = weights[:, 1:] > 0
        asked = F.pad(wanted, (0, 1))  # positions whose next token is predicted
        angles = torch.outer(torch.arange(length, device=ids.device).float(), self._turns)
        cos, sin = (f(torch.cat((angles, angles), -1)).to(self.dtype) for f in (torch.cos, torch.sin))
        mask = torch.full((length, length), float("-inf"), device=ids.device, dtype=self.dtype).triu(1)
        x = self.embedding[ids].float()
        for i in range(self.layers):
            with torch.set_grad_enabled(torch.is_grad_enabled() and i >= shape.first_layer):
                x = x + self._attention(self._normed(x, self.norms[i][0]), i, adapter, shape, cos, sin, mask)
                if i == self.layers - 1:
                    x = x[asked]
                h = self._normed(x, self.norms[i][1])
                gate, up = (self._project(h, f"{i}.{name}", adapter, shape) for name in ("gate_proj", "up_proj"))
                x = x + self._project(F.silu(gate) * up, f"{i}.down_proj", adapter, shape)
        targets = ids[:, 1:][wanted]
        rare = torch.unique(targets[targets >= _FREQUENT])
        vocabulary = torch.cat((self.head[:_FREQUENT], self.head[rare]))
        places = torch.where(targets < _FREQUENT, targets, _FREQUENT + torch.searchsorted(rare, targets))
        logits = F.linear(self._normed(x, self.norm), vocabulary).float()
        chosen = weights[:, 1:][wanted].float()
        return (F.cross_entropy(logits, places, reduction="none") * chosen).sum(), chosen.sum()

    def _normed(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(x, (self.width,), weight.to(x.dtype), self.eps).to(self.dtype)

    def _project(self, x: Tensor, key: str, adapter: Adapter, shape: LoraShape) -> Tensor:
        out = F.linear(x, self.linear[key])
        if key in adapter:
            a, b = adapter[key]
            out = out + F.linear(F.linear(x, shape.scale * a.to(x.dtype)), b.to(x.dtype))
        return out

    def _attention(
        self, x: Tensor, i: int, adapter: Adapter, shape: LoraShape, cos: Tensor, sin: Tensor, mask: Tensor
    ) -> Tensor:
        rows, length, width = x.shape
        size = width // self.heads
        q, k, v = (
            self._project(x, f"{i}.{name}", adapter, shape).view(rows, length, -1, size).transpose(1, 2)
            for name in ("q_proj", "k_proj", "v_proj")
        )
        q, k = (t * cos + torch.cat((-t[..., size // 2 :], t[..., : size // 2]), -1) * sin for t in (q, k))
        if x.is_cuda:
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True).transpose(1, 2)
            return self._project(mixed.reshape(rows, length, width), f"{i}.o_proj", adapter, shape)
        groups = self.heads // self.shared
        q = q.reshape(rows * self.shared, groups * length, size)
        k, v = (t.reshape(rows * self.shared, length, size) for t in (k, v))
        # at these lengths the backward pass is several times faster than that of the attention kernel for CPUs
        scores = torch.baddbmm(mask.repeat(groups, 1), q, k.transpose(1, 2), alpha=size**-0.5)
        out = torch.bmm(scores.softmax(-1), v).view(rows, self.heads, length, size).transpose(1, 2)
        return self._project(out.reshape(rows, length, width), f"{i}.o_proj", adapter, shape)


def save_adapter(folder: Path, adapter: Adapter, shape: LoraShape, base: str) -> None:
    """Write the adapter as `peft` does: adapter_config.json and adapter_model.safetensors, in bfloat16."""
    folder.mkdir(parents=True, exist_ok=True)
    named = {}
    for key, (a, b) in adapter.items():
        layer, name = key.split(".")
        prefix = f"base_model.model.model.layers.{layer}.{_PLACE[name]}.{name}"
        named[f"{prefix}.lora_A.weight"] = a.detach().to("cpu", torch.bfloat16).contiguous()
        named[f"{prefix}.lora_B.weight"] = b.detach().to("cpu", torch.bfloat16).contiguous()
    save_file(named, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    config = {
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": base, "r": shape.rank,
        "lora_alpha": shape.alpha, "lora_dropout": 0.0, "bias": "none", "fan_in_fan_out": False,
        "target_modules": sorted(TARGETS), "layers_pattern": "layers", "inference_mode": True,
        "layers_to_transform": sorted({int(key.split(".")[0]) for key in adapter}),
    }  # fmt: skip
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=1) + "\n")


def load_adapter(folder: Path, adapter: Adapter) -> None:
    """Load the weights of :func:`save_adapter` into an adapter of the same shape; ValueError if it differs."""
    named = load_file(folder / "adapter_model.safetensors")
    with torch.no_grad():
        for key, pair in adapter.items():
            layer, name = key.split(".")
            for half, part in zip("AB", pair, strict=True):
                full = f"base_model.model.model.layers.{layer}.{_PLACE[name]}.{name}.lora_{half}.weight"
                tensor = named.pop(full, None)
                if tensor is None or tensor.shape != part.shape:
                    seen = None if tensor is None else tuple(tensor.shape)
                    raise ValueError(f"{full} in {str(folder)!r} is {seen}; this run has {tuple(part.shape)}")
                part.copy_(tensor)
    if named:
        raise ValueError(f"{str(folder)!r} has {next(iter(named))!r}, which this run does not adapt")
