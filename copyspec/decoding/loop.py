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
                    # Under a verification rule the output depends on the drafts; these must not depend on timing.
                    splits = draft.adaptive and not target.is_encoder_decoder
                    groups = _alike(fresh, costs) if splits and len(fresh) > 1 else [fresh]
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
    """Admit each group of new rows with a pass of its own."""
    waiting = [*groups]
    try:
        while waiting:
            yield _admit(batch, waiting.pop(0), new_batch())
    finally:
        for row in chain.from_iterable(waiting):
            row.close()


def _admit(batch: Batch, rows: list[Row], newcomers: Batch) -> list[StepOutput]:
    """Run the first step of new rows (prompt and first tree in one pass), then let them join the batch."""
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
    """Group rows whose prompts are read in one pass: each row is padded to the longest prompt of its group."""
    ordered = sorted(rows, key=lambda row: len(row.chain))
    sizes = costs.split_first([len(row.chain) for row in ordered])
    if len(sizes) == 1:
        return [rows]
    ends = [0, *accumulate(sizes)]
    return [ordered[start:end] for start, end in pairwise(ends)]


class _Intake:
    """Numbers the requests in the order they arrive."""

    def __init__(self, requests: Iterable[Request | None]) -> None:
        self._requests = iter(requests)
        self._count = 0
        self.is_empty = False

    def take(self, most: int) -> list[tuple[int, Request]]:
        """Return up to `most` requests, as many as are available now."""
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
