"""Self-speculation with skipped sublayers: the target without some attention and MLP blocks is its own draft model.

Draft & Verify (Zhang et al. 2024, arXiv 2309.08168): `training.skips` searches once per model for the blocks to leave
out and writes them to a file. `early_exit` leaves out the last layers instead.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import nn

from copyspec.checks import brief
from copyspec.drafters.predictors.early_exit import new_stack
from copyspec.models.errors import FileError, LoadError, first_line
from copyspec.models.files import read_json

if TYPE_CHECKING:
    from transformers import PreTrainedModel

FORMAT = "copyspec-skips-1"
MAX_LAYERS = 10_000


@dataclass(frozen=True, slots=True)
class SkipSet:
    """Indices of the layers whose attention and whose MLP blocks are skipped, from 0."""

    attention: frozenset[int]
    mlp: frozenset[int]

    def to_dict(self, layers: int) -> dict[str, object]:
        """Return the content of the file, for a model of `layers` layers."""
        return {
            "format": FORMAT, "layers": layers, "attention": sorted(self.attention), "mlp": sorted(self.mlp),
        }  # fmt: skip


def load_skips(path: Path, model: PreTrainedModel) -> SkipSet:
    """Read a file of `training.skips`. Raises LoadError, which names the file and what is wrong with it."""
    try:
        if not path.is_file():
            raise FileError('there is no such file; draft_model="skip:FILE" takes one that training.skips has made')
        found = read_json(path)
        if found.get("format") != FORMAT:
            raise FileError(f"it has format={brief(found.get('format'))}; this version reads {FORMAT!r}")
        layers = model.config.get_text_config(decoder=True).num_hidden_layers
        if found.get("layers") != layers:
            raise FileError(f"it is for a model of {brief(found.get('layers'))} layers, and this one has {layers}")
        attention, mlp = (_numbers(found, name, layers) for name in ("attention", "mlp"))
        if len(attention) == layers:
            raise FileError("it leaves no attention: the draft could not see its text")
        return SkipSet(attention, mlp)
    except Exception as error:
        raise LoadError(f"skip set {str(path)!r} cannot be loaded: {first_line(error)}") from error


def without_blocks(model: PreTrainedModel, skips: SkipSet) -> PreTrainedModel:
    """Return the model without these blocks; their inputs pass on through the residual connection.

    It shares all modules with `model`, which is not altered. Raises ValueError if the architecture has no such blocks
    or no attention would be left."""
    stack = getattr(model.base_model, "layers", None)
    blocks = [layer for layer in stack or [] if hasattr(layer, "self_attn") and hasattr(layer, "mlp")]
    if not isinstance(stack, nn.ModuleList) or len(blocks) != len(stack):
        raise ValueError(
            f"{type(model).__name__} has no layers with self_attn and mlp that could be skipped; "
            "give a smaller model as draft_model"
        )
    kept: dict[int, nn.Module] = {}
    for number, layer in enumerate(stack):
        if number in skips.attention and number in skips.mlp:
            continue
        kept[number] = layer
        if number in skips.attention or number in skips.mlp:
            kept[number] = lighter = copy.copy(layer)
            lighter._modules = dict(layer._modules)
            if number in skips.attention:
                lighter._modules["self_attn"] = _NoAttention()
            else:
                lighter._modules["mlp"] = _NoMLP()
    if not any(number not in skips.attention for number in kept):
        raise ValueError("a skip set must leave some attention: the draft could not see its text")
    return new_stack(model, kept)


class _NoAttention(nn.Module):
    """Replaces an attention block: adds zero to the residual stream."""

    def forward(self, hidden_states: torch.Tensor, *_: object, **__: object) -> tuple[torch.Tensor, None]:
        return torch.zeros_like(hidden_states), None


class _NoMLP(nn.Module):
    """Replaces an MLP block: adds zero to the residual stream."""

    def forward(self, hidden_states: torch.Tensor, *_: object, **__: object) -> torch.Tensor:
        return torch.zeros_like(hidden_states)


def _numbers(found: dict[str, object], name: str, layers: int) -> frozenset[int]:
    numbers = found.get(name)
    if not isinstance(numbers, list) or not all(
        isinstance(each, int) and not isinstance(each, bool) and 0 <= each < layers for each in numbers
    ):
        raise FileError(f"its {name!r} is not a list of layers from 0 to {layers - 1}")
    return frozenset(numbers)
