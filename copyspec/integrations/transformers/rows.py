"""Applies the logits processors and stopping criteria of a batch to each row alone.

`generate` calls them with the whole batch, whose rows have the same length. Here rows advance at different speeds, so
each calls them with its own ids, [1, L], including the padding that `generate` would show them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, cast

import torch
from transformers import EosTokenCriteria, LogitsProcessor, LogitsProcessorList, MaxLengthCriteria

from copyspec.engine.logits.row_processors import of_row
from copyspec.text.stops import CriterionStop

if TYPE_CHECKING:
    from transformers import StoppingCriteriaList

    from copyspec.decoding.requests import StopCondition


class Shown(NamedTuple):
    """What `generate` shows of a row before its output."""

    ids: torch.Tensor  # with masked tokens, [1, width]
    read: int  # how many tokens of the row are decoded from


class RowProcessors(LogitsProcessor):
    """The processors of one row, called with the masked tokens of its prompt, too."""

    def __init__(self, processors: Sequence[LogitsProcessor], shown: Shown) -> None:
        self._processors = LogitsProcessorList(processors)
        self._shown = shown

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        ids, read = self._shown
        if ids.shape[1] != read:
            input_ids = cast("torch.LongTensor", torch.cat([ids, input_ids[:, read:]], dim=1))
        return cast("torch.FloatTensor", self._processors(input_ids, scores))


class ScoreRecorder(LogitsProcessor):
    """Records the scores of each output token at its position among the processors."""

    def __init__(self) -> None:
        self.scores: list[torch.Tensor] = []  # [V] each

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        self.scores.append(scores[0].clone())
        return scores


def row_processors(processors: LogitsProcessorList, row: int, rows: int, shown: Shown) -> list[LogitsProcessor]:
    """`processors` for row number `row` of `rows`, as a list of at most one."""
    own = [of_row(each, row, rows) for each in processors]
    return [RowProcessors(own, shown)] if own else []


def row_stops(
    criteria: StoppingCriteriaList, ids: Sequence[int], room: int, device: torch.device
) -> list[StopCondition]:
    """`criteria` for a row that starts with `ids`, without those for length and end of sequence."""
    kinds = (MaxLengthCriteria, EosTokenCriteria)
    return [CriterionStop(each, ids, room, device) for each in criteria if not isinstance(each, kinds)]
