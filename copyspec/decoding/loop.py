"""Decoding: requests become rows of a running batch as others finish. Token ids only, no tokenizer."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate, chain, pairwise

from copyspec.budget import CostModel
from copyspec.decoding.batch import Batch
from copyspec.decoding.requests import Request, StepOutput
from copyspec.decoding.row import Row
from copyspec.options import DraftOptions
from copyspec.targets.base import Target

REFILL_SHARE = 0.25
"""Rows join a running batch when this share of it is free: joining copies the caches of all rows."""


@dataclass(frozen=True, slots=True)
class DecodeSettings:
    """How the rows are run; none of it changes the output."""

    draft: DraftOptions = field(default_factory=DraftOptions)
    batch_size: int = 8  # rows in the target at once
    keep_margins: bool = False  # report the two best scores at each output token


def decode(
    target: Target,
    requests: Iterable[Request | None],
    settings: DecodeSettings | None = None,
    cost_model: CostModel | None = None,
) -> Generator[list[StepOutput], None, None]:
    """Decodes every request; yields what each step added, row by row, until all have finished.

    `requests` are taken as rows become free, so that an endless iterable needs no more memory than a batch. A None
    among them says that there is nothing to add at this moment; while no row runs either, an empty step is yielded,
    so that the caller may wait.
    `cost_model`: what the target's passes cost, learned further here; give the same one to every run on a target.
    Closing the iterator ends decoding within one step and frees the target's caches.
    """
    settings, costs = settings or DecodeSettings(), cost_model or CostModel()
    draft, intake = settings.draft, _Intake(requests)
    batch = Batch(target, draft, costs)
    refill = max(1, int(REFILL_SHARE * settings.batch_size))
    try:
        while True:
            room = settings.batch_size - len(batch.rows)
            if not intake.is_empty and (room >= refill or not batch.rows):
                fresh = [
                    Row(index, request, target, costs, adaptive=draft.adaptive, keep_margins=settings.keep_margins)
                    for index, request in intake.take(room)
                ]
                if fresh:
                    # Under a rule the output depends on the drafts, and these must not depend on time.
                    splits = draft.adaptive and not target.is_encoder_decoder
                    groups = _alike(fresh, costs) if splits else [fresh]
                    yield from _admit_all(batch, groups, partial(Batch, target, draft, costs))
                    continue
            if not batch.rows and intake.is_empty:
                return
            outputs = []
            if batch.rows:
                outputs = batch.step()
                batch.drop_finished()
            yield outputs
    finally:
        batch.close()


def _admit_all(batch: Batch, groups: Sequence[list[Row]], new_batch: Callable[[], Batch]) -> Iterator[list[StepOutput]]:
    """Each group of new rows in a pass of its own."""
    waiting = [*groups]
    try:
        while waiting:
            yield _admit(batch, waiting.pop(0), new_batch())
    finally:
        for row in chain.from_iterable(waiting):
            row.close()


def _admit(batch: Batch, rows: list[Row], newcomers: Batch) -> list[StepOutput]:
    """New rows make their first step by themselves, prompt and first tree in one pass, and then join."""
    try:
        newcomers.open(rows)
        outputs = newcomers.step()
        newcomers.drop_finished()
    except BaseException:
        newcomers.close()
        raise
    batch.join(newcomers)
    return outputs


def _alike(rows: list[Row], costs: CostModel) -> list[list[Row]]:
    """The rows whose prompts are read together: a pass computes as many tokens of each as the longest has."""
    ordered = sorted(rows, key=lambda row: len(row.chain))
    sizes = costs.split_first([len(row.chain) for row in ordered])
    if len(sizes) == 1:
        return [rows]
    ends = [0, *accumulate(sizes)]
    return [ordered[start:end] for start, end in pairwise(ends)]


class _Intake:
    """Requests in their order, numbered."""

    def __init__(self, requests: Iterable[Request | None]) -> None:
        self._requests = iter(requests)
        self._count = 0
        self.is_empty = False

    def take(self, most: int) -> list[tuple[int, Request]]:
        """Up to `most` requests, those that are there now."""
        taken: list[tuple[int, Request]] = []
        while len(taken) < most:
            try:
                request = next(self._requests)
            except StopIteration:
                self.is_empty = True
                break
            if request is None:
                break
            taken.append((self._count, request))
            self._count += 1
        return taken
