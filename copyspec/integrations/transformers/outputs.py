"""Outputs and streaming of `model.generate`, assembled from rows that end and advance at different steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import torch
from transformers.generation.utils import GenerateDecoderOnlyOutput, GenerateEncoderDecoderOutput

from copyspec.engine.results import Result
from copyspec.integrations.transformers.rows import ScoreRecorder

if TYPE_CHECKING:
    from transformers.generation.streamers import BaseStreamer


@dataclass
class CopiedDecoderOnlyOutput(GenerateDecoderOnlyOutput):
    """`generate`'s output without attentions, hidden states and cache, plus copyspec's results row by row."""

    results: list[Result] | None = None


@dataclass
class CopiedEncoderDecoderOutput(GenerateEncoderDecoderOutput):
    """`generate`'s output without attentions, hidden states and cache, plus copyspec's results row by row."""

    results: list[Result] | None = None


class StreamerColumns:
    """Passes tokens to a streamer as `generate` does: one column of all rows at a time, [rows], with ended rows
    padded."""

    def __init__(self, streamer: BaseStreamer, rows: int, pad: int) -> None:
        self._streamer, self._pad = streamer, pad
        self._waiting: list[list[int]] = [[] for _ in range(rows)]
        self._ended = [False] * rows

    def push(self, row: int, tokens: Sequence[int], *, ended: bool) -> None:
        """Add a step's tokens to a row."""
        self._waiting[row].extend(tokens)
        self._ended[row] = ended

    def flush(self) -> None:
        """Pass on all columns for which every row has a token or has ended."""
        while any(self._waiting) and all(w or e for w, e in zip(self._waiting, self._ended, strict=True)):
            column = [waiting.pop(0) if waiting else self._pad for waiting in self._waiting]
            self._streamer.put(torch.tensor(column, device="cpu"))  # type: ignore[no-untyped-call]


def sequences(ids: torch.Tensor, outputs: Sequence[Sequence[int]], pad: int) -> torch.LongTensor:
    """`ids`, [rows, width], followed by each row's output padded with `pad`."""
    longest = max(map(len, outputs))
    filled = [[*output, *[pad] * (longest - len(output))] for output in outputs]
    return cast("torch.LongTensor", torch.cat([ids, torch.tensor(filled, dtype=ids.dtype, device=ids.device)], dim=1))


def stacked(records: Sequence[ScoreRecorder] | None) -> tuple[torch.Tensor] | None:
    """The scores of each step, [rows, V], zero for rows that had ended. (transformers annotates a tuple of one
    step.)"""
    if records is None:
        return None
    zeros = torch.zeros_like(records[0].scores[0])
    steps = range(max(len(record.scores) for record in records))
    found = (
        torch.stack([each.scores[step] if step < len(each.scores) else zeros for each in records]) for step in steps
    )
    return cast("tuple[torch.Tensor]", tuple(found))
