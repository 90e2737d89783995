"""The folder of a draft head: its configuration, and tensors, which are checked before any is read.

A stranger's folder is hostile until it is checked: only safetensors are read, and sizes are bounded.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from copyspec.common.checks import brief
from copyspec.drafters.predictors.feature_layer import CONTEXT, EPSILON, THETA, LayerSizes, Tensors
from copyspec.drafters.predictors.head_weights import Heads
from copyspec.models.errors import FileError
from copyspec.models.files import CONFIG, open_weights, pickled

TOKENS = ("vocabulary", "d2t")
"""Names of the tensors that hold tokens; the others hold weights."""

FLOATS, INTEGERS = ("F64", "F32", "F16", "BF16"), ("I64", "I32", "I16", "I8", "U8")
"""Types, as safetensors names them, of weights and of tokens."""

MAX_HEADS = 16
"""Maximum number of tokens ahead that a file may have heads for; published ones have 3 to 5."""

MAX_UNITS = 1 << 16
"""Maximum width of a layer in a file, against hostile ones."""

SAME_MODEL = 0.98
"""Minimum cosine similarity of the probes of one model in two precisions; those of two models are about orthogonal."""

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class HeadFile:
    """The content of a folder, on the CPU and in the dtype of the file."""

    heads: Heads
    vocabulary: torch.Tensor | None  # [V'], the target's tokens that the heads can predict; None: all
    name: str


class HeadFolder:
    """Reader of one folder, for a model with output weights `weight` [V, D] and `layers` accessible decoder layers."""

    def __init__(self, folder: Path, config: Mapping[str, object], weight: torch.Tensor, layers: int) -> None:
        self._folder, self._config, self._weight, self._layers = folder, config, weight, layers
        self._vocab, self._size = weight.shape

    def _check_settings(self, whose: str, **wanted: object) -> None:
        for name, value in wanted.items():
            if self._config.get(name, value) not in (value, None):
                raise FileError(f"{CONFIG} has {name}={brief(self._config[name])}; {whose} read with {value!r}")

    def _layer_list(self, value: object, name: str) -> tuple[int, ...]:
        if not isinstance(value, list) or not value or not all(type(layer) is int and layer >= 0 for layer in value):
            raise FileError(f"{CONFIG} has {name}={brief(value)}; it must be a list of layer indices")
        if len(set(value)) < len(value) or max(value) >= self._layers:
            raise FileError(f"{CONFIG} has {name}={brief(value)}, and {self._layers} layers of this model are known")
        return tuple(value)

    def _layer_sizes(self, inner: str, *, is_fused: bool) -> LayerSizes:
        config = self._config
        heads = self._count("num_attention_heads", most=MAX_UNITS)
        kv_heads = self._count("num_key_value_heads", most=heads) if "num_key_value_heads" in config else heads
        head_dim = self._count("head_dim", most=MAX_UNITS) if config.get("head_dim") else self._size // heads
        if heads % kv_heads or head_dim % 2 or head_dim < 2:
            raise FileError(f"{CONFIG} has {heads} heads of size {head_dim} and {kv_heads} for keys, which do not fit")
        context = "context" if "context" in config else "max_position_embeddings"
        longest = self._count(context, most=1 << 24) if context in config else CONTEXT
        return LayerSizes(
            hidden=self._size,
            inner=self._count(inner, most=MAX_UNITS),
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            epsilon=self._number("rms_norm_eps", EPSILON),
            theta=self._theta(),
            is_fused=is_fused,
            context=min(longest, CONTEXT),
        )

    def _theta(self) -> float:
        """Base of the rotary embedding, which transformers writes beside its kind since version 5."""
        settings = self._config.get("rope_parameters")
        if not isinstance(settings, dict):
            return self._number("rope_theta", THETA)
        if (kind := settings.get("rope_type", "default")) != "default":
            raise FileError(f"{CONFIG} has rope_type={brief(kind)}; published layers are read with 'default'")
        return self._number("rope_theta", THETA, settings)

    def _check_model(self) -> None:
        for name, ours in (("hidden_size", self._size), ("vocab_size", self._vocab)):
            if self._config.get(name) != ours:
                theirs = brief(self._config.get(name))
                raise FileError(f"they are for a model of {name}={theirs}, and this one has {ours}")

    def _number(self, name: str, default: float, settings: Mapping[str, object] | None = None) -> float:
        value = (self._config if settings is None else settings).get(name, default)
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 < value <= sys.float_info.max:
            raise FileError(f"{CONFIG} has {name}={brief(value)}; it is a number above 0")
        return float(value)

    def _stored(self, file: str) -> set[str]:
        """Names of the tensors in a file."""
        self._check_file(file)
        with open_weights(self._folder / file) as weights:
            return set(weights.keys())

    def _check_file(self, file: str) -> None:
        if not (self._folder / file).is_file():
            names = pickled(self._folder)
            hint = f"; {names[0]} may run code when it is read: python -m training.heads --convert" if names else ""
            raise FileError(f"it has no {file}{hint}")

    def _count(self, name: str, most: int = MAX_HEADS) -> int:
        value = self._config.get(name)
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
            raise FileError(f"{CONFIG} has {name}={brief(value)}; it is an integer from 1 to {most}")
        return value

    def _read(
        self,
        file: str,
        shapes: Mapping[str, Shape],
        optional: Mapping[str, Shape | None] | None = None,
        *,
        strip: tuple[str, ...] = (),
    ) -> Tensors:
        """Read the tensors of `shapes`, and those of `optional` that are stored. Shapes (None: any) are checked before
        any tensor is read."""
        self._check_file(file)
        with open_weights(self._folder / file) as held_tensors:
            names: Callable[[], list[str]] = held_tensors.keys
            stored = {_stripped(name, strip): name for name in names()}
            tensors: Tensors = {}
            wanted: dict[str, Shape | None] = {**shapes}
            wanted |= {name: shape for name, shape in (optional or {}).items() if name in stored}
            for name, shape in wanted.items():
                if name not in stored:
                    raise FileError(f"{file} has no tensor {name!r}")
                part = held_tensors.get_slice(stored[name])
                there, kind = tuple(part.get_shape()), part.get_dtype()
                expected = INTEGERS if name in TOKENS else FLOATS
                if kind not in expected:
                    raise FileError(f"{file}: {name!r} has dtype {kind}; expected one of {', '.join(sorted(expected))}")
                if shape is not None and there != shape:
                    raise FileError(f"{file} has {name!r} of shape {list(there)}, and the model needs {list(shape)}")
            for name in wanted:
                tensors[name] = held_tensors.get_tensor(stored[name])
                if not bool(torch.isfinite(tensors[name]).all()):
                    raise FileError(f"{file} has values in {name!r} that are no numbers (NaN or infinite)")
        return tensors

    def _checked_vocabulary(self, vocabulary: torch.Tensor, file: str) -> torch.Tensor:
        tokens = vocabulary.long()
        distinct = vocabulary.dim() == 1 and len(set(tokens.tolist())) == len(tokens) > 0
        if not distinct or int(tokens.min()) < 0 or int(tokens.max()) >= self._vocab:
            raise FileError(f"{file} has a vocabulary that is not a list of different tokens below {self._vocab}")
        return tokens


def _stripped(name: str, prefixes: tuple[str, ...]) -> str:
    for prefix in prefixes:
        if name.startswith(prefix):
            return name[len(prefix) :]
    return name
