"""The folder of draft heads: this project's own format, and that of Medusa's published checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from copyspec.drafters.predictors.head_weights import Heads, ParallelHeads, RecurrentHead, probe
from copyspec.models.errors import FileError, LoadError, first_line
from copyspec.models.files import CONFIG, check_folder, pickled, read_json
from copyspec.targets.hooks.states import output_head

if TYPE_CHECKING:
    from transformers import PreTrainedModel

FORMAT = "copyspec-heads-1"
WEIGHTS = "heads.safetensors"
MEDUSA_WEIGHTS = "medusa_lm_head.safetensors"
MEDUSA_PREFIXES = ("medusa_head.", "medusa_heads.")  # of files that hold a whole model's names

MOST_HEADS = 16
"""Tokens ahead that a file may have heads for: published ones have 3 to 5."""

SAME_MODEL = 0.98
"""Cosine of the probes of one model in two precisions at least; those of two models are about at right angles."""

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class HeadFile:
    """What a folder holds, on the CPU as it is there."""

    heads: Heads
    vocabulary: torch.Tensor | None  # [V'], the target's tokens that the heads may say; None: all
    name: str


def load_heads(folder: Path, model: PreTrainedModel) -> HeadFile:
    """Reads and checks heads for `model`. Raises LoadError, which names the folder and what is wrong with it."""
    try:
        return _load(folder, model)
    except LoadError:
        raise
    except Exception as error:  # what is wrong with a file comes in many shapes
        raise LoadError(f"draft heads {str(folder)!r} cannot be loaded: {first_line(error)}") from error


def _load(folder: Path, model: PreTrainedModel) -> HeadFile:
    if not folder.is_dir():
        raise FileError('there is no such folder; draft_model="heads:FOLDER" takes one that training.heads has made')
    check_folder(folder)
    if not (folder / CONFIG).is_file():
        raise FileError(f"it has no {CONFIG}")
    config = read_json(folder / CONFIG)
    output = output_head(model)
    weight = getattr(output, "weight", None)
    if not isinstance(weight, torch.Tensor) or weight.dim() != 2:
        raise FileError(f"{type(model).__name__} has no output head whose input they could read")
    reader = _Reader(folder, config, weight)
    return reader.own() if "format" in config else reader.medusa()


class _Reader:
    """One folder, for a model whose output weights are `weight` [V, D]."""

    def __init__(self, folder: Path, config: Mapping[str, object], weight: torch.Tensor) -> None:
        self._folder, self._config, self._weight = folder, config, weight
        self._vocab, self._size = weight.shape

    def own(self) -> HeadFile:
        config = self._config
        if config["format"] != FORMAT:
            raise FileError(f"{CONFIG} has format={config['format']!r}; this version reads {FORMAT!r}")
        for name, ours in (("hidden_size", self._size), ("vocab_size", self._vocab)):
            if config.get(name) != ours:
                raise FileError(f"they are for a model of {name}={config.get(name)!r}, and this one has {ours}")
        depth, kind = self._count("depth"), config.get("kind")
        if kind not in ("recurrent", "parallel"):
            raise FileError(f"{CONFIG} has kind={kind!r}; it is 'recurrent' or 'parallel'")
        size, inner = self._size, self._count("inner_size", most=1 << 16)
        shapes: dict[str, Shape] = {"probe": (64,)}
        if kind == "recurrent":
            shapes |= {"gate": (inner, 2 * size), "up": (inner, 2 * size), "down": (size, inner), "norms": (2, size)}
        else:
            for number in range(depth):
                shapes |= {f"{number}.down": (inner, size), f"{number}.up": (size, inner)}
        tensors = self._read(WEIGHTS, shapes, optional="vocabulary")
        held = tensors.pop("probe")
        same = torch.nn.functional.cosine_similarity(held.float(), probe(self._weight), dim=0)
        if not same >= SAME_MODEL:
            raise FileError(
                f"they were trained on another model, {config.get('model')!r}: its output weights are not this one's"
            )
        vocabulary = tensors.pop("vocabulary", None)
        if vocabulary is not None:
            vocabulary = self._checked_vocabulary(vocabulary)
        heads: Heads
        if kind == "recurrent":
            heads = RecurrentHead(tensors, depth)
        else:
            parts = [{name: tensors[f"{number}.{name}"] for name in ("down", "up")} for number in range(depth)]
            heads = ParallelHeads([[part] for part in parts])
        return HeadFile(heads, vocabulary, self._folder.name)

    def medusa(self) -> HeadFile:
        """Medusa's own: `{head}.{layer}.linear.weight`, `.bias`, and behind the layers the head's output weights."""
        if "medusa_num_heads" not in self._config:
            raise FileError(f"{CONFIG} has neither format={FORMAT!r} nor medusa_num_heads: these are no draft heads")
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

    def _count(self, name: str, most: int = MOST_HEADS) -> int:
        found = self._config.get(name)
        if not isinstance(found, int) or isinstance(found, bool) or not 1 <= found <= most:
            raise FileError(f"{CONFIG} has {name}={found!r}; it is an integer from 1 to {most}")
        return found

    def _read(
        self, file: str, shapes: Mapping[str, Shape], *, optional: str = "", strip: tuple[str, ...] = ()
    ) -> dict[str, torch.Tensor]:
        """The tensors of `shapes`, whose sizes are looked at before any is read."""
        from safetensors import safe_open

        if not (self._folder / file).is_file():
            held = pickled(self._folder)
            hint = f"; {held[0]} may run code when it is read: python -m training.heads --convert" if held else ""
            raise FileError(f"it has no {file}{hint}")
        with safe_open(self._folder / file, "pt") as held_tensors:
            names: Callable[[], list[str]] = held_tensors.keys
            stored = {_stripped(name, strip): name for name in names()}
            found: dict[str, torch.Tensor] = {}
            for name, shape in shapes.items():
                if name not in stored:
                    raise FileError(f"{file} has no tensor {name!r}")
                there = tuple(held_tensors.get_slice(stored[name]).get_shape())
                if there != shape:
                    raise FileError(f"{file} has {name!r} of shape {list(there)}, and the model needs {list(shape)}")
            for name in [*shapes, *([optional] if optional in stored else [])]:
                found[name] = held_tensors.get_tensor(stored[name])
                if not bool(torch.isfinite(found[name]).all()):
                    raise FileError(f"{file} has values in {name!r} that are no numbers (NaN or infinite)")
        return found

    def _checked_vocabulary(self, vocabulary: torch.Tensor) -> torch.Tensor:
        tokens = vocabulary.long()
        distinct = vocabulary.dim() == 1 and len(set(tokens.tolist())) == len(tokens) > 0
        if not distinct or int(tokens.min()) < 0 or int(tokens.max()) >= self._vocab:
            raise FileError(f"{WEIGHTS} has a vocabulary that is no list of different tokens below {self._vocab}")
        return tokens


def _stripped(name: str, prefixes: tuple[str, ...]) -> str:
    for prefix in prefixes:
        if name.startswith(prefix):
            return name[len(prefix) :]
    return name
