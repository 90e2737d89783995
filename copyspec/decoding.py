"""Decoding: rows of a batch through propose -> verify -> commit. Token ids only, no tokenizer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from copyspec.options import DraftOptions
from copyspec.requests import Request, StepOutput
from copyspec.target.base import Target


@dataclass(frozen=True, slots=True)
class DecodeSettings:
    """How the rows are run; none of it changes the output."""

    draft: DraftOptions = field(default_factory=DraftOptions)
    batch_size: int = 8  # rows in the target at once
    keep_margins: bool = False  # report the two best scores at each output token


def decode(
    target: Target, requests: Sequence[Request], settings: DecodeSettings | None = None
) -> Iterator[list[StepOutput]]:
    """Decodes every request; yields what each step added, row by row, until all have finished.

    Closing the iterator ends decoding within one step and frees the target's caches.
    """
    raise NotImplementedError
