"""Finds the layer for multi-token prediction in the files that a model was loaded from, and builds it.

transformers leaves out these tensors when it loads the model. Only safetensors are read; names, types and shapes are
checked before any tensor is.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from copyspec.common.building import building
from copyspec.drafters.predictors.head_folder import FLOATS, SAME_MODEL, HeadFile, Shape
from copyspec.drafters.predictors.mtp_layer import MtpLayer, MtpParts
from copyspec.models.errors import FileError, LoadError, first_line, load_errors
from copyspec.models.files import check_folder, open_weights, weight_names
from copyspec.models.pretrained import Pretrained
from copyspec.targets.hooks.inference import inference_mode
from copyspec.targets.hooks.modules import cache_argument, decoder_layers, output_head, real_weight
from copyspec.targets.model.facts import forward_arguments

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True, slots=True)
class MtpLayout:
    """Names of the tensors of one family's first layer; {layers} stands for the model's number of layers."""

    families: str
    block: str
    """Prefix of those of the decoder layer."""
    projection: str
    token_norm: str
    state_norm: str
    norm: str | None
    """None: the model's own last norm, which the states that the layer reads have not passed."""
    states_first: bool = False
    """Whether the projection reads the state before the embedding."""

    def of(self, layers: int) -> MtpLayout:
        """The names in a model of so many layers."""

        names = ("block", "projection", "token_norm", "state_norm", "norm")
        fields = {name: getattr(self, name) for name in names}
        return replace(
            self, **{name: pattern and pattern.replace("{layers}", str(layers)) for name, pattern in fields.items()}
        )

    def parts(self) -> dict[str, str]:
        """The tensors beside the decoder layer, by part."""
        parts = {"projection": self.projection, "token_norm": self.token_norm, "state_norm": self.state_norm}
        return parts if self.norm is None else parts | {"norm": self.norm}

    def holds(self, name: str) -> bool:
        """Whether a tensor of this name belongs to the layer."""
        return name.startswith(self.block) or name in self.parts().values()


_DEEPSEEK = "model.layers.{layers}."

LAYOUTS = (
    MtpLayout(
        "Qwen3-Next, Qwen3.5",
        "mtp.layers.0.",
        "mtp.fc.weight",
        "mtp.pre_fc_norm_embedding.weight",
        "mtp.pre_fc_norm_hidden.weight",
        "mtp.norm.weight",
    ),
    MtpLayout(
        "DeepSeek-V3, GLM-4 MoE",
        _DEEPSEEK,
        f"{_DEEPSEEK}eh_proj.weight",
        f"{_DEEPSEEK}enorm.weight",
        f"{_DEEPSEEK}hnorm.weight",
        f"{_DEEPSEEK}shared_head.norm.weight",
    ),
    MtpLayout(
        "MiMo",
        "model.mtp_layers.0.",
        "model.mtp_layers.0.input_proj.weight",
        "model.mtp_layers.0.token_layernorm.weight",
        "model.mtp_layers.0.hidden_layernorm.weight",
        "model.mtp_layers.0.final_layernorm.weight",
        states_first=True,
    ),
    MtpLayout(
        "Ernie 4.5",
        "model.mtp_block.0.",
        "model.mtp_linear_proj.0.weight",
        "model.mtp_emb_norm.0.weight",
        "model.mtp_hidden_norm.0.weight",
        None,
    ),
)
"""As the families' checkpoints are published. Their training code says in what order the projection reads, and of
which states."""


WAY_OUT = "get the model's files anew, or leave draft_model='mtp' out"

HEAD, EMBEDDINGS = "shared_head.head.weight", "embed_tokens.weight"
"""Tensors behind a block's prefix that may repeat the model's own."""

_UNUSED = ("rotary_emb.inv_freq",)  # computed from the configuration


Stored = Mapping[str, Any]
"""The open files by the names of their tensors."""


def load_mtp(model: PreTrainedModel) -> HeadFile:
    """Build the layer for `model` from the files that it was loaded from. Raises LoadError that says what is wrong."""
    with _stored(model) as stored, inference_mode(False), torch.no_grad():  # weights made in it could not be packed
        return _Reader(model, stored).layer()


def mtp_size(model: PreTrainedModel) -> int:
    """Number of weights of the layer in the model's files; 0 if there is none, or the files cannot be read."""
    try:
        with _stored(model) as stored:
            layout = _layout(stored, len(decoder_layers(model)))
            shapes = [stored[name].get_slice(name).get_shape() for name in stored if layout.holds(name)]
            return sum(torch.Size(shape).numel() for shape in shapes)
    except LoadError:
        return 0


