"""DFlash's published format: read, computed as its own code does, and reported if it is broken."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn.functional import scaled_dot_product_attention
from transformers import PreTrainedModel, Qwen3Config
from transformers.models.qwen3.modeling_qwen3 import Qwen3DecoderLayer, Qwen3RotaryEmbedding, apply_rotary_pos_emb

from copyspec.drafters.predictors.block_layers import BlockLayers
from copyspec.drafters.predictors.head_files import load_heads
from copyspec.models.errors import LoadError
from copyspec.targets.base import LAST
from tests.helpers.models import tiny
from tests.helpers.pairs import PairRows

SIZE = 32
KINDS = ["full_attention", "sliding_attention"]
SHARED = (
    "hidden_size", "vocab_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "rms_norm_eps",
)  # fmt: skip


def dflash_folder(folder: Path, model: PreTrainedModel, **changes: object) -> list[Qwen3DecoderLayer]:
    """Write two random layers in DFlash's published layout; return them. `changes` apply to the configuration, its
    `dflash_config` or the tensors, from which None removes."""
    config = Qwen3Config(**{key: getattr(model.config, key) for key in SHARED}, head_dim=8, num_hidden_layers=2)
    layers = [Qwen3DecoderLayer(config, number) for number in range(2)]
    tensors = {f"layers.{key}": tensor.clone() for key, tensor in torch.nn.ModuleList(layers).state_dict().items()}
    tensors |= {"fc.weight": torch.randn(SIZE, 2 * SIZE), "hidden_norm.weight": torch.rand(SIZE) + 0.5}
    tensors["norm.weight"] = torch.rand(SIZE) + 0.5
    fields: dict[str, object] = {key: getattr(config, key) for key in SHARED}
    fields |= {"num_hidden_layers": 2, "head_dim": 8, "layer_types": KINDS, "rope_theta": 1e6}
    settings: dict[str, object] = {"mask_token_id": 95, "target_layer_ids": [0, 1]}
    fields |= {"sliding_window": 5, "block_size": 4, "num_target_layers": 2, "dflash_config": settings}
    for name, change in changes.items():
        if isinstance(change, torch.Tensor):
            tensors[name] = change
        elif change is None:
            del tensors[name]
        else:
            (settings if name in settings or name.startswith("use_") else fields)[name] = change
    folder.mkdir(exist_ok=True)
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(fields))
    return layers


def test_dflashs_published_format(tmp_path: Path) -> None:
    """Names, shapes and results against Qwen3's modules: a block behind five states that are read in two passes."""
    model = tiny("llama")
    layers = dflash_folder(tmp_path, model)
    file = load_heads(tmp_path, model)
    tensors = load_file(tmp_path / "model.safetensors")
    heads = file.heads
    assert isinstance(heads, BlockLayers) and heads.depth == 3 and heads.mask == 95
    assert heads.reads(2) == (1, LAST)  # the states after the layers 0 and 1
    states, block = torch.randn(5, 2 * SIZE), torch.randn(2, SIZE)[[0, 1, 1, 1]]

    def normed(x: torch.Tensor, name: str) -> torch.Tensor:
        return torch.nn.functional.rms_norm(x, (SIZE,), tensors[f"{name}.weight"], model.config.rms_norm_eps)

    # The second layer attends to the last five tokens of each, and not to those after it.
    back = torch.arange(5, 9)[:, None] - torch.arange(9)
    masks = [None, (back >= 0) & (back < 5)]
    config = Qwen3Config(head_dim=8, rope_parameters={"rope_type": "default", "rope_theta": 1e6})
    cos, sin = Qwen3RotaryEmbedding(config)(block, torch.arange(9)[None])
    context, hidden = normed(states @ tensors["fc.weight"].T, "hidden_norm"), block
    with torch.no_grad():
        for layer, mask in zip(layers, masks, strict=True):
            own, inputs = layer.self_attn, layer.input_layernorm(hidden)
            both = torch.cat([context, inputs])
            queries = own.q_norm(own.q_proj(inputs).view(4, -1, 8)).transpose(0, 1)[None]
            keys = own.k_norm(own.k_proj(both).view(9, -1, 8)).transpose(0, 1)[None]
            values = own.v_proj(both).view(9, -1, 8).transpose(0, 1)[None]
            queries, _ = apply_rotary_pos_emb(queries, queries, cos[:, 5:], sin[:, 5:])
            keys, _ = apply_rotary_pos_emb(keys, keys, cos, sin)
            attended = scaled_dot_product_attention(queries, keys, values, mask, enable_gqa=True)
            hidden = hidden + own.o_proj(attended[0].transpose(0, 1).flatten(1))
            hidden = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
        rows = PairRows(12)
        heads.features(rows.read((states[:2], block[:2])), block[1:2])
        features = heads.features(rows.read((states[2:], block[[1, 1, 0]])), block[1:2])
    assert features.shape == (1, 3, SIZE)
    torch.testing.assert_close(heads.head_inputs(features[0]), normed(hidden, "norm")[1:], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mask_token_id": 96}, "has mask_token_id=96; it is an integer from 0 to 95"),
        ({"block_size": 1}, "has block_size=1; it is an integer from 2 to 64"),
        ({"target_layer_ids": [0, 2]}, r"has target_layer_ids=\[0, 2\], and 2 layers of this model are known"),
        ({"target_layer_ids": []}, r"has target_layer_ids=\[\]; it must be a list of layer indices"),
        ({"use_swa": True}, "has use_swa in dflash_config, which this version does not read"),
        ({"layer_types": ["chunked_attention"] * 2}, "has layer_types=.*; it lists 'full_attention' or 'sliding_"),
        ({"sliding_window": 0}, "has sliding_window=0; it is an integer from 1 to"),
        ({"is_causal": True}, "has is_causal=True; sliding_attention is read as causal, full_attention as not"),
        ({"attention_bias": True}, "has attention_bias=True; DFlash's layers are read with False"),
        ({"rope_parameters": {"rope_type": "yarn"}}, "has rope_type='yarn'"),
        ({"dflash_config": 3}, "has dflash_config=3; it is an object"),
        ({"num_hidden_layers": 65}, "has num_hidden_layers=65; it is an integer from 1 to 64"),
        ({"vocab_size": 5}, "for a model of vocab_size=5"),
        ({"fc.weight": torch.ones(SIZE, SIZE)}, r"has 'fc.weight' of shape \[32, 32\], and the model needs \[32, 64\]"),
        ({"layers.1.self_attn.k_norm.weight": None}, "has no tensor 'layers.1.self_attn.k_norm.weight'"),
        ({"selector.weight": torch.ones(1)}, "has 'selector.weight', which has no place in DFlash's layers"),
    ],
)
def test_wrong_blocks_are_told(changes: dict[str, object], message: str, tmp_path: Path) -> None:
    model = tiny("llama")
    dflash_folder(tmp_path, model, **changes)
    with pytest.raises(LoadError, match=message):
        load_heads(tmp_path, model)
