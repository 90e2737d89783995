"""Pooling, dense layers, normalisation and prompts of sentence-transformers models, and the length of their inputs.

They are read from `modules.json` and the folders that it names, without that package, which would load the named
classes as code; here only a few known names are accepted.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from copyspec.models.errors import LoadError, first_line
from copyspec.models.pretrained import Pretrained

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedConfig, PreTrainedTokenizerBase

_T = TypeVar("_T")

MAX_TOKENS = 512
"""Of an input, if neither tokenizer nor model has a limit: the usual training length of encoders."""

MODES = ("cls", "mean", "max", "mean_sqrt_len", "lasttoken")
_FLAGS = {"cls_token": "cls", "mean_tokens": "mean", "max_tokens": "max", "mean_sqrt_len_tokens": "mean_sqrt_len"}
_ACTIVATIONS = {"Identity": "identity", "Tanh": "tanh", "ReLU": "relu", "GELU": "gelu", "SiLU": "silu"}


@dataclass(frozen=True, slots=True)
class DenseLayer:
    """A linear layer after the pooling."""

    weight: torch.Tensor  # [out, in]
    bias: torch.Tensor | None
    activation: str  # a value of _ACTIVATIONS


@dataclass(frozen=True, slots=True)
class SentenceSettings:
    """How the last hidden states become a vector. Default, for models without modules: mean pooling, normalised."""

    modes: tuple[str, ...] = ("mean",)
    layers: tuple[DenseLayer, ...] = ()
    normalizes: bool = True
    max_tokens: int | None = None
    lowers: bool = False
    query_prompt: str = ""
    text_prompt: str = ""
    pools_prompts: bool = True  # False: the vectors are those of the tokens after the prompt

    def check_prompts(self, prefix: str) -> None:
        """Raise LoadError if the tokens of a prompt, or of the caller's `prefix`, would have to be left out."""
        prompt = prefix or self.query_prompt or self.text_prompt
        if prompt and not self.pools_prompts:
            raise LoadError(
                f"it pools without the tokens of a prompt such as {prompt!r:.60} (include_prompt is false), which this "
                "does not: load it with sentence-transformers, give its method `encode`"
            )

    def pooled(self, states: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Pool right-padded `states` [n, length, hidden] with `mask` [n, length] into vectors [n, dimension]."""
        import torch

        held = mask.unsqueeze(-1).to(states.dtype)
        count = held.sum(dim=1).clamp(min=1)
        parts = []
        for mode in self.modes:
            if mode == "cls":
                parts.append(states[:, 0])
            elif mode == "lasttoken":
                parts.append(states[torch.arange(len(states), device=states.device), mask.sum(dim=1).clamp(min=1) - 1])
            elif mode == "max":
                parts.append(states.masked_fill(held == 0, float("-inf")).amax(dim=1).clamp(min=-1e9))
            else:
                parts.append((states * held).sum(dim=1) / (count if mode == "mean" else count.sqrt()))
        pooled = torch.cat(parts, dim=-1)
        for layer in self.layers:
            pooled = torch.nn.functional.linear(pooled, layer.weight, layer.bias)
            if layer.activation != "identity":
                pooled = getattr(torch.nn.functional, layer.activation)(pooled)
        return pooled


def token_limit(tokenizer: PreTrainedTokenizerBase, config: PreTrainedConfig, named: int | None = None) -> int:
    """Return the maximum number of tokens of an input. `named`: by the settings of the model, if they name one."""
    limits = (named, tokenizer.model_max_length, getattr(config, "max_position_embeddings", None))
    usable = (limit for limit in limits if isinstance(limit, int) and 0 < limit < 1 << 20)
    return min(usable, default=MAX_TOKENS)


def sentence_settings(found: Pretrained, device: torch.device) -> SentenceSettings:
    """Read the settings of a model, with dense layers on `device`. Raises LoadError for unknown modules."""
    modules = _json(found, "modules.json", list)
    if modules is None:
        return SentenceSettings()
    limits = _json(found, "sentence_bert_config.json", dict) or {}
    prompts = (_json(found, "config_sentence_transformers.json", dict) or {}).get("prompts") or {}
    modes: tuple[str, ...] = ()
    layers: list[DenseLayer] = []
    normalizes, pools_prompts = False, True
    for module in modules:
        kind, path = _kind_and_path(module)
        if kind == "Pooling":
            pooling = _json(found, f"{path}/config.json", dict) or {}
            modes, pools_prompts = _modes(pooling), pooling.get("include_prompt") is not False
        elif kind == "Dense":
            layers.append(_dense(found, path, device))
        elif kind == "Normalize":
            normalizes = True
        elif kind != "Transformer":
            raise LoadError(
                f"its modules.json has a module {kind!r}: load it with sentence-transformers, give its method `encode`"
            )
    limit = limits.get("max_seq_length")
    return SentenceSettings(
        modes or ("mean",),
        tuple(layers),
        normalizes,
        limit if isinstance(limit, int) and limit > 0 else None,
        limits.get("do_lower_case") is True,
        _prompt(prompts, "query"),
        _prompt(prompts, "document", "passage"),
        pools_prompts,
    )


def _kind_and_path(module: object) -> tuple[str, str]:
    kind, path = (module.get("type"), module.get("path", "")) if isinstance(module, dict) else (None, None)
    if not isinstance(kind, str) or not isinstance(path, str) or os.path.isabs(path) or ".." in Path(path).parts:
        raise LoadError(f"its modules.json holds {module!r:.80}, which is not a module")
    return kind.rpartition(".")[2], path


def _modes(settings: Mapping[str, object]) -> tuple[str, ...]:
    named = settings.get("pooling_mode")
    if named is not None:
        modes = tuple(named) if isinstance(named, list) else (named,)
    else:
        modes = tuple(mode for flag, mode in _FLAGS.items() if settings.get(f"pooling_mode_{flag}") is True)
        modes += ("lasttoken",) if settings.get("pooling_mode_lasttoken") is True else ()
    modes = tuple(_FLAGS.get(mode, mode) if isinstance(mode, str) else mode for mode in modes)
    unknown = [mode for mode in modes if mode not in MODES]
    if unknown or settings.get("pooling_mode_weightedmean_tokens") is True:
        raise LoadError(f"it pools by {unknown or 'weightedmean'}, and this reads {', '.join(MODES)}")
    return modes or ("mean",)


def _dense(found: Pretrained, path: str, device: torch.device) -> DenseLayer:
    from safetensors.torch import load_file

    settings = _json(found, f"{path}/config.json", dict) or {}
    file = found.file(f"{path}/model.safetensors")
    if file is None:
        raise LoadError(f"{path!r} has no model.safetensors; a pickle is not read: save the model again")
    try:
        tensors = {name: tensor.to(device).float() for name, tensor in load_file(file).items()}
    except Exception as error:  # safetensors has errors of its own
        raise LoadError(f"{path!r} has a model.safetensors that cannot be read ({first_line(error)})") from error
    activation = str(settings.get("activation_function", "Identity")).rpartition(".")[2]
    if activation not in _ACTIVATIONS or "linear.weight" not in tensors:
        raise LoadError(f"{path!r} is not a supported dense layer (activation {activation!r:.40})")
    return DenseLayer(tensors["linear.weight"], tensors.get("linear.bias"), _ACTIVATIONS[activation])


def _prompt(prompts: object, *names: str) -> str:
    found = [prompts.get(name) for name in names] if isinstance(prompts, dict) else []
    return next((each for each in found if isinstance(each, str)), "")


def _json(found: Pretrained, name: str, kind: type[_T]) -> _T | None:
    file = found.file(name)
    if file is None:
        return None
    if file.stat().st_size > 1 << 20:
        raise LoadError(f"{name} has more than 1 MB")
    try:
        held = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise LoadError(f"{name} is not JSON: {error!s:.80}") from None
    if not isinstance(held, kind):
        raise LoadError(f"{name} holds no {kind.__name__}")
    return held