@contextmanager
def _stored(model: PreTrainedModel) -> Iterator[Stored]:
    """The tensors in the files that a model was loaded from. Every error while they are open becomes a LoadError."""
    with load_errors(lambda error: f"draft_model='mtp' cannot be used: {first_line(error)}"), ExitStack() as opened:
        name = str(getattr(model, "name_or_path", "") or "")
        if not name:
            raise FileError("the model was not loaded from files, in which its layer would be; load it from its folder")
        if os.path.isdir(name):
            name = os.path.abspath(name)  # never one of the short names that `Pretrained` knows
            check_folder(Path(name))
        revision = getattr(model.config, "_commit_hash", None)
        files = Pretrained(name, revision=revision, hub={"local_files_only": True})
        stored: dict[str, Any] = {}
        for weight_name in weight_names(files.file):
            if (path := files.file(weight_name)) is not None:
                weights = opened.enter_context(open_weights(path))
                stored |= dict.fromkeys(weights.keys(), weights)
        if not stored:
            raise FileError(f"{name!r}, from which the model was loaded, holds no safetensors (any more)")
        yield stored


def _layout(stored: Stored, layers: int) -> MtpLayout:
    """The layout that the tensors have."""
    for candidate in LAYOUTS:
        layout = candidate.of(layers)
        if any(name in stored for name in layout.parts().values()):
            return layout
    known = "; ".join(layout.families for layout in LAYOUTS)
    strange = next((name for name in stored if "mtp" in name), None)
    if strange is not None:
        raise FileError(f"the model's files hold {strange!r}, in none of the layouts that are read: {known}")
    raise FileError(f"the model's files hold no layer for multi-token prediction, in none of the layouts of {known}")


