"""`tiny("llama")`: any architecture, token ids only. Made from configurations alone: nothing is downloaded.

`tiny("llama")` gives a float32 model in eval mode with random weights whose greedy output varies and whose logits
lie far enough apart for exact comparison. Sizes are as small as each architecture allows.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM, PreTrainedModel

VOCAB_SIZE = 96
WINDOW = 6  # of sliding and chunked layers; so small that every test exceeds it

_BASE = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 512,
}
_GPT2 = {"vocab_size": VOCAB_SIZE, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 512}
_MOE = {"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
_ALTERNATING = {"sliding_window": WINDOW, "layer_types": ["sliding_attention", "full_attention"]}
BORDER_NAME = "original_max_position_embeddings"
_YARN: dict[str, Any] = {
    "rope_type": "yarn",
    "rope_theta": 1e4,
    "factor": 4.0,
    "original_max_position_embeddings": WINDOW,
}

_LLAMA3: dict[str, Any] = {
    "rope_type": "llama3",
    "rope_theta": 1e4,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": WINDOW,
}

LONGROPE: dict[str, Any] = {
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "short_factor": [1.0] * 4,
    "long_factor": [8.0, 6.0, 4.0, 2.0],
}
"""The `rope_parameters` of a model with heads of size 8, without the original context length."""

CAUSAL: dict[str, dict[str, Any]] = {
    "llama": _BASE,
    "mistral": _BASE | {"sliding_window": WINDOW},
    "qwen2": _BASE,
    "qwen3": _BASE,
    "qwen3_moe": _BASE | _MOE,
    "mixtral": _BASE | _MOE | {"sliding_window": None},
    "gemma": _BASE,
    "gemma2": _BASE | _ALTERNATING | {"query_pre_attn_scalar": 8},
    "gemma3_text": _BASE | _ALTERNATING | {"query_pre_attn_scalar": 8},
    "phi": _BASE | {"num_key_value_heads": 4, "partial_rotary_factor": 0.5},
    "phi3": _BASE | {"num_key_value_heads": 4, "sliding_window": None, "pad_token_id": 0},
    "gpt2": _GPT2,
    "gpt_neox": _BASE | {"rotary_pct": 0.5},
    "gptj": _GPT2 | {"rotary_dim": 4},
    "codegen": _GPT2 | {"rotary_dim": 4},
    "opt": _BASE | {"ffn_dim": 48, "word_embed_proj_dim": 32},
    "falcon": {k: v for k, v in _BASE.items() if k != "head_dim"}
    | {"new_decoder_architecture": True, "num_kv_heads": 2, "alibi": False},
    "stablelm": _BASE,
    "cohere": _BASE | {"logit_scale": 1.0},
    "cohere2": _BASE | _ALTERNATING | {"logit_scale": 1.0},
    "olmo2": _BASE,
    "granite": _BASE,
    "starcoder2": _BASE,
    "smollm3": _BASE | {"pad_token_id": 0, "no_rope_layers": [1, 0]},
    "glm4": _BASE | {"pad_token_id": 0, "partial_rotary_factor": 0.5},
    "biogpt": _BASE,
    "exaone4": _BASE | _ALTERNATING,
    "gpt_oss": _BASE | _MOE | _ALTERNATING,
    "deepseek_v3": _BASE
    | {
        "num_key_value_heads": 4,
        "q_lora_rank": 16,
        "kv_lora_rank": 16,
        "qk_nope_head_dim": 8,
        "qk_rope_head_dim": 8,
        "v_head_dim": 8,
        "n_routed_experts": 4,
        "n_group": 1,
        "topk_group": 1,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 24,
        "first_k_dense_replace": 1,
    },
    "llama4_text": _BASE
    | _MOE
    | {
        "intermediate_size_mlp": 48,
        "attention_chunk_size": WINDOW,
        "layer_types": ["chunked_attention", "full_attention"],
        "no_rope_layers": [1, 0],
        "floor_scale": WINDOW,  # of the attention temperature, which is on by default
        "attn_scale": 0.5,
        "pad_token_id": 0,
    },
    "ministral3": _BASE | {"rope_parameters": _YARN | {"llama_4_scaling_beta": 0.5}},
    "ernie4_5": _BASE,
    "bloom": {"vocab_size": VOCAB_SIZE, "hidden_size": 32, "n_layer": 2, "n_head": 4},
    "mpt": {"vocab_size": VOCAB_SIZE, "d_model": 32, "n_layers": 2, "n_heads": 4, "max_seq_len": 512},
}

_EXPERTS = {"moe_intermediate_size": 24, "num_experts_per_tok": 2}

OTHERS: dict[str, dict[str, Any]] = {
    "glm4_moe": _BASE | _EXPERTS | {"n_routed_experts": 4, "n_group": 1, "topk_group": 1, "use_qk_norm": True},
    "ernie4_5_moe": _BASE | _EXPERTS | {"moe_num_experts": 4, "moe_k": 2},
    "qwen3_5_moe_text": _BASE
    | _MOE
    | {"shared_expert_intermediate_size": 24}
    | {
        "layer_types": ["linear_attention", "full_attention"],
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 8,
    },
}
"""Models that only some tests need, made by `tiny` like the others."""

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama-llama3": ("llama", {"rope_parameters": _LLAMA3}),
    "mistral-full": ("mistral", {"sliding_window": None}),
    "phi3-window": ("phi3", {"sliding_window": WINDOW}),
    "falcon-7b": ("falcon", {"new_decoder_architecture": False}),
    "mixtral-window": ("mixtral", {"sliding_window": WINDOW}),
}
"""Variants of these types that occur in checkpoints: (type, overrides)."""

_MAMBA = {"vocab_size": VOCAB_SIZE, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 4}
_DELTA: dict[str, Any] = {
    "layer_types": ["linear_attention", "full_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}

STATEFUL: dict[str, dict[str, Any]] = {
    "mamba": _MAMBA,
    "mamba2": _MAMBA | {"num_heads": 8, "head_dim": 8, "n_groups": 1, "chunk_size": 8},
    "qwen3_next": _BASE | _MOE | _DELTA | {"shared_expert_intermediate_size": 24},
    "qwen3_5_text": _BASE | _DELTA,
    "lfm2": _BASE | {"layer_types": ["conv", "full_attention"], "block_ff_dim": 48},
    "falcon_h1": _BASE
    | {"mamba_d_ssm": 32, "mamba_n_heads": 4, "mamba_d_head": 8, "mamba_n_groups": 1, "mamba_d_state": 4}
    | {"mamba_chunk_size": 8},
}
"""Models whose layers, or some of them, keep states in transformers' cache."""

