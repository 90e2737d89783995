"""Model configurations that need no self-test, because tests/targets/test_tree.py covers their shape.

The shape of a configuration is everything in it that may decide how the model works: flags, kinds of layers and
positions, which parts exist. Sizes do not count. A model of a known type with an unusual flag, or of a class from
outside transformers, is tested like any other.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

# fmt: off
KNOWN = frozenset((
    "bart:9ee6f4071f", "biogpt:f110635cb0", "blenderbot:ee2818030a", "bloom:ea52b20983", "codegen:1d018a8f4c",
    "cohere2:597e75a007", "cohere:8ca4e34d43", "deepseek_v3:4e88e1df21", "ernie4_5:e8840159ec",
    "exaone4:1ee6019fff", "falcon:03e269bd93", "falcon:2afd361917", "gemma2:576eaadce0", "gemma3_text:d28ec9db43",
    "gemma:0291d44098", "glm4:7de238f826", "gpt2:6bbc563f08", "gpt_neox:bccae6c9e3", "gpt_oss:b2a1b256b9",
    "gptj:b46dbb39af", "granite:3fb66064f4", "llama4_text:fab3f279e4", "llama:069320ef5c", "llama:9599e02274",
    "marian:cdac3f7369", "mbart:42f9d61216", "ministral3:ce067598fb", "mistral:08149a609b", "mistral:b51231fcaf",
    "mixtral:0803bec90e", "mixtral:f792adc43a", "mpt:b8182d912e", "mt5:eb40a66d12", "olmo2:0868fa3e44",
    "opt:ef186ab7b0", "pegasus:3e2d19b3d9", "phi3:9fb3da64eb", "phi3:d64faa4d85", "phi:f9d029962f",
    "qwen2:af30968abd", "qwen3:6c398ac11e", "qwen3_moe:f7bf924170", "smollm3:cd22c6c0d2", "stablelm:661a558bd6",
    "starcoder2:87b8bc22a3", "t5:1c7c761dd3",
))
# fmt: on
"""Digests of shapes. `tests/targets/test_known.py` compares them to the pinned version of transformers. Configurations
of other versions have other fields, so that their models are self-tested."""

_WITHOUT_MEANING = re.compile(
    r"_.*|transformers_version|(torch_)?dtype|architectures|.*(id2label|label2id|token_id|token_ids)|problem_type"
    r"|use_cache|output_.*|return_dict|tie_.*|.*dropout.*|.*_pdrop|hidden_act.*|activation_.*|.*initializer.*|init_std"
    r"|classifier_.*|summary_.*|(attention|mlp|use|qkv|use_qkv)_bias|quantization_config|pretraining_tp"
    r"|(moe_)?intermediate_size|head_dim|num_key_value_heads|num_(local_)?experts|scale_decoder_outputs"
    r"|num_ln_in_parallel_attn|chunk_size_feed_forward|task_specific_params|generation_config|num_labels|finetuning_task|router_aux.*"
)
"""Fields that affect neither masks nor positions nor the cache."""


def digest(config: PreTrainedConfig) -> str:
    """The digest of the configuration's shape."""
    text = json.dumps([config.model_type, _shape(config.to_dict())], sort_keys=True, default=str)
    return f"{config.model_type}:{hashlib.sha256(text.encode()).hexdigest()[:10]}"


def _shape(value: object) -> object:
    """Replace every number in `value` by the word "number"."""
    if isinstance(value, Mapping):
        return {str(name): _shape(item) for name, item in value.items() if not _WITHOUT_MEANING.fullmatch(str(name))}
    if isinstance(value, (list, tuple)):
        return sorted({json.dumps(_shape(item), sort_keys=True, default=str) for item in value})
    return "number" if isinstance(value, (int, float)) and not isinstance(value, bool) else value
