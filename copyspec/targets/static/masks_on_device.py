"""Masks of a static pass, computed on the device from lengths and ancestor bits."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from copyspec.targets.static.packing import WORD

if TYPE_CHECKING:
    from copyspec.targets.facts import ModelFacts


class PassInputs(NamedTuple):
    """The fields of a packed pass that masks and positions follow from, on the device. [B, Q] each except `lengths`."""

    depths: torch.Tensor
    lengths: torch.Tensor  # [B, 1]
    words: tuple[torch.Tensor, ...]  # ancestor bits


def additive_masks(
    inputs: PassInputs, slots: torch.Tensor, facts: ModelFacts
) -> torch.Tensor | dict[str, torch.Tensor]:
    """Additive masks [B, 1, Q, S] (`ModelFacts.additive`): one, or a dict by kind of attention. `slots`: 0 .. S - 1."""
    offsets = slots - inputs.lengths  # column that each slot holds; negative for cached tokens, [B, S]
    visible = _visible(offsets, inputs.words)
    if facts.kinds == ("full_attention",):
        return facts.additive(visible.unsqueeze(1))
    positions = inputs.lengths + inputs.depths
    keys = key_positions(inputs, slots)
    masks = {}
    for kind in facts.kinds:
        seen = visible
        if kind == "sliding_attention" and facts.window is not None:
            seen = visible & (positions.unsqueeze(2) - keys.unsqueeze(1) < facts.window)
        elif kind == "chunked_attention" and facts.chunk is not None:
            seen = visible & (positions.unsqueeze(2) // facts.chunk == keys.unsqueeze(1) // facts.chunk)
        masks[kind] = facts.additive(seen.unsqueeze(1))
    return masks if len(masks) > 1 else masks[facts.kinds[0]]


def key_positions(inputs: PassInputs, slots: torch.Tensor) -> torch.Tensor:
    """Position of the token in each slot, [B, S]: the slot's index, except for the columns of this pass."""
    offsets = slots - inputs.lengths
    columns = offsets.clamp(0, inputs.depths.shape[1] - 1)
    return torch.where(offsets < 0, slots, inputs.lengths + inputs.depths.gather(1, columns))


def _visible(offsets: torch.Tensor, words: tuple[torch.Tensor, ...]) -> torch.Tensor:
    """Which slots each column attends to, [B, Q, S]."""
    offsets = offsets.unsqueeze(1)
    visible = offsets < 0
    for index, word in enumerate(words):
        bit = offsets - index * WORD if index else offsets
        # A shift beyond the word's bits yields its sign, which is 0.
        seen = (word.unsqueeze(2) >> bit.clamp(0, WORD)) & 1
        visible = visible | ((seen != 0) & (bit >= 0))
    return visible
