"""Text embeddings from an encoder of the Hugging Face hub.

Pooling, dense layers, normalisation and prompts of sentence-transformers models are read from `modules.json` and the
folders that it names, without that package, which would load the named classes as code; here only a few known names are
accepted.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray

from copyspec.models.errors import LoadError, first_line
from copyspec.models.pretrained import Pretrained

from .base import check_texts
from .passages import without_surrogates

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

        weights = mask.unsqueeze(-1).to(states.dtype)
        count = weights.sum(dim=1).clamp(min=1)
        parts = []
        for mode in self.modes:
            if mode == "cls":
                parts.append(states[:, 0])
            elif mode == "lasttoken":
                parts.append(states[torch.arange(len(states), device=states.device), mask.sum(dim=1).clamp(min=1) - 1])
            elif mode == "max":
                parts.append(states.masked_fill(weights == 0, float("-inf")).amax(dim=1).clamp(min=-1e9))
            else:
                parts.append((states * weights).sum(dim=1) / (count if mode == "mean" else count.sqrt()))
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


def sentence_settings(pretrained: Pretrained, device: torch.device) -> SentenceSettings:
    """Read the settings of a model, with dense layers on `device`. Raises LoadError for unknown modules."""
    modules = _json(pretrained, "modules.json", list)
    if modules is None:
        return SentenceSettings()
    limits = _json(pretrained, "sentence_bert_config.json", dict) or {}
    prompts = (_json(pretrained, "config_sentence_transformers.json", dict) or {}).get("prompts") or {}
    modes: tuple[str, ...] = ()
    layers: list[DenseLayer] = []
    normalizes, pools_prompts = False, True
    for module in modules:
        kind, path = _kind_and_path(module)
        if kind == "Pooling":
            pooling = _json(pretrained, f"{path}/config.json", dict) or {}
            modes, pools_prompts = _modes(pooling), pooling.get("include_prompt") is not False
        elif kind == "Dense":
            layers.append(_dense(pretrained, path, device))
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


def _dense(pretrained: Pretrained, path: str, device: torch.device) -> DenseLayer:
    from safetensors.torch import load_file

    settings = _json(pretrained, f"{path}/config.json", dict) or {}
    file = pretrained.file(f"{path}/model.safetensors")
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
    candidates = [prompts.get(name) for name in names] if isinstance(prompts, dict) else []
    return next((candidate for candidate in candidates if isinstance(candidate, str)), "")


def _json(pretrained: Pretrained, name: str, kind: type[_T]) -> _T | None:
    file = pretrained.file(name)
    if file is None:
        return None
    if file.stat().st_size > 1 << 20:
        raise LoadError(f"{name} has more than 1 MB")
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise LoadError(f"{name} is not JSON: {error!s:.80}") from None
    if not isinstance(data, kind):
        raise LoadError(f"{name} holds no {kind.__name__}")
    return data


class HuggingFaceEmbedder:
    """Encodes texts into vectors: call it with a list of strings.

    `model`: hub id or folder (HF_HUB_OFFLINE forbids downloads). Models of sentence-transformers are pooled and
    normalised as their files specify, with their prompts for texts and queries; others use normalised mean pooling.
    `prefix`: put before every text instead of these prompts, for encoders that were trained so ("query: ",
    "passage: "). Texts are truncated at the model's limit, and batched by similar length.
    `trust_remote_code=True` runs code of the model's folder with all rights of this process; by default none runs.
    Raises copyspec.LoadError for a model that cannot be loaded.
    """

    def __init__(
        self,
        model: str | os.PathLike[str],
        *,
        device: str | torch.device | None = None,
        batch_size: int = 32,
        prefix: str = "",
        normalize: bool | None = None,
        trust_remote_code: bool = False,
    ) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size!r}")
        import torch
        from transformers import AutoModel

        self.name, self.prefix = os.fspath(model), prefix
        self._batch_size = batch_size
        self._device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        pretrained = Pretrained(self.name, trust_remote_code=trust_remote_code)
        try:
            self._model = pretrained.model(AutoModel, pretrained.config())
            self._tokenizer = pretrained.tokenizer()
            self._settings = sentence_settings(pretrained, self._device)
            self._settings.check_prompts(prefix)
            self._normalize = self._settings.normalizes if normalize is None else normalize
            self._set_up()
        except LoadError as error:
            raise LoadError(f"encoder {self.name!r} cannot be loaded, give a folder or a hub id: {error}") from error

    def _set_up(self) -> None:
        """Prepare model and tokenizer. Raises LoadError if they cannot encode texts."""
        tokenizer = self._tokenizer
        if tokenizer.pad_token is None:
            tokenizer.pad_token = tokenizer.eos_token
        tokenizer.padding_side = "right"
        self._max_tokens = token_limit(tokenizer, self._model.config, self._settings.max_tokens)
        self._model.to(self._device)  # type: ignore[arg-type]  # its decorator hides the signature
        self._model.train(False)
        try:
            self._dimension = int(self._encoded(["a"]).shape[1])
        except Exception as error:  # models that are not for texts raise anything
            raise LoadError(f"it makes no vectors of texts ({first_line(error)})") from error

    @property
    def dimension(self) -> int:
        """Dimension of the vectors."""
        return self._dimension

    def __call__(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Encode texts. [len(texts), dimension]"""
        return self._vectors(check_texts(texts), self.prefix or self._settings.text_prompt)

    def encode_query(self, queries: Sequence[str]) -> NDArray[np.float32]:
        """Encode queries, with the encoder's prompt for queries if it has one. [len(queries), dimension]"""
        return self._vectors(check_texts(queries, "queries"), self.prefix or self._settings.query_prompt)

    def _vectors(self, texts: list[str], prefix: str) -> NDArray[np.float32]:
        vectors = np.empty((len(texts), self.dimension), np.float32)
        order = sorted(range(len(texts)), key=lambda index: len(texts[index]))
        for start in range(0, len(texts), self._batch_size):
            part = order[start : start + self._batch_size]
            vectors[part] = self._encoded([prefix + without_surrogates(texts[index]) for index in part])
        return vectors

    def _encoded(self, texts: list[str]) -> NDArray[np.float32]:
        import torch

        from copyspec.targets.hooks.inference import inference_mode

        if self._settings.lowers:
            texts = [text.lower() for text in texts]
        batch = self._tokenizer(texts, padding=True, truncation=True, max_length=self._max_tokens, return_tensors="pt")
        ids, mask = batch["input_ids"].to(self._device), batch["attention_mask"].to(self._device)
        if not ids.shape[1]:
            return np.zeros((len(texts), self._dimension), np.float32)  # texts without tokens
        with inference_mode(True):
            states = self._model(input_ids=ids, attention_mask=mask).last_hidden_state.float()
            pooled = self._settings.pooled(states, mask)
            if self._normalize:
                pooled = torch.nn.functional.normalize(pooled, dim=-1)
        vectors: NDArray[np.float32] = pooled.cpu().numpy()
        return vectors
