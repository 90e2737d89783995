"""Tiny random models of types that read images beside text, from configurations alone."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import transformers as hf
from transformers import PreTrainedModel

from tests.helpers.models import VOCAB_SIZE, spread_logits

_TEXT: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": None,
    "pad_token_id": 0,
}
_VISION: dict[str, Any] = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}
_GEMMA = _TEXT | {"head_dim": 8, "sliding_window": 12, "query_pre_attn_scalar": 8}
_ROTARY = _TEXT | {"rope_parameters": {"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 1e4}}
_DEEP = {"depth": 1, "hidden_size": 16, "intermediate_size": 32, "out_hidden_size": 32, "num_heads": 2}
_IMAGE = VOCAB_SIZE - 1
_QWEN = {
    "image_token_id": _IMAGE,
    "video_token_id": VOCAB_SIZE - 2,
    "vision_start_token_id": VOCAB_SIZE - 3,
    "vision_end_token_id": VOCAB_SIZE - 4,
}


def _qwen(name: str, text: dict[str, Any], vision: dict[str, Any]) -> PreTrainedModel:
    config = getattr(hf, f"{name}Config")(text_config=text, vision_config=vision, **_QWEN)
    model: PreTrainedModel = getattr(hf, f"{name}ForConditionalGeneration")(config)
    return model


def _joined(name: str, text: Any, vision: Any, **more: Any) -> PreTrainedModel:
    config = getattr(hf, f"{name}Config")(text_config=text, vision_config=vision, **more)
    model: PreTrainedModel = getattr(hf, f"{name}ForConditionalGeneration")(config)
    return model


_MAKERS: dict[str, Callable[[], PreTrainedModel]] = {
    "gemma3": lambda: _joined(
        "Gemma3",
        _GEMMA,
        _VISION,
        mm_tokens_per_image=4,
        image_token_index=_IMAGE,
        boi_token_index=VOCAB_SIZE - 2,
        eoi_token_index=VOCAB_SIZE - 3,
    ),
    "llava": lambda: _joined(
        "Llava", hf.LlamaConfig(**_TEXT), hf.CLIPVisionConfig(**_VISION), image_token_index=_IMAGE
    ),
    "llava_next": lambda: _joined(
        "LlavaNext", hf.LlamaConfig(**_TEXT), hf.CLIPVisionConfig(**_VISION), image_token_index=_IMAGE
    ),
    "mistral3": lambda: _joined(
        "Mistral3",
        hf.MistralConfig(**_TEXT, head_dim=8),
        hf.PixtralVisionConfig(**_VISION),
        image_token_index=_IMAGE,
    ),
    "qwen2_vl": lambda: _qwen("Qwen2VL", _ROTARY, {"depth": 1, "embed_dim": 16, "hidden_size": 32, "num_heads": 2}),
    "qwen2_5_vl": lambda: _qwen("Qwen2_5_VL", _ROTARY, _DEEP | {"fullatt_block_indexes": [0]}),
    "qwen3_vl": lambda: _qwen(
        "Qwen3VL",
        _ROTARY | {"head_dim": 8},
        _DEEP | {"num_position_embeddings": 16, "deepstack_visual_indexes": [0]},
    ),
    "smolvlm": lambda: _joined("SmolVLM", hf.LlamaConfig(**_TEXT), _VISION, image_token_id=_IMAGE, scale_factor=2),
    "idefics3": lambda: _joined("Idefics3", hf.LlamaConfig(**_TEXT), _VISION, image_token_id=_IMAGE, scale_factor=2),
    "internvl": lambda: _joined(
        "InternVL",
        hf.Qwen2Config(**_TEXT),
        _VISION | {"image_size": [28, 28], "patch_size": [14, 14]},
        image_token_id=_IMAGE,
    ),
    "paligemma2": lambda: _joined(
        "PaliGemma",
        hf.Gemma2Config(**_GEMMA),
        hf.SiglipVisionConfig(**_VISION),
        image_token_index=_IMAGE,
        projection_dim=32,
    ),
    "aya": lambda: _joined(
        "AyaVision", hf.CohereConfig(**_TEXT), hf.SiglipVisionConfig(**_VISION), image_token_index=_IMAGE
    ),
    "vipllava": lambda: _joined(
        "VipLlava",
        hf.LlamaConfig(**_TEXT),
        hf.CLIPVisionConfig(**_VISION),
        image_token_index=_IMAGE,
        vision_feature_layers=[0],
    ),
}

VISION = tuple(_MAKERS)


@cache
def with_vision(name: str) -> PreTrainedModel:
    """A tiny random model of type `name` that reads images, too; float32, in eval mode, without an end of sequence."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = _MAKERS[name]().eval()
        spread_logits(model)
    model.generation_config.pad_token_id = 0
    model.generation_config.eos_token_id = None
    return model