RECURRENT: dict[str, dict[str, Any]] = {
    "rwkv": {"vocab_size": VOCAB_SIZE, "hidden_size": 32, "num_hidden_layers": 2, "context_length": 512},
    "recurrent_gemma": _BASE
    | {"num_hidden_layers": 3, "lru_width": 32, "attention_window_size": 8, "block_types": ["recurrent", "attention"]},
}
"""Models that keep states elsewhere."""

_BART = {
    "vocab_size": VOCAB_SIZE,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "decoder_start_token_id": 2,
    "forced_eos_token_id": None,
}
_T5 = {
    "vocab_size": VOCAB_SIZE,
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 48,
    "num_layers": 2,
    "num_heads": 4,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 16,
    "pad_token_id": 0,
    "decoder_start_token_id": 0,
}

SEQ2SEQ: dict[str, dict[str, Any]] = {
    "t5": _T5,
    "mt5": _T5,
    "bart": _BART,
    "mbart": _BART,
    "pegasus": _BART,
    "marian": _BART | {"decoder_vocab_size": VOCAB_SIZE},
    "blenderbot": _BART,
}


def tiny(name: str, *, seed: int = 0, eos: int | None = None, **overrides: Any) -> PreTrainedModel:
    """A tiny random model of architecture `name` (a key of the tables above), float32, in eval mode.

    `eos`: the end-of-sequence id in its generation config (None: it never ends by itself). `overrides` go into the
    configuration. The same arguments give the same weights.
    """
    name, other = VARIANTS.get(name, (name, {}))
    overrides = other | overrides
    table = CAUSAL.get(name) or STATEFUL.get(name) or RECURRENT.get(name) or OTHERS.get(name) or SEQ2SEQ[name]
    # Untied: with tied weights and random layers the most probable token is always the last one.
    common = {"eos_token_id": eos, "bos_token_id": 1, "tie_word_embeddings": False}
    config = AutoConfig.for_model(name, **(table | common | overrides))
    auto = AutoModelForSeq2SeqLM if name in SEQ2SEQ else AutoModelForCausalLM
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: PreTrainedModel = auto.from_config(config, dtype=torch.float32).eval()
        spread_logits(model)
    model.generation_config.pad_token_id = 0
    model.generation_config.eos_token_id = eos
    return model


def spread_logits(model: PreTrainedModel) -> None:
    """Redraw every weight matrix with unit gain, since the usual initialisation gives nearly constant logits."""
    for parameter in model.parameters():
        if parameter.dim() >= 2:
            torch.nn.init.normal_(parameter, std=float(parameter.shape[-1]) ** -0.5)


def random_ids(length: int, *, seed: int = 0, low: int = 3, high: int = VOCAB_SIZE) -> list[int]:
    """Token ids in [low, high), the same for the same seed."""
    generator = torch.Generator().manual_seed(seed)
    return [int(i) for i in torch.randint(low, high, (length,), generator=generator)]


class Adapted(nn.Module):
    """A layer with an adapter that can be disabled, under the names that peft uses."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.disable_adapters, self.merged_adapters = inner, False, list[str]()

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.inner(states)
        return output if self.disable_adapters else output - 3.0 * output.roll(1, -1)