class _Reader:
    """Reader of the layer of one model."""

    def __init__(self, model: PreTrainedModel, stored: Stored) -> None:
        self._model, self._stored = model, stored
        self._layers = decoder_layers(model)
        self._config = model.config.get_text_config(decoder=True)
        self._layout = _layout(stored, len(self._layers))
        self._families = self._layout.families

    def layer(self) -> HeadFile:
        """Check and read the layer."""
        model, layout = self._model, self._layout
        weight, table = real_weight(output_head(model)), real_weight(model.get_input_embeddings())
        rotary = copy.deepcopy(getattr(model.base_model, "rotary_emb", None))  # some adapt to the text they have seen
        if weight is None or table is None or weight.dim() != 2 or not (self._layers and isinstance(rotary, nn.Module)):
            raise FileError(f"{type(model).__name__} has no list of layers, rotary embedding and output head to share")
        block = self._block()
        sources = self._sources(block, weight)
        read = {key: self._read(key, sources[key]) for key in block.state_dict()}
        _fill(block, read, self._twin(block), weight)
        own = {part: self._tensor(name).to(weight) for part, name in layout.parts().items()}
        projection = nn.Linear(1, 1, bias=False, device="meta")
        projection.weight = nn.Parameter(own.pop("projection"), requires_grad=False)
        norms = {part: _norm(block, name) for part, name in own.items()}
        last = self._last_norm() if layout.norm is None else None
        parts = MtpParts(
            block=block,
            projection=projection,
            token_norm=norms["token_norm"],
            state_norm=norms["state_norm"],
            norm=last or norms["norm"],
            rotary=rotary,
            cache_name=cache_argument(forward_arguments(block)),
            states_first=layout.states_first,
            undone=last,
        )
        output = self._other(f"{layout.block}{HEAD}", weight)
        return HeadFile(MtpLayer(parts, output, self._other(f"{layout.block}{EMBEDDINGS}", table)), None, "mtp")

    def _sources(self, block: nn.Module, weight: torch.Tensor) -> dict[str, tuple[str, ...]]:
        """The stored tensors that make each weight of the block. Checks them and those beside the block."""
        (vocabulary, size), layout = weight.shape, self._layout
        if getattr(getattr(block, "input_layernorm", None), "weight", torch.empty(0)).shape != (size,):
            raise FileError(f"{type(block).__name__} has no input_layernorm, of whose kind the layer's norms are")
        shapes: dict[str, Shape] = {name: (size,) for name in layout.parts().values()}
        shapes[layout.projection] = (size, 2 * size)
        sources: dict[str, tuple[str, ...]] = {}
        for key, tensor in block.state_dict().items():
            sources[key], shape = self._stored_as(key, tuple(tensor.shape))
            shapes |= dict.fromkeys(sources[key], shape)
        copies = [name for name in (layout.block + HEAD, layout.block + EMBEDDINGS) if name in self._stored]
        self._check(shapes | dict.fromkeys(copies, (vocabulary, size)))
        return sources

    def _last_norm(self) -> nn.Module:
        """The model's own norm before its output head."""
        norm = getattr(self._model.base_model, "norm", None)
        if not isinstance(norm, nn.Module) or not isinstance(getattr(norm, "weight", None), torch.Tensor):
            raise FileError(f"{type(self._model).__name__} has no last norm, which the layer would share")
        return norm

    def _block(self) -> nn.Module:
        """A decoder layer without weights, of the kind of the model's that has the stored tensors."""
        config = copy.deepcopy(self._config)
        config._attn_implementation = "sdpa" if self._model._supports_sdpa else "eager"
        built: list[tuple[int, nn.Module]] = []
        kinds = set[tuple[tuple[str, Shape], ...]]()
        for number, twin in enumerate(self._layers):
            kind = tuple((name, tuple(tensor.shape)) for name, tensor in twin.state_dict().items())
            if kind in kinds:
                continue
            kinds.add(kind)
            make: Callable[..., nn.Module] = type(twin)
            with building(), torch.device("meta"):
                block = make(config, number)
            needed = (self._stored_as(key, tuple(tensor.shape))[0] for key, tensor in block.state_dict().items())
            built.append((sum(name not in self._stored for names in needed for name in names), block))
        return min(built, key=lambda pair: pair[0])[1]

    def _stored_as(self, name: str, shape: Shape) -> tuple[tuple[str, ...], Shape]:
        """The stored tensors that make a weight of the block, and the shape of each. Experts are stored one by one, or
        together as transformers holds them."""
        whole = self._layout.block + name
        stem, _, last = whole.rpartition(".")
        kinds = {"gate_up_proj": ("gate_proj", "up_proj"), "down_proj": ("down_proj",)}.get(last)
        if whole in self._stored or kinds is None or not stem.endswith("experts"):
            return (whole,), shape
        experts, rows, *columns = shape
        names = tuple(f"{stem}.{expert}.{kind}.weight" for expert in range(experts) for kind in kinds)
        return names, (rows // len(kinds), *columns)

    def _check(self, shapes: Mapping[str, Shape]) -> None:
        """Check that the layer has these tensors and no others."""
        names = [name for name in self._stored if self._layout.holds(name)]
        unknown = [name for name in names if name not in shapes and not name.endswith(_UNUSED)]
        for name, shape in shapes.items():
            if name not in self._stored:
                instead = f" (but {unknown[0]!r})" if unknown else ""
                raise FileError(
                    f"the model's files hold a layer for multi-token prediction as in {self._families}, but no "
                    f"{name!r}{instead}: {WAY_OUT}"
                )
            part = self._stored[name].get_slice(name)
            there, kind = tuple(part.get_shape()), part.get_dtype()
            if kind not in FLOATS:
                raise FileError(
                    f"{name!r} has dtype {kind}, and layers that are quantised are not read; take files in BF16, or "
                    "leave draft_model='mtp' out"
                )
            if there != shape:
                raise FileError(f"{name!r} has shape {list(there)}, and the model needs {list(shape)}: {WAY_OUT}")
        if unknown:
            raise FileError(
                f"{unknown[0]!r} has no place in a layer of {type(self._layers[0]).__name__}: this version does not "
                "read the layer; leave draft_model='mtp' out"
            )

    def _tensor(self, name: str) -> torch.Tensor:
        tensor: torch.Tensor = self._stored[name].get_tensor(name)
        if not bool(torch.isfinite(tensor).all()):
            raise FileError(f"{name!r} has values that are no numbers (NaN or infinite): {WAY_OUT}")
        return tensor

    def _read(self, name: str, sources: Sequence[str]) -> torch.Tensor:
        """A weight of the block."""
        parts = [self._tensor(source) for source in sources]
        if len(parts) == 1:
            return parts[0]
        together = 2 if name.endswith("gate_up_proj") else 1
        return torch.stack([torch.cat(parts[at : at + together]) for at in range(0, len(parts), together)])

    def _twin(self, block: nn.Module) -> Mapping[str, torch.Tensor]:
        """The weights of a layer of the model of the same kind, whose dtypes the layer takes."""
        names = block.state_dict().keys()
        return next((state for state in (layer.state_dict() for layer in self._layers) if state.keys() == names), {})

    def _other(self, name: str, ours: torch.Tensor) -> torch.Tensor | None:
        """Output weights or embeddings of the layer's own, [V, D]; None if they are the model's, or not stored."""
        if name not in self._stored:
            return None
        there = self._stored[name].get_slice(name)
        rows = torch.linspace(0, len(ours) - 1, 64, device="cpu").long().tolist()
        theirs = torch.cat([there[row : row + 1] for row in rows]).float()
        same = nn.functional.cosine_similarity(theirs.flatten(), ours.detach()[rows].float().cpu().flatten(), dim=0)
        return None if same >= SAME_MODEL else self._tensor(name).to(ours)


def _fill(
    block: nn.Module, weights: Mapping[str, torch.Tensor], twin: Mapping[str, torch.Tensor], like: torch.Tensor
) -> None:
    """Give the block its weights, on the device of `like`, in the dtypes of the same weights of another layer."""
    dtypes = {name: tensor.dtype for name, tensor in twin.items() if tensor.dtype.is_floating_point}
    tensors = {name: tensor.to(like.device, dtypes.get(name, like.dtype)) for name, tensor in weights.items()}
    block.load_state_dict(tensors, assign=True)
    left = [name for name, tensor in (*block.named_parameters(), *block.named_buffers()) if tensor.is_meta]
    if left:
        raise FileError(f"{type(block).__name__} keeps {left[0]!r} outside of its files")


def _norm(block: nn.Module, weight: torch.Tensor) -> nn.Module:
    """A norm like those of the block, with this weight."""
    norm = copy.deepcopy(block.input_layernorm)
    assert isinstance(norm, nn.Module)
    norm.weight = nn.Parameter(weight, requires_grad=False)
    return norm
