"""Applies the logits processors and stopping criteria of a batch to each row alone.

`generate` calls them with the whole batch, whose rows have the same length. Here rows advance at different speeds, so
each calls them with its own ids, [1, L], including the padding that `generate` would show them.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import torch
from transformers import (
    EncoderNoRepeatNGramLogitsProcessor,
    EncoderRepetitionPenaltyLogitsProcessor,
    EosTokenCriteria,
    LogitsProcessor,
    LogitsProcessorList,
    MaxLengthCriteria,
    PrefixConstrainedLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SynthIDTextWatermarkLogitsProcessor,
    UnbatchedClassifierFreeGuidanceLogitsProcessor,
)

from copyspec.text.stops import CriterionStop

if TYPE_CHECKING:
    from transformers import StoppingCriteriaList

    from copyspec.decoding.requests import StopCondition

OF_THE_BATCH = (SynthIDTextWatermarkLogitsProcessor, UnbatchedClassifierFreeGuidanceLogitsProcessor)
"""Processors that keep state about all rows between calls and rely on one call per token."""


class RowProcessors(LogitsProcessor):
    """The processors of one row, called with the padding before its prompt."""

    def __init__(self, processors: Sequence[LogitsProcessor], padding: torch.Tensor) -> None:
        self._processors = LogitsProcessorList(processors)
        self._padding = padding  # [1, pads]

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        if self._padding.shape[1]:
            input_ids = cast("torch.LongTensor", torch.cat([self._padding, input_ids], dim=1))
        return cast("torch.FloatTensor", self._processors(input_ids, scores))


class ScoreRecorder(LogitsProcessor):
    """Records the scores of each output token at its position among the processors."""

    def __init__(self) -> None:
        self.scores: list[torch.Tensor] = []  # [V] each

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        self.scores.append(scores[0].clone())
        return scores


def check_processors(processors: LogitsProcessorList) -> None:
    """Raise ValueError for a processor that cannot be called row by row."""
    for each in processors:
        if isinstance(each, OF_THE_BATCH):
            raise ValueError(
                f"{type(each).__name__} keeps a state of the whole batch between tokens; leave out custom_generate"
            )


def row_processors(
    processors: LogitsProcessorList, row: int, rows: int, padding: torch.Tensor
) -> list[LogitsProcessor]:
    """`processors` for row number `row` of `rows`, as a list of at most one."""
    own = [_of_row(each, row, rows) for each in processors]
    return [RowProcessors(own, padding)] if own else []


def row_stops(
    criteria: StoppingCriteriaList, ids: Sequence[int], room: int, device: torch.device
) -> list[StopCondition]:
    """`criteria` for a row that starts with `ids`, without those for length and end of sequence."""
    kinds = (MaxLengthCriteria, EosTokenCriteria)
    return [CriterionStop(each, ids, room, device) for each in criteria if not isinstance(each, kinds)]


def _of_row(processor: LogitsProcessor, row: int, rows: int) -> LogitsProcessor:
    """A copy of the processor that treats a batch of only this row as it treats the row in the whole batch.

    Processors that read the model's input have one row for all samples of a prompt.
    """
    own: Any = copy.copy(processor)
    if isinstance(processor, EncoderRepetitionPenaltyLogitsProcessor):
        ids = processor.encoder_input_ids
        own.encoder_input_ids = ids[row * len(ids) // rows][None]
    elif isinstance(processor, EncoderNoRepeatNGramLogitsProcessor):
        own.generated_ngrams = [processor.generated_ngrams[row * processor.batch_size // rows]]
        own.batch_size = 1
    elif isinstance(processor, PrefixConstrainedLogitsProcessor):
        allowed: Callable[[int, torch.Tensor], list[int]] = own._prefix_allowed_tokens_fn
        own._prefix_allowed_tokens_fn = partial(_allowed, allowed, row)
    elif isinstance(processor, RepetitionPenaltyLogitsProcessor) and isinstance(
        ignored := getattr(processor, "prompt_ignore_length", None), torch.Tensor
    ):
        own.prompt_ignore_length = ignored[row * len(ignored) // rows][None]
    else:
        return processor
    return cast("LogitsProcessor", own)


def _allowed(function: Callable[[int, torch.Tensor], list[int]], row: int, _: int, ids: torch.Tensor) -> list[int]:
    return function(row, ids)
