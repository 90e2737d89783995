"""Takes over the rotary embedding of a GGUF file: its base, its width, and how it is scaled for long contexts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from copyspec.models.errors import FileError
from copyspec.models.gguf_settings import Settings, head_size, refuse

if TYPE_CHECKING:
    import numpy as np
    from transformers import PreTrainedConfig

FACTORS, LONG, SHORT = "rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"
"""Tensors with a divisor for each frequency."""

_PARTIAL = ("stablelm", "phi3", "nemotron", "minimax_m2", "qwen3_5_text", "qwen3_5_moe_text", "gemma4_text")
"""Types of models that turn a part of each head."""

_SMOOTH = ((1.0, 4.0), (1.0, 2.0), (1.0, 8.0), (2.0, 4.0), (2.0, 8.0), (1.0, 32.0))
"""`low_freq_factor` and `high_freq_factor`; Llama's are the first."""

_CLOSE = 2e-3  # files have float32 or less


def adopt_rope(
    settings: Settings, architecture: str, config: PreTrainedConfig, tensors: Mapping[str, np.ndarray[Any, Any]]
) -> None:
    """Take the settings and tensors of the rotary embedding over into the configuration. Raises FileError, with the
    name of the key or the tensor, for what the model cannot have."""
    prefix = f"{architecture}.rope."
    own = {key.removeprefix(prefix): settings.pop(key) for key in list(settings) if key.startswith(prefix)}
    parameters = getattr(config, "rope_parameters", None)
    if not parameters:
        for name in (*tensors, *(f"{prefix}{name}" for name, value in own.items() if value not in (0, 1, "none"))):
            raise FileError(f"it has {name!r}, and its architecture has no rotary embedding")
        return
    rope = parameters.get("full_attention", parameters)
    if (base := own.pop("freq_base", None)) is not None:
        rope["rope_theta"] = base
    if (base := own.pop("freq_base_swa", None)) is not None:
        if "sliding_attention" not in parameters:
            raise refuse(f"{prefix}freq_base_swa", base)
        parameters["sliding_attention"]["rope_theta"] = base
    _adopt_width(own, prefix, config, rope)
    rope.update(_scaling(own, prefix, config, rope, tensors))
    for name, value in own.items():
        raise refuse(f"{prefix}{name}", value)


def _adopt_width(own: Settings, prefix: str, config: PreTrainedConfig, rope: dict[str, Any]) -> None:
    own.pop("dimension_count_swa", None) if config.model_type == "gemma4_text" else None
    width = own.pop("dimension_count", None)
    if width is None or config.model_type == "gemma4_text":
        return
    size = head_size(config)
    if config.model_type in _PARTIAL:
        rope["partial_rotary_factor"] = width / size
    elif width != size:
        raise refuse(f"{prefix}dimension_count", width)


def _scaling(
    own: Settings,
    prefix: str,
    config: PreTrainedConfig,
    rope: dict[str, Any],
    tensors: Mapping[str, np.ndarray[Any, Any]],
) -> dict[str, Any]:
    """The parameters that scale the frequencies."""
    kind = own.pop("scaling.type", None)
    factor = own.pop("scaling.factor", None) or own.pop("scale_linear", None) or 1.0
    original = own.pop("scaling.original_context_length", None) or config.max_position_embeddings
    attention = own.pop("scaling.attn_factor", None)
    if LONG in tensors or SHORT in tensors:
        missing = next((name for name in (LONG, SHORT) if name not in tensors), None)
        if missing or kind not in (None, "none", "longrope", "su") or FACTORS in tensors:
            raise FileError(f"it has {LONG if missing != LONG else SHORT!r} beside {missing or FACTORS!r} or {kind!r}")
        config.original_max_position_embeddings = original
        long, short = (tensors[name].astype(float).ravel().tolist() for name in (LONG, SHORT))
        more = {} if attention is None else {"attention_factor": attention}
        return {
            "rope_type": "longrope",
            "long_factor": long,
            "short_factor": short,
            "original_max_position_embeddings": original,
            **more,
        }
    if attention not in (None, 0, 1):
        raise refuse(f"{prefix}scaling.attn_factor", attention)
    if FACTORS in tensors and (tensors[FACTORS] != 1).any():
        if factor != 1 or kind not in (None, "none"):
            raise FileError(f"it has {FACTORS!r} and {prefix}scaling.type={kind!r}; only one of them can be taken over")
        return _llama3(tensors[FACTORS].astype(float).ravel(), config, rope)
    if kind == "yarn" and factor != 1:
        more = {
            new: own.pop(f"scaling.yarn_{new}") for new in ("beta_fast", "beta_slow") if f"scaling.yarn_{new}" in own
        }
        for name in ("ext_factor", "attn_factor"):
            if (value := own.pop(f"scaling.yarn_{name}", 1.0)) != 1.0:
                raise refuse(f"{prefix}scaling.yarn_{name}", value)
        return {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": original, **more}
    if kind not in (None, "none", "linear", "yarn"):
        raise refuse(f"{prefix}scaling.type", kind)
    if factor == 1 or kind == "none":
        return {}
    return {"rope_type": "linear", "factor": factor}


def _llama3(factors: np.ndarray[Any, Any], config: PreTrainedConfig, rope: dict[str, Any]) -> dict[str, Any]:
    """The parameters of Llama 3's scaling that give these divisors, which are all that the file has of them."""
    import numpy as np

    count = len(factors)
    lengths = 2 * np.pi * rope["rope_theta"] ** (np.arange(count) / count)  # of the waves, in positions
    largest = float(factors.max())
    for low, high in _SMOOTH:
        for original in (2**power for power in range(3, 24)):
            smooth = np.clip((original / lengths - low) / (high - low), 0, 1)
            if np.allclose(1 / ((1 - smooth) / largest + smooth), factors, rtol=_CLOSE):
                return {
                    "rope_type": "llama3",
                    "factor": largest,
                    "low_freq_factor": low,
                    "high_freq_factor": high,
                    "original_max_position_embeddings": original,
                }
    raise FileError(f"it has {FACTORS!r}, whose divisors are not those of Llama 3's scaling")
