"""Settings of GGUF files as llama.cpp's converter writes them for common families: none is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from transformers import AutoConfig

from copyspec.models.gguf_settings import LONG, SHORT, adopt_rope, adopt_settings

COMMON = {"context_length": 4096, "embedding_length": 256, "block_count": 4, "feed_forward_length": 512}
OLD = ("gpt2", "bloom", "mamba", "falcon")
RMS = {"attention.layer_norm_rms_epsilon": 1e-5}
NORM = {"attention.layer_norm_epsilon": 2e-5}
SIZES = {"attention.key_length": 32, "attention.value_length": 32}

# The architecture, the type of the model, the settings, and what the configuration must have then.
FAMILIES: list[tuple[str, str, dict[str, Any], dict[str, Any]]] = [
    ("llama", "llama", {**RMS, "rope.dimension_count": 32, "vocab_size": 99, "rope.freq_base": 5e5}, {"rope": 5e5}),
    ("llama", "mistral", {**RMS, **SIZES, "rope.dimension_count": 32, "rope.freq_base": 1e6}, {"sliding_window": None}),
    ("qwen2", "qwen2", {**RMS, "rope.freq_base": 1e6}, {"rope": 1e6}),
    ("qwen3", "qwen3", {**RMS, **SIZES, "rope.freq_base": 1e6}, {"rms_norm_eps": 1e-5}),
    (
        "qwen2moe",
        "qwen2_moe",
        {**RMS, "expert_count": 8, "expert_used_count": 2, "expert_feed_forward_length": 64, "rope.freq_base": 1e6}
        | {"expert_shared_feed_forward_length": 64},
        {"num_experts_per_tok": 2},
    ),
    ("qwen3moe", "qwen3_moe", {**RMS, **SIZES, "expert_count": 8, "expert_used_count": 4}, {"num_experts_per_tok": 4}),
    (
        "gemma2",
        "gemma2",
        {**RMS, **SIZES, "attn_logit_softcapping": 40.0, "final_logit_softcapping": 20.0}
        | {"attention.sliding_window": 64, "rope.freq_base": 1e4},
        {"attn_logit_softcapping": 40.0, "final_logit_softcapping": 20.0, "sliding_window": 64},
    ),
    (
        "gemma3",
        "gemma3_text",
        {**RMS, **SIZES, "attention.sliding_window": 512, "rope.freq_base": 1e6, "rope.scaling.type": "linear"}
        | {"rope.scaling.factor": 8.0, "attention.sliding_window_pattern": 2},
        {"sliding_window": 512, "layer_types": ["sliding_attention", "full_attention"] * 2},
    ),
    (
        "phi3",
        "phi3",
        {**RMS, "rope.dimension_count": 24, "rope.freq_base": 1e4, "attention.sliding_window": 2047}
        | {"rope.scaling.original_context_length": 64, "rope.scaling.attn_factor": 1.19},
        {"sliding_window": 2047, "original_max_position_embeddings": 64},
    ),
    ("falcon", "falcon", {**NORM, "tensor_data_layout": "jploski"}, {"layer_norm_epsilon": 2e-5}),
    (
        "stablelm",
        "stablelm",
        {**NORM, "rope.dimension_count": 8, "use_parallel_residual": True},
        {"layer_norm_eps": 2e-5},
    ),
    ("starcoder2", "starcoder2", {**NORM, "rope.freq_base": 1e5}, {"rope": 1e5, "norm_epsilon": 2e-5}),
    ("nemotron", "nemotron", {**NORM, "rope.dimension_count": 16, "rope.freq_base": 1e4}, {"norm_eps": 2e-5}),
    ("gpt2", "gpt2", dict(NORM), {"layer_norm_epsilon": 2e-5}),
    ("bloom", "bloom", {**NORM, "attention.max_alibi_bias": 8.0}, {"layer_norm_epsilon": 2e-5}),
    ("mamba", "mamba", {**RMS, "ssm.conv_kernel": 4, "ssm.dt_b_c_rms": False}, {"layer_norm_epsilon": 1e-5}),
    (
        "gpt-oss",
        "gpt_oss",
        {**RMS, **SIZES, "attention.sliding_window": 128, "expert_count": 8},
        {"sliding_window": 128},
    ),
]


@pytest.mark.parametrize(
    ("architecture", "kind", "settings", "expected"), FAMILIES, ids=[kind for _, kind, *_ in FAMILIES]
)
def test_common_families_are_taken_over(
    architecture: str, kind: str, settings: dict[str, Any], expected: dict[str, Any]
) -> None:
    sizes = {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 8, "vocab_size": 99}
    sizes |= {"max_position_embeddings": 4096, "num_experts": 8, "num_local_experts": 8}
    if kind not in OLD:
        sizes |= {"num_key_value_heads": 4}
    if kind not in (*OLD, "qwen2", "starcoder2", "phi3"):
        sizes |= {"head_dim": 32}
    config = AutoConfig.for_model(kind, **sizes)
    heads = {"attention.head_count": 8, "attention.head_count_kv": 8 if kind in OLD else 4}
    if kind == "mamba":
        heads = {}
    unread = {f"{architecture}.{name}": value for name, value in {**COMMON, **heads, **settings}.items()}
    if kind == "falcon":
        config.num_kv_heads = 8
    scales = {name: np.ones(12) for name in (LONG, SHORT)} if kind == "phi3" else {}
    adopt_settings(unread, architecture, config)
    adopt_rope(unread, architecture, config, scales)
    assert not unread
    rope = expected.pop("rope", None)
    assert rope is None or config.rope_parameters["rope_theta"] == rope
    for name, value in expected.items():
        assert getattr(config, name) == value, name
    if kind == "gemma3_text":
        assert config.rope_parameters["full_attention"]["factor"] == 8.0
        assert config.rope_parameters["sliding_attention"]["rope_type"] == "default"
    if kind in ("phi3", "stablelm", "nemotron"):
        assert config.rope_parameters["partial_rotary_factor"] == settings["rope.dimension_count"] / 32
