"""LoRA adapters in the format of `peft`, merged into a model's weights once. An adapter folder is untrusted input."""

from __future__ import annotations

import json
import logging
import math
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from copyspec.models.aliases import ADAPTER_WEIGHTS
from copyspec.models.errors import FileError, first_line
from copyspec.models.files import (
    ADAPTER,
    BESIDE_TOKENIZER,
    CONFIG,
    GENERATION,
    MAX_JSON,
    MAX_TOKENIZER,
    TEMPLATE,
    TOKENIZER,
    TOKENIZER_CONFIG,
    VOCABULARIES,
    WEIGHTS,
    check_folder,
    check_size,
    open_weights,
    read_json,
)

if TYPE_CHECKING:
    import torch

logger = logging.getLogger(__name__)

MAX_ADAPTER = 1 << 30  # bytes of an adapter's weights
MAX_RANK = 1024
MAX_ALPHA = 1e6  # those that are trained have up to twice the rank

_NAMED = re.compile(r"base_model\.model\.(.+)\.lora_([AB])\.weight")
_NEUTRAL = frozenset(
    (
        "peft_type", "peft_version", "task_type", "auto_mapping", "base_model_name_or_path", "revision",
        "inference_mode", "r", "lora_alpha", "lora_dropout", "use_rslora", "bias", "init_lora_weights",
        "target_modules", "exclude_modules", "layers_to_transform", "layers_pattern", "megatron_config",
        "megatron_core", "loftq_config", "eva_config", "corda_config", "lora_ga_config", "runtime_config",
        "qalora_group_size", "ensure_weight_tying", "parent_library", "processor_class",
    )
)  # fmt: skip
"""Settings that are taken over, or that the names of the weights hold already. Any other one that is set changes what
the adapter computes, or may: DoRA, patterns of ranks, activated LoRA, modules that are saved whole."""
_STARTS = (None, True, False, "gaussian", "eva", "orthogonal")
"""Values of `init_lora_weights` that leave the base's weights as they are. Those of others are part of the update."""
_COPIED = {
    GENERATION: MAX_JSON,
    TOKENIZER: MAX_TOKENIZER,
    TOKENIZER_CONFIG: MAX_JSON,
    **BESIDE_TOKENIZER,
    **VOCABULARIES,
}
"""Files of the base that go with the merged weights, and their largest size."""


@dataclass(frozen=True, slots=True)
class LowRank:
    """Maps each weight's name to its factors A [rank, in] and B [out, rank]; the merged weight is W + scale * B @ A."""

    parts: Mapping[str, tuple[torch.Tensor, torch.Tensor]]
    scale: float


def read_adapter(folder: Path) -> LowRank:
    """Read the adapter in a folder. Raises FileError, naming the file and the fault, for anything but a complete plain
    LoRA adapter of one rank with finite values."""
    check_folder(folder)
    for name in (ADAPTER, ADAPTER_WEIGHTS):
        if not (folder / name).is_file():
            raise FileError(f"there is no {name} in {str(folder)!r}")
    config = read_json(folder / ADAPTER)
    rank, scale = _rank_and_scale(config)
    check_size(folder / ADAPTER_WEIGHTS, MAX_ADAPTER)
    from safetensors.torch import load_file

    try:
        tensors = load_file(folder / ADAPTER_WEIGHTS)
    except Exception as error:  # safetensors raises errors of several types
        raise FileError(f"{ADAPTER_WEIGHTS} cannot be read: {first_line(error)}") from error
    halves: dict[str, dict[str, torch.Tensor]] = {}
    for name, tensor in tensors.items():
        match = _NAMED.fullmatch(name)
        if match is None:
            raise FileError(f"{ADAPTER_WEIGHTS} has {name[:100]!r}, which is not part of a LoRA adapter")
        if not tensor.is_floating_point() or tensor.ndim != 2:
            raise FileError(f"{ADAPTER_WEIGHTS} has {name!r} of {tensor.dtype} {tuple(tensor.shape)}, no matrix")
        if not tensor.float().isfinite().all():
            raise FileError(f"{ADAPTER_WEIGHTS} has {name!r} with numbers that are not finite")
        halves.setdefault(f"{match[1]}.weight", {})[match[2]] = tensor
    if not halves:
        raise FileError(f"{ADAPTER_WEIGHTS} holds nothing")
    parts = {}
    for name, pair in halves.items():
        if len(pair) != 2:
            raise FileError(f"{ADAPTER_WEIGHTS} has one half of {name!r} only")
        a, b = pair["A"], pair["B"]
        if a.shape[0] != rank or b.shape[1] != rank:
            raise FileError(f"{ADAPTER} has r={rank}, and {name!r} has A {tuple(a.shape)} and B {tuple(b.shape)}")
        parts[name] = (a, b)
    return LowRank(parts, scale)


