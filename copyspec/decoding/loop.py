"""The decoding loop: continuous batching, in which requests join as rows finish. It knows token ids, no tokenizer."""

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
"""Share of the batch that must be free before rows join it: joining copies the caches of all rows."""


@dataclass(frozen=True, slots=True)
class DecodeSettings:
    """How rows are run. Under the default rule no setting changes the output."""

    draft: DraftOptions = field(default_factory=DraftOptions)
    batch_size: int = 8  # maximum number of rows per pass
    keep_margins: bool = False  # whether to report the two best scores at each output token


def decode(
    target: Target,
    requests: Iterable[Request | None],
    settings: DecodeSettings | None = None,
    cost_model: CostModel | None = None,
) -> Generator[list[StepOutput], None, None]:
    """Decode all requests; yield what each step added, row by row, until all have finished.

    `requests` are read as rows become free, so an endless iterable needs no more memory than a batch. A None among
    them means that there is nothing to add right now; an empty step is then yielded if no row runs, so that the
    caller can wait.
    `cost_model` holds the measured costs of the target's passes; pass the same one to every run on a target.
    Closing the generator ends decoding within one step and frees the target's caches.
    """
    settings, costs = settings or DecodeSettings(), cost_model or CostModel()
    draft, waiting = settings.draft, iter(requests)
    batch = Batch(target, draft, costs)
    refill = max(1, int(REFILL_SHARE * settings.batch_size))
    count, is_exhausted = 0, False
    try:
        while True:
            room = settings.batch_size - len(batch.rows)
            if not is_exhausted and (room >= refill or not batch.rows):
                taken, is_exhausted = _take(waiting, room)
                fresh = [
                    Row(index, request, target, costs, adaptive=draft.adaptive, keep_margins=settings.keep_margins)
                    for index, request in enumerate(taken, count)
                ]
                count += len(fresh)
                if fresh:
                    # Under a verification rule the output depends on the drafts; these must not depend on timing.
                    splits = draft.adaptive and not target.is_encoder_decoder
                    groups = _alike(fresh, costs) if splits and len(fresh) > 1 else [fresh]
                    yield from _admit(batch, groups, partial(Batch, target, draft, costs))
                    continue
            if not batch.rows and is_exhausted:
                return
            outputs = batch.step() if batch.rows else []
            if any([output.finish is not None for output in outputs]):
                batch.drop_finished()
            yield outputs
    finally:
        batch.close()


def _take(requests: Iterator[Request | None], most: int) -> tuple[list[Request], bool]:
    """Up to `most` requests, as many as are available now, and whether there are no more."""
    taken: list[Request] = []
    for request in requests:
        if request is None:
            return taken, False
        taken.append(request)
        if len(taken) == most:
            return taken, False
    return taken, True


def _admit(batch: Batch, groups: Sequence[list[Row]], new_batch: Callable[[], Batch]) -> Iterator[list[StepOutput]]:
    """Run the first step of each group of new rows (prompts and first trees in one pass); then it joins the batch."""
    waiting = [*groups]
    try:
        while waiting:
            newcomers = new_batch()
            try:
                newcomers.open(waiting.pop(0))
                outputs = newcomers.step()
                if any([output.finish is not None for output in outputs]):
                    newcomers.drop_finished()
            except BaseException:
                newcomers.close()
                raise
            batch.join(newcomers)
            yield outputs
    finally:
        for row in chain.from_iterable(waiting):
            row.close()


def _alike(rows: list[Row], costs: CostModel) -> list[list[Row]]:
    """Group rows whose prompts are read in one pass: each row is padded to the longest prompt of its group."""
    ordered = sorted(rows, key=lambda row: len(row.chain))
    sizes = costs.split_first([len(row.chain) for row in ordered])
    if len(sizes) == 1:
        return [rows]
    ends = [0, *accumulate(sizes)]
    return [ordered[start:end] for start, end in pairwise(ends)]
