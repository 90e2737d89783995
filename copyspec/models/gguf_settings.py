"""Takes over from a GGUF file what transformers leaves out of a model's configuration.

Every key of the architecture is one that transformers takes or that the weights decide, is taken here, is known to
change nothing, or is refused with its name. The keys: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md; what
they mean is what llama.cpp makes of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from copyspec.models.errors import FileError

if TYPE_CHECKING:
    import numpy as np
    from transformers import PreTrainedConfig

Settings = dict[str, Any]
"""Settings of the header by key; functions remove those that they take."""

_EPSILONS = ("rms_norm_eps", "norm_eps", "layer_norm_epsilon", "layer_norm_eps", "norm_epsilon")

# Keys without the architecture before them. Weights of another shape than these say are an error already.
_SHAPES = frozenset(
    (
        "context_length", "block_count", "embedding_length", "feed_forward_length", "tensor_data_layout",
        "expert_feed_forward_length", "expert_shared_feed_forward_length", "expert_shared_count", "features_length",
        "ssm.conv_kernel", "ssm.inner_size", "ssm.state_size", "ssm.time_step_rank", "ssm.group_count",
        "shortconv.l_cache", "full_attention_interval", "rope.scaling.finetuned", "rope.dimension_sections",
        "decoder_block_count",
    )
)  # fmt: skip
_SAME: dict[str, tuple[str, ...]] = {
    "attention.head_count": ("num_attention_heads", "n_head", "num_heads"),
    "attention.head_count_kv": ("num_key_value_heads",),
    "attention.key_length": ("global_head_dim", "head_dim", "d_kv"),
    "attention.value_length": ("global_head_dim", "head_dim", "d_kv"),
    "attention.key_length_swa": ("head_dim",),
    "attention.value_length_swa": ("head_dim",),
    "attention.shared_kv_layers": ("num_kv_shared_layers",),
    "embedding_length_per_layer_input": ("hidden_size_per_layer_input",),
    "vocab_size": ("vocab_size",),
    "expert_count": ("num_experts", "num_local_experts"),
}
"""Attributes of the configuration that have these values, or the key is refused."""

_VALUES: dict[str, tuple[tuple[str, ...], tuple[object, ...]]] = {
    "attention.layer_norm_rms_epsilon": (_EPSILONS, ()),
    "attention.layer_norm_epsilon": (_EPSILONS, ()),
    "attention.relative_buckets_count": (("relative_attention_num_buckets",), ()),
    "decoder_start_token_id": (("decoder_start_token_id",), ()),
    "attn_logit_softcapping": (("attn_logit_softcapping",), (0,)),
    "final_logit_softcapping": (("final_logit_softcapping",), (0,)),
    "router_logit_softcapping": ((), (0,)),
    "logit_scale": (("logit_scale",), (0, 1)),
    "residual_scale": (("residual_multiplier",), (0, 1)),
    "embedding_scale": (("embedding_multiplier",), (0, 1)),
    "expert_used_count": (("num_experts_per_tok",), (0,)),
    "expert_weights_scale": (("routed_scaling_factor",), (0, 1)),
    "expert_weights_norm": (("norm_topk_prob",), ()),
    "expert_group_count": ((), (0, 1)),
    "expert_group_used_count": ((), (0, 1)),
    "expert_gating_func": ((), (0, 1)),  # 1: softmax
    "leading_dense_block_count": ((), (0,)),
    "nextn_predict_layers": ((), (0,)),
    "use_parallel_residual": (("use_parallel_residual",), ()),
    "attention.clamp_kqv": ((), (0,)),
    "attention.max_alibi_bias": ((), (0,)),
    "attention.causal": ((), (True,)),
    "attention.output_scale": ((), (0, 1)),
    "attention.temperature_length": ((), (0,)),
    "attention.temperature_scale": ((), (0, 1)),
    "pooling_type": ((), (0,)),
    "ssm.dt_b_c_rms": ((), (False,)),
}
"""Attributes that get these values, and values that change nothing in a model without such an attribute."""

_TAKEN = {
    ("bloom", "attention.max_alibi_bias"): 8,  # what transformers computes
    ("minimax_m2", "expert_gating_func"): 2,  # a sigmoid
    ("qwen3_5_text", "nextn_predict_layers"): 1,  # layers that only draft
    ("qwen3_5_moe_text", "nextn_predict_layers"): 1,
}
_WINDOWED = ("phi3", "mistral", "starcoder2", "gemma2", "gemma3_text", "gemma4_text", "gpt_oss")
"""Types of models whose `sliding_window` is in effect, in all layers or those that `layer_types` names."""


def refuse(key: str, value: object) -> FileError:
    """The error for a setting that cannot be taken over."""
    return FileError(f"its header has {key[:100]}={str(value)[:60]}, which transformers' model of it cannot take over")


def adopt_settings(settings: Settings, architecture: str, config: PreTrainedConfig) -> None:
    """Take the settings of the architecture over into the configuration, all but those of the rotary embedding, and
    remove them. Raises FileError for one that it cannot have."""
    own = {key.removeprefix(f"{architecture}."): key for key in settings if key.startswith(f"{architecture}.")}
    _adopt_window(settings, own, config)
    for name, key in own.items():
        if key not in settings or (name.startswith("rope.") and name not in _SHAPES):
            continue
        value = settings.pop(key)
        if name in _SHAPES:
            continue
        if name in _SAME:
            _check_same(key, value, _SAME[name], config)
        elif name == "attention.scale":
            _adopt_scale(key, value, config)
        elif name in _VALUES:
            attributes, neutral = _VALUES[name]
            attributes = tuple(attribute for attribute in attributes if hasattr(config, attribute))
            if not attributes and value not in neutral and _TAKEN.get((config.model_type, name)) != value:
                raise refuse(key, value)
            for attribute in attributes:
                setattr(config, attribute, value or None if 0 in neutral else value)
        else:
            raise refuse(key, value)


def _check_same(key: str, value: object, attributes: tuple[str, ...], config: PreTrainedConfig) -> None:
    values = [getattr(config, name) for name in attributes if getattr(config, name, None) is not None]
    if not values:  # a model without such a thing
        values = [head_size(config) if "length" in key else config.num_attention_heads if "head" in key else 0]
    if isinstance(value, list) and len(set(value)) == 1:
        value = value[0]
    if isinstance(value, list):  # by layer: in such a model the zeros are layers of another kind
        value = max(value)
    if value not in values:
        raise refuse(key, value)


def head_size(config: PreTrainedConfig) -> int:
    """Elements of an attention head."""
    size = getattr(config, "head_dim", None)
    return int(size or config.hidden_size // config.num_attention_heads)


def _adopt_scale(key: str, value: float, config: PreTrainedConfig) -> None:
    """The factor of attention scores, which most models compute from the size of a head."""
    if hasattr(config, "query_pre_attn_scalar") and value:
        config.query_pre_attn_scalar = round(value**-2, 3)
    elif value and not math.isclose(value, head_size(config) ** -0.5, rel_tol=1e-4):
        raise refuse(key, value)


def _adopt_window(settings: Settings, own: dict[str, str], config: PreTrainedConfig) -> None:
    name, pattern = "attention.sliding_window", "attention.sliding_window_pattern"
    window = settings.pop(own[name]) if name in own else 0
    has_one = config.model_type in _WINDOWED
    if has_one and (window or not hasattr(config, "layer_types")):
        config.sliding_window = window or None  # the default of a class is that of one checkpoint
    elif window and window < config.max_position_embeddings:
        raise refuse(own[name], window)
    if pattern not in own:
        return
    value = settings.pop(own[pattern])
    layers = config.num_hidden_layers
    windowed = [bool(flag) for flag in value] if isinstance(value, list) else _every(value, layers)
    if has_one and hasattr(config, "layer_types") and len(windowed) == layers:
        config.layer_types = ["sliding_attention" if is_windowed else "full_attention" for is_windowed in windowed]
    elif any(windowed) and window and window < config.max_position_embeddings:
        raise refuse(own[pattern], value)


def _every(count: int, layers: int) -> list[bool]:
    return [index % count < count - 1 if count else False for index in range(layers)]


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
