"""Facts read from a model: its device, limits, kinds of attention, and the arguments of its forward."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from transformers import PreTrainedConfig

from copyspec.targets.hooks.attention import configs
from copyspec.targets.hooks.grouped import NAME as GROUPED
from copyspec.targets.hooks.grouped import group_size
from copyspec.targets.hooks.modules import cache_argument
from copyspec.targets.hooks.positions import PositionStyle, position_style
from copyspec.targets.hooks.recurrence import STATE_KINDS
from copyspec.targets.model.limits import max_length

if TYPE_CHECKING:
    import numpy.typing as npt
    from torch import nn
    from transformers import PreTrainedModel

_MASK_FORMATS: dict[torch.dtype, npt.DTypeLike] = {
    torch.float32: np.float32,
    torch.float64: np.float64,
    torch.float16: np.float16,
    torch.bfloat16: np.int16,  # NumPy has none
}

_PARTS = {
    "hybrid": ("hybrid", "full_attention", "linear_attention"),
    "hybrid_sliding": ("hybrid_sliding", "sliding_attention", "linear_attention"),
    "mamba": ("linear_attention",),
    "moe": (),
    "mlp": (),
}
"""The kinds of masks that layers of a kind ask for, besides those of its own name."""

ATTENTION_KINDS = frozenset(
    {"full_attention", "sliding_attention", "chunked_attention", "indexed_attention", "deepseek_sparse_attention"}
)


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What a target needs to know of its model, read when the model is wrapped."""

    device: torch.device  # of the input embeddings, where token ids are sent
    non_blocking: bool  # whether copies to it need not be waited for; on MPS they read freed memory
    zero: torch.Tensor  # [], value of a visible key in an additive mask, in the model's dtype
    lowest: torch.Tensor  # [], value of a hidden key
    vocab_size: int
    max_length: int | None
    arguments: frozenset[str]  # of the model's forward
    cache: str  # the one that takes the cache: "past_key_values" before transformers 5.24, "cache" since
    kinds: tuple[str, ...]  # of attention layers; models of one kind take one mask, others a dict by kind
    window: int | None  # of sliding layers
    chunk: int | None  # of chunked layers
    positions: PositionStyle
    configs: tuple[PreTrainedConfig, ...]  # of the model and its parts, each with its own attention implementation
    attention: str | None  # of passes with masks, in transformers' registry; None: the model's own
    caps_scores: bool
    """Whether the model's own attention caps scores where a layer asks for it. PyTorch's, which transformers 5.17 gives
    Gemma 2, leaves the cap out, and so do outputs of `generate` then."""
    group: int  # query heads per key head for which `attention` takes a mask each, after each other
    mask_format: tuple[npt.DTypeLike, int] | None
    """NumPy's dtype of the size of the model's, and the bits of `lowest`, where one mask on a CPU serves all layers."""

    def additive(self, visible: torch.Tensor) -> torch.Tensor:
        """Convert `visible` [B, 1, Q, K] to an additive mask [B, 1, Q, K]: 0 where visible, else the lowest number.
        Grouped attention gets the masks of the heads of a group after each other, [B, 1, G * Q, K]."""
        seen = visible if self.zero.is_cpu else visible.to(self.device, non_blocking=self.non_blocking)
        if self.group == 1:
            return torch.where(seen, self.zero, self.lowest)
        mask = torch.where(seen.expand(-1, self.group, -1, -1), self.zero, self.lowest)
        return mask.reshape(len(mask), 1, -1, mask.shape[3])

    def by_kind(self, make: Callable[[str], Any]) -> Any:
        """What `make` gives for each kind of attention layers, None for recurrent ones: one, or a dict by kind if there
        are several, as models take masks."""
        made = {kind: None if kind in STATE_KINDS else make(kind) for kind in self.kinds}
        return made if len(made) > 1 else made[self.kinds[0]]

    def near(self, kind: str, positions: Any, keys: Any) -> Any:
        """Whether tokens at `positions`, [n, 1], are within a layer's window or chunk of `keys`, [1 or n, L], which are
        not behind them: arrays or tensors. None: a layer of this kind has neither."""
        if kind == "sliding_attention" and self.window is not None:
            return positions - keys < self.window
        if kind == "chunked_attention" and self.chunk is not None:
            return positions // self.chunk == keys // self.chunk
        return None


def vocabulary_size(model: PreTrainedModel) -> int:
    """Number of tokens that the model may write."""
    config = model.config.get_text_config(decoder=True)
    return int(getattr(config, "decoder_vocab_size", None) or config.vocab_size)


