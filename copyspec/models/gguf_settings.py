"""Takes over from a GGUF file what transformers leaves out of a model's configuration.

Every key of the architecture is one that transformers takes or that the weights decide, is taken here, is known to
change nothing, or is refused with its name. The keys: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md; what
they mean is what llama.cpp makes of them.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from copyspec.models.errors import FileError

if TYPE_CHECKING:
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
            attributes = tuple(each for each in attributes if hasattr(config, each))
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
    windowed = [bool(each) for each in value] if isinstance(value, list) else _every(value, layers)
    if has_one and hasattr(config, "layer_types") and len(windowed) == layers:
        config.layer_types = ["sliding_attention" if each else "full_attention" for each in windowed]
    elif any(windowed) and window and window < config.max_position_embeddings:
        raise refuse(own[pattern], value)


def _every(count: int, layers: int) -> list[bool]:
    return [index % count < count - 1 if count else False for index in range(layers)]