def merge(base: Path, adapter: Path, folder: Path, *, is_rounded: bool = False) -> None:
    """Write into `folder` the model in `base` with an adapter merged into its weights, in float32: an update is often
    smaller than the spacing of bfloat16 numbers. `is_rounded`: to numbers that bfloat16 has, whose packed copies take
    half the memory, each up or down by chance, so that sums of many keep the update.

    The chat template of `adapter` takes precedence over the base's. Raises FileError like `read_adapter`, and if
    adapter and base do not match.
    """
    import torch
    from safetensors.torch import save_file

    low_rank = read_adapter(adapter)
    others, config = copied(base, adapter), read_json(base / CONFIG)
    if config.get("quantization_config"):
        raise FileError(f"the base's {CONFIG} has a quantization_config; merge a base without one, or use peft")
    parts = dict(low_rank.parts)
    logger.warning("merging the adapter %s into its base, once; this takes some seconds", adapter.name)
    merged, chance = {}, torch.Generator().manual_seed(0)
    with open_weights(base / WEIGHTS) as weights:
        for name in weights.keys():  # noqa: SIM118
            stored = weights.get_tensor(name)
            weight = stored.float()
            if name in parts:
                if not stored.is_floating_point():
                    raise FileError(f"the adapter changes {name!r}, of which the base has integers: {stored.dtype}")
                a, b = (part.float() for part in parts.pop(name))
                if weight.shape != (b.shape[0], a.shape[1]):
                    wanted = f"{b.shape[0]} x {a.shape[1]}"
                    raise FileError(f"the adapter changes {name!r} of {wanted}; the base's is {tuple(weight.shape)}")
                weight += low_rank.scale * (b @ a)
                if is_rounded:
                    bits, half = weight.view(torch.int32), 1 << 16
                    bits += torch.randint(half, weight.shape, generator=chance, dtype=torch.int32)
                    bits &= -half
                if not weight.isfinite().all():
                    raise FileError(f"{name!r} is not finite with the adapter merged into it")
            merged[name] = weight
    if parts:
        raise FileError(f"the adapter changes {next(iter(parts))!r}, which its base does not have")
    save_file(merged, folder / WEIGHTS, metadata={"format": "pt"})
    config |= {"dtype": str(torch.float32).removeprefix("torch.")}
    (folder / CONFIG).write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
    for source in others:
        shutil.copyfile(source, folder / source.name)


def copied(base: Path, adapter: Path) -> list[Path]:
    """The files that `merge` copies. Raises FileError if one is too large."""
    sources = []
    for name, limit in _COPIED.items():
        source = adapter / name if name == TEMPLATE and (adapter / name).is_file() else base / name
        if source.is_file():
            check_size(source, limit)
            sources.append(source)
    return sources


def _rank_and_scale(config: Mapping[str, object]) -> tuple[int, float]:
    kind = config.get("peft_type")
    if kind != "LORA":
        raise FileError(f"{ADAPTER} has peft_type {kind!r}; only 'LORA' can be merged")
    for name in config:
        if name not in _NEUTRAL and config[name]:
            raise FileError(
                f"{ADAPTER} has {name[:60]}={str(config[name])[:60]}, which is not supported; merge it with peft"
            )
    if (start := config.get("init_lora_weights")) not in _STARTS:
        raise FileError(
            f"{ADAPTER} has init_lora_weights={str(start)[:60]!r}, which may change the base's weights, too; convert "
            "it with peft to an adapter of the unchanged base"
        )
    if config.get("bias", "none") != "none":
        raise FileError(f"{ADAPTER} has bias={str(config['bias'])[:60]!r}; only 'none' is supported")
    rank, alpha = config.get("r"), config.get("lora_alpha")
    if type(rank) is not int or not 1 <= rank <= MAX_RANK:
        raise FileError(f"{ADAPTER} has r={str(rank)[:60]}; it must be an integer from 1 to {MAX_RANK}")
    if not isinstance(alpha, (int, float)) or isinstance(alpha, bool) or not abs(alpha) <= MAX_ALPHA:
        raise FileError(f"{ADAPTER} has lora_alpha={str(alpha)[:60]}, which is not a number")
    return rank, float(alpha) / (math.sqrt(rank) if config.get("use_rslora") else rank)
