"""Reads draft heads from a folder: this project's own format, and published checkpoints of Medusa, EAGLE in
its three versions, and DFlash."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from copyspec.common.checks import brief
from copyspec.drafters.predictors.block_layers import BlockLayers
from copyspec.drafters.predictors.feature_layer import FEATURE_DEPTH, FeatureLayer, LayerSizes, Tensors
from copyspec.drafters.predictors.head_folder import MAX_UNITS, SAME_MODEL, HeadFile, HeadFolder, Shape
from copyspec.drafters.predictors.head_weights import Heads, ParallelHeads, RecurrentHead, probe
from copyspec.models.errors import FileError, first_line, load_errors
from copyspec.models.files import CONFIG, check_folder, open_weights, read_json
from copyspec.targets.base import LAST
from copyspec.targets.hooks.modules import decoder_layers, output_head, real_weight

if TYPE_CHECKING:
    from transformers import PreTrainedModel

FORMAT = "copyspec-heads-1"
WEIGHTS = "heads.safetensors"


def load_heads(folder: Path, model: PreTrainedModel) -> HeadFile:
    """Read and check heads for `model`. Raises LoadError that names the folder and what is wrong with it."""
    with load_errors(lambda error: f"draft heads {str(folder)!r} cannot be loaded: {first_line(error)}"):
        return _load(folder, model)


def _load(folder: Path, model: PreTrainedModel) -> HeadFile:
    if not folder.is_dir():
        raise FileError('there is no such folder; draft_model="heads:FOLDER" takes one that training.heads has made')
    check_folder(folder)
    if not (folder / CONFIG).is_file():
        raise FileError(f"it has no {CONFIG}")
    config = read_json(folder / CONFIG)
    weight = real_weight(output_head(model))
    if not isinstance(weight, torch.Tensor) or weight.dim() != 2:
        raise FileError(f"{type(model).__name__} has no output head whose input they could read")
    layers = len(decoder_layers(model))
    if "format" in config:
        return OwnHeads(folder, config, weight, layers).read()
    table = real_weight(model.get_input_embeddings())
    assert table is not None
    return PublishedHeads(folder, config, weight, layers).read(table)


class OwnHeads(HeadFolder):
    """Reader of the folder that `training.heads` has made."""

    def read(self) -> HeadFile:
        config = self._config
        if config["format"] != FORMAT:
            raise FileError(f"{CONFIG} has format={brief(config['format'])}; this version reads {FORMAT!r}")
        self._check_model()
        depth, kind = self._count("depth"), config.get("kind")
        if kind not in ("recurrent", "parallel", "feature"):
            raise FileError(f"{CONFIG} has kind={brief(kind)}; it is 'recurrent', 'parallel' or 'feature'")
        size, inner = self._size, self._count("inner_size", most=MAX_UNITS)
        layers = self._inner_layers() if kind == "recurrent" else ()
        shapes: dict[str, Shape] = {"probe": (64,)}
        optional: dict[str, Shape | None] = {"vocabulary": None}
        sizes = self._layer_sizes("inner_size", is_fused=False) if kind == "feature" else None
        if sizes is not None:
            shapes |= sizes.shapes()
            optional |= dict.fromkeys(("token_norm", "feature_norm"), (size,))
        elif kind == "recurrent":
            shapes |= {"gate": (inner, 2 * size), "up": (inner, 2 * size), "down": (size, inner), "norms": (2, size)}
            if layers:
                shapes["mix"] = (size, len(layers) * size)
        else:
            for number in range(depth):
                shapes |= {f"{number}.down": (inner, size), f"{number}.up": (size, inner)}
        tensors = self._read(WEIGHTS, shapes, optional)
        theirs = tensors.pop("probe")
        same = torch.nn.functional.cosine_similarity(theirs.float(), probe(self._weight), dim=0)
        if not same >= SAME_MODEL:
            raise FileError(
                f"they were trained on another model, {brief(config.get('model'))}: its output weights are not this "
                "one's"
            )
        vocabulary = tensors.pop("vocabulary", None)
        if vocabulary is not None:
            vocabulary = self._checked_vocabulary(vocabulary, WEIGHTS)
        heads: Heads
        if sizes is not None:
            heads = FeatureLayer(tensors, sizes, FEATURE_DEPTH)
        elif kind == "recurrent":
            # In float32, because norms are multiplied into weights.
            heads = RecurrentHead({name: tensor.float() for name, tensor in tensors.items()}, depth, layers)
        else:
            parts = [{name: tensors[f"{number}.{name}"] for name in ("down", "up")} for number in range(depth)]
            heads = ParallelHeads([[part] for part in parts])
        return HeadFile(heads, vocabulary, self._folder.name)

    def _inner_layers(self) -> tuple[int, ...]:
        """The layers of the target whose inputs a recurrent head reads beside the last hidden state."""
        layers = self._config.get("layers", [])
        return self._layer_list(layers, "layers") if layers != [] else ()


MEDUSA_HEADS = "medusa_num_heads"
MEDUSA_WEIGHTS = "medusa_lm_head.safetensors"
MEDUSA_PREFIXES = ("medusa_head.", "medusa_heads.")  # in files that name tensors as in the whole model
EAGLE_WEIGHTS = "model.safetensors"
EAGLE_LAYERS = ("layers.0.", "midlayer.")  # names of the one layer in EAGLE and EAGLE-2, and in EAGLE-3
DFLASH = "dflash_config"  # settings of DFlash beside those of its layers
AUX_LAYERS = "eagle_aux_hidden_state_layer_ids"
"""Setting of later EAGLE-3 checkpoints: the target's layers whose inputs are read, three of them."""

