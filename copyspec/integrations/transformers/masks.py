"""Attention masks: which tokens of each row are read, and whether the model reads them as `generate` does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch

from copyspec.common.checks import shown
from copyspec.targets.hooks.recurrence import is_recurrent
from copyspec.targets.selftest.probes import reads_rows_alone, skips_masked

if TYPE_CHECKING:
    from transformers import PreTrainedModel


_BLOCKS = ("local_radius", "global_block_size", "attention_window", "block_size")
"""Settings of encoders that attend within blocks of columns, masked or not."""


def mask_of(rows: int, width: int, arguments: Mapping[str, object]) -> torch.Tensor | None:
    """The attention mask for the model's main input, [rows, width], as bools; None if there is none. Raises ValueError
    for one that `generate` would read as something else."""
    mask = arguments.get("attention_mask")
    if not isinstance(mask, torch.Tensor):
        return None
    if mask.dim() != 2 or mask.shape[1] != width or not rows or len(mask) % rows:
        raise ValueError(
            f"attention_mask has the shape {list(mask.shape)}, and the tokens have {[rows, width]}; give one of their "
            "shape, or leave it out"
        )
    mask = mask[:: len(mask) // rows]  # may be expanded by num_return_sequences
    if bool(((mask != 0) & (mask != 1)).any()):
        raise ValueError(f"attention_mask must hold 0 and 1 only; got {shown(mask)}")
    for row in _rows((mask == 0).all(1)):
        raise ValueError(f"row {row} has no token: its attention_mask is 0 everywhere")
    return mask.bool()


def check_padding(model: PreTrainedModel, mask: torch.Tensor, length: int) -> None:
    """Raise ValueError for masked tokens that change what `generate` gives for the others: a decoder's row is decoded
    without them. `length`: columns of the longest output, with what precedes it."""
    if len(mask) > 1 and is_recurrent(model) and not reads_rows_alone(model):
        raise ValueError(
            f"{type(model).__name__} lets the rows of a batch change each other in generate itself: give one at a time"
        )
    for row in _rows(~mask[:, -1]):
        raise ValueError(
            f"row {row} is padded on the right, where generate itself goes on from the padding: tokenize with "
            "padding_side='left'"
        )
    config = model.config.get_text_config(decoder=True)
    chunk, window = getattr(config, "attention_chunk_size", None), getattr(config, "sliding_window", None)
    counts = chunk is not None and length > chunk
    _check(model, mask, before=counts, between=counts or (window is not None and length > window))


def check_encoder_padding(model: PreTrainedModel, mask: torch.Tensor) -> None:
    """`check_padding` of what an encoder reads, which may be padded on the right."""
    config = model.config.get_text_config(encoder=True)
    counts = any(getattr(config, name, None) is not None for name in _BLOCKS)
    _check(model, mask, before=counts, between=counts)


def _check(model: PreTrainedModel, mask: torch.Tensor, *, before: bool, between: bool) -> None:
    """`before`, `between`: whether the model is known to count tokens that are masked there."""
    name = type(model).__name__
    for row in _rows(~mask[:, 0]):
        if before or not skips_masked(model, "before"):
            raise ValueError(
                f"row {row} is padded on the left, and {name} counts from the padding, so that the row would differ "
                "from its own output: give rows of one length together, or one at a time"
            )
    resumed = (mask.long().diff(dim=1) == 1) & (mask[:, :-1].cumsum(1) > 0)
    for row in _rows(resumed.any(1)):
        if between or not skips_masked(model, "between"):
            raise ValueError(
                f"row {row} has masked tokens between others, and {name} counts their places: leave them out of the ids"
            )


def _rows(chosen: torch.Tensor) -> list[int]:
    rows: list[int] = chosen.nonzero().flatten().tolist()
    return rows


def check_positions(positions: object, mask: torch.Tensor) -> None:
    """Raise ValueError for positions other than those of the unmasked tokens, counted from 0."""
    if not isinstance(positions, torch.Tensor):
        return
    counted = mask.long().cumsum(-1) - 1
    if positions.shape[-1] != mask.shape[1] or bool(((positions.to(mask.device) != counted) & mask).any()):
        raise ValueError("copyspec counts positions from the first unmasked token; leave position_ids out")
