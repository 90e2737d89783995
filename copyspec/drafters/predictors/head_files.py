"""Reads draft heads from a folder: this project's own format, and published checkpoints of Medusa and EAGLE."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from copyspec.common.checks import brief
from copyspec.drafters.predictors.feature_layer import CONTEXT, EPSILON, THETA, FeatureLayer, LayerSizes, Tensors
from copyspec.drafters.predictors.head_weights import Heads, ParallelHeads, RecurrentHead, probe
from copyspec.models.errors import FileError, LoadError, first_line
from copyspec.models.files import CONFIG, check_folder, open_weights, pickled, read_json
from copyspec.targets.hooks.modules import decoder_layers, output_head, real_weight

if TYPE_CHECKING:
    from transformers import PreTrainedModel

FORMAT = "copyspec-heads-1"
WEIGHTS = "heads.safetensors"
MEDUSA_WEIGHTS = "medusa_lm_head.safetensors"
MEDUSA_PREFIXES = ("medusa_head.", "medusa_heads.")  # in files that name tensors as in the whole model
EAGLE_WEIGHTS = "model.safetensors"
EAGLE_LAYERS = ("layers.0.", "midlayer.")  # names of the one layer in EAGLE and EAGLE-2, and in EAGLE-3
FEATURE_DEPTH = 6  # tokens ahead for a feature layer, whose files do not say it; as in EAGLE's trees

TOKENS = ("vocabulary", "d2t")
"""Names of the tensors that hold tokens; the others hold weights."""

FLOATS, INTEGERS = ("F64", "F32", "F16", "BF16"), ("I64", "I32", "I16", "I8", "U8")
"""Types, as safetensors names them, of weights and of tokens."""

MAX_HEADS = 16
"""Maximum number of tokens ahead that a file may have heads for; published ones have 3 to 5."""

MAX_UNITS = 1 << 16
"""Maximum width of a layer in a file, against hostile ones."""

SAME_MODEL = 0.98
"""Minimum cosine similarity of the probes of one model in two precisions; those of two models are about orthogonal."""

MIN_LAYERS = 6
"""Minimum number of layers of a target for EAGLE-3, which mixes the states of the layers at 2, n // 2 and n - 3. With
fewer layers these are not three different ones."""

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class HeadFile:
    """The content of a folder, on the CPU and in the dtype of the file."""

    heads: Heads
    vocabulary: torch.Tensor | None  # [V'], the target's tokens that the heads can predict; None: all
    name: str


def load_heads(folder: Path, model: PreTrainedModel) -> HeadFile:
    """Read and check heads for `model`. Raises LoadError that names the folder and what is wrong with it."""
    try:
        return _load(folder, model)
    except LoadError:
        raise
    except Exception as error:  # broken files raise errors of many types
        raise LoadError(f"draft heads {str(folder)!r} cannot be loaded: {first_line(error)}") from error


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
    reader = _Reader(folder, config, weight, len(decoder_layers(model)))
    if "format" in config:
        return reader.own()
    if "medusa_num_heads" in config:
        return reader.medusa()
    if "num_attention_heads" not in config:
        raise FileError(
            f"{CONFIG} has neither format={FORMAT!r} nor medusa_num_heads nor the sizes of EAGLE's layer: this is "
            "not a draft-head checkpoint"
        )
    table = real_weight(model.get_input_embeddings())
    assert table is not None
    return reader.eagle(table)


class _Reader:
    """Reader of one folder, for a model with output weights `weight` [V, D] and `layers` accessible decoder layers."""

    def __init__(self, folder: Path, config: Mapping[str, object], weight: torch.Tensor, layers: int) -> None:
        self._folder, self._config, self._weight, self._layers = folder, config, weight, layers
        self._vocab, self._size = weight.shape

    def own(self) -> HeadFile:
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
        held = tensors.pop("probe")
        same = torch.nn.functional.cosine_similarity(held.float(), probe(self._weight), dim=0)
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
            heads = RecurrentHead(tensors, depth, layers)
        else:
            parts = [{name: tensors[f"{number}.{name}"] for name in ("down", "up")} for number in range(depth)]
            heads = ParallelHeads([[part] for part in parts])
        return HeadFile(heads, vocabulary, self._folder.name)

    def medusa(self) -> HeadFile:
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

    def eagle(self, table: torch.Tensor) -> HeadFile:
        """Read EAGLE's format: `fc` and one decoder layer with Llama's names; EAGLE-3 adds `norm`, `lm_head` and `d2t`.
        `table`: the target's embeddings, [V, D], of which some files hold a copy."""
        self._check_model()
        for name, wanted in (("num_hidden_layers", 1), ("hidden_act", "silu"), ("rope_scaling", None)):
            if self._config.get(name, wanted) != wanted:
                value = brief(self._config[name])
                raise FileError(f"{CONFIG} has {name}={value}; EAGLE's layer is read with {wanted!r}")
        stored = self._stored(EAGLE_WEIGHTS)
        found = [prefix for prefix in EAGLE_LAYERS if f"{prefix}self_attn.q_proj.weight" in stored]
        if not found:
            raise FileError(
                f"{EAGLE_WEIGHTS} has none of the layers {list(EAGLE_LAYERS)}: this is not a draft-head checkpoint"
            )
        prefix, is_fused = found[0], found[0] == EAGLE_LAYERS[1]
        if is_fused and self._layers < MIN_LAYERS:
            raise FileError(f"they read three layers of the model, and {self._layers} of this one are known")
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
        held = self._read(EAGLE_WEIGHTS, shapes, optional)
        self._check_embeddings(table)
        tensors: Tensors = {
            "fc": held["fc.weight"],
            "qkv": torch.cat([held[f"{prefix}self_attn.{part}_proj.weight"] for part in parts]),
            "o": held[f"{prefix}self_attn.o_proj.weight"],
            "gate_up": torch.cat([held[f"{prefix}mlp.{part}_proj.weight"] for part in ("gate", "up")]),
            "down": held[f"{prefix}mlp.down_proj.weight"],
            "after_norm": held[f"{prefix}post_attention_layernorm.weight"],
        }
        if not is_fused:
            tensors |= {"fc_bias": held["fc.bias"]} if "fc.bias" in held else {}
            return HeadFile(FeatureLayer(tensors, sizes, FEATURE_DEPTH), None, self._folder.name)
        tensors["token_norm"] = held[f"{prefix}input_layernorm.weight"]
        tensors["feature_norm"] = held[f"{prefix}hidden_norm.weight"]
        tensors["norm"] = held["norm.weight"]
        vocabulary = None
        if "d2t" in held:  # offset from each token of the draft vocabulary to the target's
            offsets = held["d2t"].long()
            targets = offsets + torch.arange(len(offsets), device=offsets.device)
            vocabulary = self._checked_vocabulary(targets, EAGLE_WEIGHTS)
        return HeadFile(
            FeatureLayer(tensors, sizes, FEATURE_DEPTH, held["lm_head.weight"]), vocabulary, self._folder.name
        )

    def _inner_layers(self) -> tuple[int, ...]:
        """The layers of the target whose inputs a recurrent head reads beside the last hidden state."""
        found = self._config.get("layers", [])
        if not isinstance(found, list) or not all(type(each) is int and each >= 0 for each in found):
            raise FileError(f"{CONFIG} has layers={brief(found)}; it must be a list of layer indices")
        if found and (len(set(found)) < len(found) or max(found) >= self._layers):
            raise FileError(f"{CONFIG} has layers={brief(found)}, and {self._layers} layers of this model are known")
        return tuple(found)

    def _layer_sizes(self, inner: str, *, is_fused: bool) -> LayerSizes:
        config = self._config
        heads = self._count("num_attention_heads", most=MAX_UNITS)
        kv_heads = self._count("num_key_value_heads", most=heads) if "num_key_value_heads" in config else heads
        head_dim = self._count("head_dim", most=MAX_UNITS) if config.get("head_dim") else self._size // heads
        if heads % kv_heads or head_dim % 2 or head_dim < 2:
            raise FileError(f"{CONFIG} has {heads} heads of size {head_dim} and {kv_heads} for keys, which do not fit")
        context = "context" if "context" in config else "max_position_embeddings"
        longest = self._count(context, most=1 << 24) if context in config else CONTEXT
        return LayerSizes(
            hidden=self._size,
            inner=self._count(inner, most=MAX_UNITS),
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            epsilon=self._number("rms_norm_eps", EPSILON),
            theta=self._number("rope_theta", THETA),
            is_fused=is_fused,
            context=min(longest, CONTEXT),
        )

    def _check_model(self) -> None:
        for name, ours in (("hidden_size", self._size), ("vocab_size", self._vocab)):
            if self._config.get(name) != ours:
                found = brief(self._config.get(name))
                raise FileError(f"they are for a model of {name}={found}, and this one has {ours}")

    def _check_embeddings(self, table: torch.Tensor) -> None:
        """Check that embeddings in a published file, if there are any, are the target's."""
        if "embed_tokens.weight" not in self._stored(EAGLE_WEIGHTS):
            return
        with open_weights(self._folder / EAGLE_WEIGHTS) as held:
            there = held.get_slice("embed_tokens.weight")
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

    def _number(self, name: str, default: float) -> float:
        found = self._config.get(name, default)
        if not isinstance(found, (int, float)) or isinstance(found, bool) or not 0 < found <= sys.float_info.max:
            raise FileError(f"{CONFIG} has {name}={brief(found)}; it is a number above 0")
        return float(found)

    def _stored(self, file: str) -> set[str]:
        """Names of the tensors in a file."""
        self._check_file(file)
        with open_weights(self._folder / file) as held:
            return set(held.keys())

    def _check_file(self, file: str) -> None:
        if not (self._folder / file).is_file():
            held = pickled(self._folder)
            hint = f"; {held[0]} may run code when it is read: python -m training.heads --convert" if held else ""
            raise FileError(f"it has no {file}{hint}")

    def _count(self, name: str, most: int = MAX_HEADS) -> int:
        found = self._config.get(name)
        if not isinstance(found, int) or isinstance(found, bool) or not 1 <= found <= most:
            raise FileError(f"{CONFIG} has {name}={brief(found)}; it is an integer from 1 to {most}")
        return found

    def _read(
        self,
        file: str,
        shapes: Mapping[str, Shape],
        optional: Mapping[str, Shape | None] | None = None,
        *,
        strip: tuple[str, ...] = (),
    ) -> Tensors:
        """Read the tensors of `shapes`, and those of `optional` that are stored. Shapes (None: any) are checked before
        any tensor is read."""
        self._check_file(file)
        with open_weights(self._folder / file) as held_tensors:
            names: Callable[[], list[str]] = held_tensors.keys
            stored = {_stripped(name, strip): name for name in names()}
            found: Tensors = {}
            wanted: dict[str, Shape | None] = {**shapes}
            wanted |= {name: shape for name, shape in (optional or {}).items() if name in stored}
            for name, shape in wanted.items():
                if name not in stored:
                    raise FileError(f"{file} has no tensor {name!r}")
                part = held_tensors.get_slice(stored[name])
                there, kind = tuple(part.get_shape()), part.get_dtype()
                expected = INTEGERS if name in TOKENS else FLOATS
                if kind not in expected:
                    raise FileError(f"{file}: {name!r} has dtype {kind}; expected one of {', '.join(sorted(expected))}")
                if shape is not None and there != shape:
                    raise FileError(f"{file} has {name!r} of shape {list(there)}, and the model needs {list(shape)}")
            for name in wanted:
                found[name] = held_tensors.get_tensor(stored[name])
                if not bool(torch.isfinite(found[name]).all()):
                    raise FileError(f"{file} has values in {name!r} that are no numbers (NaN or infinite)")
        return found

    def _checked_vocabulary(self, vocabulary: torch.Tensor, file: str) -> torch.Tensor:
        tokens = vocabulary.long()
        distinct = vocabulary.dim() == 1 and len(set(tokens.tolist())) == len(tokens) > 0
        if not distinct or int(tokens.min()) < 0 or int(tokens.max()) >= self._vocab:
            raise FileError(f"{file} has a vocabulary that is not a list of different tokens below {self._vocab}")
        return tokens


def _stripped(name: str, prefixes: tuple[str, ...]) -> str:
    for prefix in prefixes:
        if name.startswith(prefix):
            return name[len(prefix) :]
    return name
