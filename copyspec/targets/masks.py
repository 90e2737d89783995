"""Additive attention masks of one target pass."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from copyspec.targets.columns import Columns
    from copyspec.targets.facts import ModelFacts


def tree_masks(columns: Columns, facts: ModelFacts) -> torch.Tensor | dict[str, torch.Tensor]:
    """Additive masks [B, 1, Q, K]: one tensor, or a dict by kind if the model has several kinds of attention."""
    full: torch.Tensor | None = None
    masks: dict[str, torch.Tensor] = {}
    for kind in facts.kinds:
        visible = columns.visible
        if kind == "sliding_attention" and facts.window is not None and visible.shape[2] > facts.window:
            visible = columns.within_window(facts.window)
        elif kind == "chunked_attention" and facts.chunk is not None and visible.shape[2] > facts.chunk:
            visible = columns.within_chunk(facts.chunk)
        if visible is not columns.visible:
            masks[kind] = additive(torch.from_numpy(visible[:, None]), facts)
        else:
            full = additive(torch.from_numpy(visible[:, None]), facts) if full is None else full
            masks[kind] = full
    return masks if len(masks) > 1 else masks[facts.kinds[0]]


def additive(visible: torch.Tensor, facts: ModelFacts) -> torch.Tensor:
    """Convert `visible` [B, 1, Q, K] to an additive mask [B, 1, Q, K]: 0 where visible, else the lowest number. Grouped
    attention gets the masks of the heads of a group after each other, [B, 1, G * Q, K]."""
    seen = visible if facts.zero.is_cpu else visible.to(facts.device, non_blocking=True)
    if facts.group == 1:
        return torch.where(seen, facts.zero, facts.lowest)
    mask = torch.where(seen.expand(-1, facts.group, -1, -1), facts.zero, facts.lowest)
    return mask.reshape(len(mask), 1, -1, mask.shape[3])
