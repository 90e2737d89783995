"""Reads draft heads from a folder: this project's own format here, published ones in `published_heads`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch

from copyspec.common.checks import brief
from copyspec.drafters.predictors.feature_layer import FEATURE_DEPTH, FeatureLayer
from copyspec.drafters.predictors.head_folder import MAX_UNITS, SAME_MODEL, HeadFile, HeadFolder, Shape
from copyspec.drafters.predictors.head_weights import Heads, ParallelHeads, RecurrentHead, probe
from copyspec.drafters.predictors.published_heads import PublishedHeads
from copyspec.models.errors import FileError, first_line, load_errors
from copyspec.models.files import CONFIG, check_folder, read_json
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

    def _inner_layers(self) -> tuple[int, ...]:
        """The layers of the target whose inputs a recurrent head reads beside the last hidden state."""
        found = self._config.get("layers", [])
        return self._layer_list(found, "layers") if found != [] else ()
