"""Builds tiny random models of every architecture that transformers decodes."""

from __future__ import annotations

from typing import Any

from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING,
    MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
)

from copyspec.targets.selftest.shrinking import shrunk
from copyspec.targets.selftest.sibling import build

POSITIONS = 96

_DEFAULT_ROPE = {"rope_type": "default", "rope_theta": 10_000.0, "mrope_section": [1, 1, 2]}

_INDEXER = {
    "indexer_n_heads": 2, "indexer_kv_heads": 1, "indexer_head_dim": 256, "indexer_budget": 8,
    "indexer_compress_ratio": 2,
}  # fmt: skip

MADE: dict[str, dict[str, Any]] = {
    "bamba": {"attn_layer_indices": [1, 3, 5]},
    "cohere_compass_text": {"rope_parameters": {"full_attention": _DEFAULT_ROPE}},
    "dbrx": {"attn_config": {"rope_theta": 10_000.0, "kv_n_heads": 8, "clip_qkv": 8}},
    "deepseek_v2": {"num_experts_per_tok": 2, "n_group": 1, "topk_group": 1},
    "dots1": {"n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2},
    "granitemoehybrid": {"layer_types": ["linear_attention", "full_attention"] * 16},
    "hunyuan_v1_dense": {"head_dim": 128},
    "hunyuan_v1_moe": {"head_dim": 128},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 16},
    "ministral": {"head_dim": 128},
    "nemotron": {"num_key_value_heads": 8},
    "qwen4_exp": {"text_config": _INDEXER},
    "gemma4_assistant": {"text_config": {"hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": 0}},
    "qwen4_exp_text": _INDEXER,
    "xmod": {"default_language": "en_XX", "languages": ["en_XX"]},
}  # fmt: skip
"""Configuration options for types whose defaults alone do not build a model."""

SMALL: dict[str, dict[str, Any]] = {
    "falcon_h1": {"mamba_d_ssm": 64, "mamba_n_heads": 8, "mamba_d_head": 8, "mamba_n_groups": 1},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "mamba2": {"num_heads": 8, "head_dim": 8, "n_groups": 1},
    "recurrent_gemma": {"num_hidden_layers": 3},
    "reformer": {
        "axial_pos_shape": [8, 16], "axial_pos_embds_dim": [16, 16], "local_attn_chunk_length": 8,
        "lsh_attn_chunk_length": 8, "max_position_embeddings": 128,
    },
    "xlnet": {"d_head": 8},
    "xlstm": {"qk_dim_factor": 1.0, "num_heads": 2},
    "zamba": {"attention_hidden_size": 64, "attention_head_dim": 16, "n_mamba_heads": 2},
    "zamba2": {"attention_hidden_size": 64, "attention_head_dim": 16, "n_mamba_heads": 8, "mamba_headdim": 8},
}  # fmt: skip
"""Configuration options of types in which several sizes must match."""


TIE = 1e-5
"""Two tokens count as tied in float32 if their logits differ by less than this, in standard deviations of the
logits."""


def model_types() -> list[str]:
    """List every causal and encoder-decoder type of the installed transformers."""
    return sorted({*MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, *MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES})


def tiny(model_type: str, window: int) -> PreTrainedModel:
    """Build a tiny model with unit-gain random weights. Raises whatever the type raises if it cannot be built."""
    config = AutoConfig.for_model(model_type, **MADE.get(model_type, {}))
    kind = _class_of(config)
    text = config.get_text_config(decoder=True)
    if type(text) is not type(config) and kind.config_class is type(text):
        config = text  # as AutoModelForCausalLM does
    if not config.is_encoder_decoder and hasattr(config, "is_decoder"):
        config.is_decoder = True
    small = shrunk(config, window=window, positions=POSITIONS, sizes=SMALL.get(model_type))
    small.tie_word_embeddings = False
    return build(kind, small)


def _class_of(config: PreTrainedConfig) -> type[PreTrainedModel]:
    reads = type(config) in MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING and (
        config.is_encoder_decoder or type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING
    )
    table = MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING if reads else MODEL_FOR_CAUSAL_LM_MAPPING
    entry: Any = table[type(config)]
    kind: type[PreTrainedModel] = entry[0] if isinstance(entry, (list, tuple)) else entry
    return kind
