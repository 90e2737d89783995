"""Tiny random models of every type that transformers decodes, for `benchmarks.architectures`."""

from __future__ import annotations

from typing import Any

from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM, PreTrainedConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING,
    MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
)

from copyspec.targets.shrinking import shrunk
from copyspec.targets.sibling import build

POSITIONS = 96

MADE: dict[str, dict[str, Any]] = {
    "deepseek_v2": {"num_experts_per_tok": 2, "n_group": 1, "topk_group": 1},
    "dots1": {"n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2},
    "hunyuan_v1_dense": {"head_dim": 128},
    "hunyuan_v1_moe": {"head_dim": 128},
    "ministral": {"head_dim": 128},
    "nemotron": {"head_dim": 128},
}
"""What types need beside their defaults, which alone make no model."""

SMALL: dict[str, dict[str, Any]] = {
    "mamba2": {"num_heads": 8, "head_dim": 8, "n_groups": 1},
    "xlnet": {"d_head": 8},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "recurrent_gemma": {"num_hidden_layers": 3},
}
"""Sizes that only fit one another."""


def model_types() -> list[str]:
    """Every causal and encoder-decoder type of the installed transformers."""
    return sorted({*MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, *MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES})


def tiny(model_type: str, window: int) -> PreTrainedModel:
    """A tiny model with unit-gain random weights. Raises what the type raises where it cannot be built."""
    config = AutoConfig.for_model(model_type, **MADE.get(model_type, {}))
    kind = _class_of(config)
    text = config.get_text_config(decoder=True)
    if type(text) is not type(config) and kind.config_class is type(text):
        config = text  # as AutoModelForCausalLM does
    if not config.is_encoder_decoder and hasattr(config, "is_decoder"):
        config.is_decoder = True
    small = shrunk(config, window=window, positions=POSITIONS)
    if model_type in SMALL:
        small = type(small).from_dict(small.to_dict() | SMALL[model_type])
    small.eos_token_id = None
    small.tie_word_embeddings = False
    return build(kind, small)


def _class_of(config: PreTrainedConfig) -> type[PreTrainedModel]:
    reads = type(config) in MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING and (
        config.is_encoder_decoder or type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING
    )
    table = MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING if reads else MODEL_FOR_CAUSAL_LM_MAPPING
    found = table[type(config)]
    return found[0] if isinstance(found, (list, tuple)) else found