UNREAD = ("use_swa", "causal", "attention_sink_bias", "attention_value_scale", "input_embedding_scale")
"""Settings of some of DFlash's checkpoints that change what the layers compute."""

FULL, SLIDING, MAX_WINDOW = "full_attention", "sliding_attention", 1 << 24

MAX_BLOCK, MAX_LAYERS = 64, 64
"""Maximum number of tokens of a block and of layers in DFlash's format; published ones have up to 16 and 8."""

MIN_LAYERS = 6
"""Minimum number of layers of a target for EAGLE-3, which mixes the states of the layers at 2, n // 2 and n - 3. With
fewer layers these are not three different ones."""


class PublishedHeads(HeadFolder):
    """Reader of the folder of a published checkpoint."""

    def read(self, table: torch.Tensor) -> HeadFile:
        """Read it in the format that its configuration has. `table`: the target's embeddings, [V, D]."""
        if MEDUSA_HEADS in self._config:
            return self._medusa()
        if DFLASH in self._config:
            return self._dflash()
        if "num_attention_heads" in self._config:
            return self._eagle(table)
        raise FileError(
            f"{CONFIG} has neither format nor {MEDUSA_HEADS} nor {DFLASH} nor the sizes of EAGLE's layer: this is not "
            "a draft-head checkpoint"
        )

    def _medusa(self) -> HeadFile:
        """Read Medusa's format: `{head}.{layer}.linear.weight` and `.bias`, then the output weights of each head."""
        depth, layers = self._count("medusa_num_heads"), self._count("medusa_num_layers")
        size, shapes = self._size, dict[str, Shape]()
        for head in range(depth):
            for layer in range(layers):
                shapes |= {f"{head}.{layer}.linear.weight": (size, size), f"{head}.{layer}.linear.bias": (size,)}
            shapes[f"{head}.{layers}.weight"] = (self._vocab, size)
        tensors = self._read(MEDUSA_WEIGHTS, shapes, strip=MEDUSA_PREFIXES)
        blocks = [
            [{name: tensors[f"{head}.{layer}.linear.{name}"] for name in ("weight", "bias")} for layer in range(layers)]
            for head in range(depth)
        ]
        outputs = [tensors[f"{head}.{layers}.weight"] for head in range(depth)]
        return HeadFile(ParallelHeads(blocks, outputs), None, self._folder.name)

    def _eagle(self, table: torch.Tensor) -> HeadFile:
        """Read EAGLE's format: `fc` and one decoder layer with Llama's names; EAGLE-3 adds `norm`, `lm_head` and `d2t`.
        `table`: the target's embeddings, [V, D], of which some files hold a copy."""
        self._check_model()
        self._check_settings("EAGLE's layer is", num_hidden_layers=1, hidden_act="silu", rope_scaling=None)
        self._check_settings("EAGLE's layer is", norm_before_residual=False, norm_before_fc=False)
        stored = self._stored(EAGLE_WEIGHTS)
        prefixes = [prefix for prefix in EAGLE_LAYERS if f"{prefix}self_attn.q_proj.weight" in stored]
        if not prefixes:
            raise FileError(
                f"{EAGLE_WEIGHTS} has none of the layers {list(EAGLE_LAYERS)}: this is not a draft-head checkpoint"
            )
        prefix, is_fused = prefixes[0], prefixes[0] == EAGLE_LAYERS[1]
        layers = self._aux_layers() if is_fused else ()
        sizes = self._layer_sizes("intermediate_size", is_fused=is_fused)
        whole, size, inner = sizes.shapes(), self._size, sizes.inner
        own, shared = sizes.heads * sizes.head_dim, sizes.kv_heads * sizes.head_dim
        parts = {"q": own, "k": shared, "v": shared}
        shapes: dict[str, Shape] = {"fc.weight": whole["fc"], f"{prefix}self_attn.o_proj.weight": whole["o"]}
        shapes |= {f"{prefix}self_attn.{part}_proj.weight": (rows, whole["qkv"][1]) for part, rows in parts.items()}
        shapes |= {f"{prefix}mlp.{part}_proj.weight": (inner, size) for part in ("gate", "up")}
        shapes |= {f"{prefix}mlp.down_proj.weight": (size, inner), f"{prefix}post_attention_layernorm.weight": (size,)}
        optional: dict[str, Shape | None] = {"fc.bias": (size,)}
        if is_fused:
            count = self._count("draft_vocab_size", most=self._vocab)
            shapes |= {f"{prefix}{name}.weight": (size,) for name in ("hidden_norm", "input_layernorm")}
            shapes |= {"norm.weight": (size,), "lm_head.weight": (count, size)}
            optional = {"d2t": (count,)}
            if count < self._vocab:
                shapes["d2t"] = (count,)
        weights = self._read(EAGLE_WEIGHTS, shapes, optional)
        self._check_embeddings(table)
        tensors: Tensors = {
            "fc": weights["fc.weight"],
            "qkv": torch.cat([weights[f"{prefix}self_attn.{part}_proj.weight"] for part in parts]),
            "o": weights[f"{prefix}self_attn.o_proj.weight"],
            "gate_up": torch.cat([weights[f"{prefix}mlp.{part}_proj.weight"] for part in ("gate", "up")]),
            "down": weights[f"{prefix}mlp.down_proj.weight"],
            "after_norm": weights[f"{prefix}post_attention_layernorm.weight"],
        }
        if not is_fused:
            tensors |= {"fc_bias": weights["fc.bias"]} if "fc.bias" in weights else {}
            return HeadFile(FeatureLayer(tensors, sizes, FEATURE_DEPTH), None, self._folder.name)
        tensors["token_norm"] = weights[f"{prefix}input_layernorm.weight"]
        tensors["feature_norm"] = weights[f"{prefix}hidden_norm.weight"]
        tensors["norm"] = weights["norm.weight"]
        vocabulary = None
        if "d2t" in weights:  # offset from each token of the draft vocabulary to the target's
            offsets = weights["d2t"].long()
            targets = offsets + torch.arange(len(offsets), device=offsets.device)
            vocabulary = self._checked_vocabulary(targets, EAGLE_WEIGHTS)
        layer = FeatureLayer(tensors, sizes, FEATURE_DEPTH, weights["lm_head.weight"], layers=layers)
        return HeadFile(layer, vocabulary, self._folder.name)

    def _dflash(self) -> HeadFile:
        """Read DFlash's format: `fc`, `hidden_norm`, Qwen3's decoder layers, `norm`; embeddings and output weights are
        the target's."""
        self._check_model()
        self._check_settings("DFlash's layers are", hidden_act="silu", rope_scaling=None, attention_bias=False)
        self._check_settings("DFlash's layers are", draft_vocab_size=self._vocab)
        settings, count = self._config[DFLASH], self._count("num_hidden_layers", most=MAX_LAYERS)
        if not isinstance(settings, dict):
            raise FileError(f"{CONFIG} has {DFLASH}={brief(settings)}; it is an object")
        if others := [name for name in UNREAD if settings.get(name)]:
            raise FileError(f"{CONFIG} has {others[0]} in {DFLASH}, which this version does not read")
        mask, size = settings.get("mask_token_id"), self._config.get("block_size", settings.get("block_size"))
        bounds = ("mask_token_id", mask, 0, self._vocab - 1), ("block_size", size, 2, MAX_BLOCK)
        for name, value, least, most in bounds:
            if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
                raise FileError(f"{CONFIG} has {name}={brief(value)}; it is an integer from {least} to {most}")
        assert isinstance(mask, int) and isinstance(size, int)
        # States after a layer are the inputs of the next one.
        after = self._layer_list(settings.get("target_layer_ids"), "target_layer_ids")
        layers = tuple(LAST if number + 1 == self._layers else number + 1 for number in after)
        sizes = self._layer_sizes("intermediate_size", is_fused=False)
        shapes: dict[str, Shape] = {"fc.weight": (self._size, len(layers) * self._size)}
        shapes |= dict.fromkeys(("hidden_norm.weight", "norm.weight"), (self._size,))
        for number in range(count):
            shapes |= {f"layers.{number}.{name}": shape for name, shape in _qwen3_layer(sizes).items()}
        if unknown := sorted(self._stored(EAGLE_WEIGHTS) - shapes.keys() - {"embed_tokens.weight", "t2d"}):
            raise FileError(f"{EAGLE_WEIGHTS} has {unknown[0]!r}, which has no place in DFlash's layers")
        weights = self._read(EAGLE_WEIGHTS, shapes)
        blocks = [_joined(weights, f"layers.{number}.") for number in range(count)]
        whole = {
            "fc": weights["fc.weight"],
            "state_norm": weights["hidden_norm.weight"],
            "norm": weights["norm.weight"],
        }
        heads = BlockLayers(whole, blocks, sizes, size, mask, layers, self._windows(count))
        return HeadFile(heads, None, self._folder.name)

    def _windows(self, count: int) -> list[int]:
        """The windows of DFlash's layers. Those that slide look back only, unless the configuration says otherwise."""
        kinds = self._config.get("layer_types") or [FULL] * count
        if not isinstance(kinds, list) or len(kinds) != count or not set(kinds) <= {FULL, SLIDING}:
            raise FileError(f"{CONFIG} has layer_types={brief(kinds)}; it lists {FULL!r} or {SLIDING!r} for each layer")
        causal = self._config.get("is_causal")
        if causal is not None and any(causal is not (kind == SLIDING) for kind in kinds):
            raise FileError(f"{CONFIG} has is_causal={brief(causal)}; {SLIDING} is read as causal, {FULL} as not")
        return [self._count("sliding_window", most=MAX_WINDOW) if kind == SLIDING else 0 for kind in kinds]

    def _aux_layers(self) -> tuple[int, ...]:
        """The layers that EAGLE-3 reads, if the files say which; else none, which stands for the published ones."""
        settings = self._config.get("eagle_config")
        layers_named = (settings if isinstance(settings, dict) else self._config).get(AUX_LAYERS)
        if layers_named is not None:
            layers = self._layer_list(layers_named, AUX_LAYERS)
            if len(layers) != 3:
                raise FileError(f"{CONFIG} has {AUX_LAYERS}={brief(layers_named)}; EAGLE-3 reads three layers")
            return layers
        if self._layers < MIN_LAYERS:
            raise FileError(f"they read three layers of the model, and {self._layers} of this one are known")
        return ()

    def _check_embeddings(self, table: torch.Tensor) -> None:
        """Check that embeddings in a published file, if there are any, are the target's."""
        if "embed_tokens.weight" not in self._stored(EAGLE_WEIGHTS):
            return
        with open_weights(self._folder / EAGLE_WEIGHTS) as weights:
            there = weights.get_slice("embed_tokens.weight")
            if tuple(there.get_shape()) != tuple(table.shape):
                raise FileError(
                    f"{EAGLE_WEIGHTS} has embeddings of shape {there.get_shape()}; the model's have shape "
                    f"{list(table.shape)}"
                )
            rows = torch.linspace(0, self._vocab - 1, 64, device="cpu").long().tolist()
            theirs = torch.cat([there[row : row + 1] for row in rows]).float()
        ours = table.detach()[rows].float().cpu()
        if not torch.nn.functional.cosine_similarity(theirs.flatten(), ours.flatten(), dim=0) >= SAME_MODEL:
            raise FileError("they were trained on another model: the embeddings in it are not this one's")


