"""Logits processors that `generate` calls with all rows of a batch, for one row alone."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from transformers import (
    EncoderNoRepeatNGramLogitsProcessor,
    EncoderRepetitionPenaltyLogitsProcessor,
    LogitsProcessor,
    PrefixConstrainedLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SynthIDTextWatermarkLogitsProcessor,
    UnbatchedClassifierFreeGuidanceLogitsProcessor,
)

WHOLE_BATCH = (SynthIDTextWatermarkLogitsProcessor, UnbatchedClassifierFreeGuidanceLogitsProcessor)
"""Processors that keep state about all rows between calls and rely on one call per token."""


def check_processors(processors: Iterable[LogitsProcessor], instead: str) -> None:
    """Raise ValueError for a processor that cannot be called row by row; `instead` is the remedy."""
    for processor in processors:
        if isinstance(processor, WHOLE_BATCH):
            raise ValueError(f"{type(processor).__name__} keeps a state of the whole batch between tokens; {instead}")


def of_row(processor: LogitsProcessor, row: int, rows: int) -> LogitsProcessor:
    """A copy of the processor that treats a batch of only row number `row` as it treats the row among all `rows`.

    Processors that read the model's input have one row for all samples of a prompt.
    """
    untyped: Any = processor
    changes: dict[str, object] = {}
    if isinstance(processor, EncoderRepetitionPenaltyLogitsProcessor):
        ids = processor.encoder_input_ids
        changes = {"encoder_input_ids": ids[row * len(ids) // rows][None]}
    elif isinstance(processor, EncoderNoRepeatNGramLogitsProcessor):
        ngrams = processor.generated_ngrams[row * processor.batch_size // rows]
        changes = {"generated_ngrams": [ngrams], "batch_size": 1}
    elif isinstance(processor, PrefixConstrainedLogitsProcessor):
        changes = {"_prefix_allowed_tokens_fn": partial(_allowed, untyped._prefix_allowed_tokens_fn, row)}
    elif isinstance(processor, RepetitionPenaltyLogitsProcessor):
        ignored = getattr(processor, "prompt_ignore_length", None)
        if isinstance(ignored, torch.Tensor):
            changes = {"prompt_ignore_length": ignored[row * len(ignored) // rows][None]}
    if not changes:
        return processor
    own = copy.copy(processor)
    vars(own).update(changes)
    return own


def _allowed(function: Callable[[int, torch.Tensor], list[int]], row: int, _: int, ids: torch.Tensor) -> list[int]:
    return function(row, ids)