def read_facts(model: PreTrainedModel) -> ModelFacts:
    """Read the facts of a causal or encoder-decoder model."""
    config = model.config.get_text_config(decoder=True)
    device, dtype = read_device(model), read_dtype(model)
    arguments = forward_arguments(model)
    positions = position_style(model, frozenset(arguments))
    window = getattr(config, "sliding_window", None)
    chunk = getattr(config, "attention_chunk_size", None)
    kinds = _attention_kinds(config, window, chunk)
    lowest = torch.full((), torch.finfo(dtype).min, dtype=dtype, device="cpu")
    group = group_size(model, config) if positions == "argument" else 1
    mask_format = None
    if device.type == "cpu" and kinds == ("full_attention",) and dtype in _MASK_FORMATS:
        as_bytes = bytes(lowest.unsqueeze(0).view(torch.uint8).tolist())
        mask_format = _MASK_FORMATS[dtype], int.from_bytes(as_bytes, sys.byteorder)
    return ModelFacts(
        device=device,
        non_blocking=device.type == "cuda",
        zero=torch.zeros((), dtype=dtype, device=device),
        lowest=lowest.to(device),
        vocab_size=vocabulary_size(model),
        max_length=None if positions in ("relative", "bloom") else max_length(config),  # distance biases have no limit
        arguments=frozenset(arguments),
        cache=cache_argument(arguments),
        kinds=kinds,
        window=window,
        chunk=chunk,
        positions=positions,
        configs=_configs_of(model),
        attention=GROUPED if group > 1 else None,
        caps_scores=getattr(config, "_attn_implementation", None) != "sdpa",
        group=1 if device.type == "cpu" else group,
        mask_format=mask_format,
    )


def forward_arguments(model: nn.Module, *, of_class: bool = False) -> Sequence[str]:
    """The arguments that the model's forward takes. One with `**kwargs` that replaces another passes them on to it, and
    its own come first. `of_class`: those of the class, for a model whose own forward was replaced."""
    forwards = [vars(kind)["forward"] for kind in type(model).__mro__ if "forward" in vars(kind)]
    names: list[str] = []
    for forward in forwards if of_class else [model.forward, *forwards]:
        try:
            parameters = inspect.signature(forward).parameters
        except (TypeError, ValueError):  # a callable without a signature
            continue
        names += parameters
        if not any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values()):
            break
    return names


def read_device(model: PreTrainedModel) -> torch.device:
    """The device to send token ids to: that of the input embeddings."""
    device = _embeddings(model).device
    if device.type != "meta":
        return device
    if model.device.type != "meta":
        return model.device
    # All weights are offloaded; accelerate's hooks move them for each forward.
    hook = getattr(model.get_input_embeddings(), "_hf_hook", None)
    hooks = (hook, *getattr(hook, "hooks", ()))
    places = [hook.execution_device for hook in hooks if getattr(hook, "execution_device", None) is not None]
    return torch.device(places[0]) if places else device


def read_dtype(model: PreTrainedModel) -> torch.dtype:
    """The dtype of activations and masks: that of the input embeddings, unless they are quantised."""
    dtype = _embeddings(model).dtype
    quantised = not dtype.is_floating_point or dtype.itemsize == 1
    return model.dtype if quantised else dtype


def _embeddings(model: PreTrainedModel) -> torch.Tensor:
    weight = model.get_input_embeddings().weight
    assert isinstance(weight, torch.Tensor)
    return weight


def _configs_of(model: PreTrainedModel) -> tuple[PreTrainedConfig, ...]:
    """The configurations that attention layers read. An early-exit model has one of its own besides its layers'."""
    by_id = {id(part): part for part in configs(model.config)}
    for module in model.modules():
        config = vars(module).get("config")
        if isinstance(config, PreTrainedConfig) and id(config) not in by_id:
            by_id.update({id(part): part for part in configs(config)})
    return tuple(by_id.values())


def _attention_kinds(config: PreTrainedConfig, window: int | None, chunk: int | None) -> tuple[str, ...]:
    layer_types = getattr(config, "layer_types", None)
    if layer_types:
        kinds = {part for kind in layer_types for part in _PARTS.get(kind, (kind,))}
        return tuple(sorted(kinds))
    if window is not None:
        return ("sliding_attention",)
    return ("chunked_attention",) if chunk is not None else ("full_attention",)


def training_error(model: PreTrainedModel) -> ValueError:
    """The error for a model in training mode."""
    name = type(model).__name__
    return ValueError(f"{name} is in training mode, where dropout makes its output random; call model.eval() first")