def _qwen3_layer(sizes: LayerSizes) -> dict[str, Shape]:
    """Names and shapes of a decoder layer of Qwen3."""
    size, own, shared = sizes.hidden, sizes.heads * sizes.head_dim, sizes.kv_heads * sizes.head_dim
    shapes: dict[str, Shape] = {
        f"self_attn.{part}_proj.weight": (rows, size) for part, rows in (("q", own), ("k", shared), ("v", shared))
    }
    shapes |= {"self_attn.o_proj.weight": (size, own), "mlp.down_proj.weight": (size, sizes.inner)}
    shapes |= {f"mlp.{part}_proj.weight": (sizes.inner, size) for part in ("gate", "up")}
    shapes |= {f"self_attn.{part}_norm.weight": (sizes.head_dim,) for part in ("q", "k")}
    return shapes | {f"{part}_layernorm.weight": (size,) for part in ("input", "post_attention")}


def _joined(weights: Mapping[str, torch.Tensor], prefix: str) -> Tensors:
    """The tensors of a layer of `BlockLayers`."""

    def of(*names: str) -> torch.Tensor:
        return torch.cat([weights[f"{prefix}{name}.weight"] for name in names])

    return {
        "q": of("self_attn.q_proj"),
        "kv": of("self_attn.k_proj", "self_attn.v_proj"),
        "o": of("self_attn.o_proj"),
        "gate_up": of("mlp.gate_proj", "mlp.up_proj"),
        "down": of("mlp.down_proj"),
        "q_norm": of("self_attn.q_norm"),
        "k_norm": of("self_attn.k_norm"),
        "before_norm": of("input_layernorm"),
        "after_norm": of("post_attention_layernorm"),
    }
