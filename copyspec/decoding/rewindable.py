"""A sequence that is decoded on demand, from any prefix of its output that the caller sets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol, TypeVar

from copyspec.budget import Budget, CostModel
from copyspec.common.sequences import common_prefix
from copyspec.decoding.loop import Batch
from copyspec.decoding.requests import Finish, Request
from copyspec.decoding.row import Row
from copyspec.decoding.stats import Stats
from copyspec.drafters.base import Drafter
from copyspec.options import DraftOptions
from copyspec.targets.base import Target
from copyspec.tree import DraftTree

T = TypeVar("T")


class PassRunner(Protocol):
    """Runs one pass of a target at a time; other users may run theirs in between."""

    def run(self, call: Callable[[], T]) -> T:
        """Run `call`, which makes passes of the target, and return its result."""
        ...


class FollowingDrafter:
    """Drafts a given text that the output is expected to repeat, such as the old text after an edit of its prefix, as
    long as the output follows it; then the tree of `inner` (None: no draft)."""

    def __init__(self, inner: Drafter | None = None) -> None:
        self._inner = inner
        self._expected: list[int] = []

    def expect(self, tokens: Sequence[int]) -> None:
        """Set the tokens that the output is expected to continue with."""
        self._expected = list(tokens)

    def propose(self, budget: Budget) -> DraftTree:
        """Return a chain of the expected tokens, cut where more would not be worth their cost, or `inner`'s tree."""
        chain = DraftTree.of_chain(self._expected[: budget.max_nodes])
        chain = chain.up_to_depth(budget.cut(chain.scores))
        return chain if len(chain) or self._inner is None else self._inner.propose(budget)

    def accept(self, tokens: Sequence[int]) -> None:
        """Append `tokens` to the output; the expected tokens are dropped at the first difference."""
        same = self._expected[: len(tokens)] == list(tokens)
        self._expected = self._expected[len(tokens) :] if same else []
        if self._inner is not None:
            self._inner.accept(tokens)


class RewindableSequence:
    """One prompt whose output can be rewound to any earlier token, or replaced, and is decoded from there.

    It is a batch of one row. Call `go_to` with any prefix of the output, then `step` until `output` is long enough.
    Keys and values are kept for the part that the new prefix shares with the old one. The output depends on the
    prompt and the prefix alone: sampling noise is keyed by positions in the output, so that it is the same after
    prompts of other lengths.
    """

    def __init__(
        self,
        target: Target,
        make_request: Callable[[], Request],
        draft: DraftOptions,
        cost_model: CostModel,
        passes: PassRunner,
        mend: Callable[[], None] = lambda: None,
    ) -> None:
        """`make_request` returns equal requests with fresh stop conditions; `passes` runs every pass of the target, and
        `mend` after one that was interrupted, which may have left the model changed."""
        self._target, self._make_request, self._draft, self._costs = target, make_request, draft, cost_model
        self._passes, self._mend = passes, mend
        self._batch = Batch(target, draft, cost_model)
        self._row: Row | None = None
        self._follower = FollowingDrafter()
        self._expects = self._drafts_alone = False  # `go_to` gave expected tokens; the request has a drafter
        self._given = 0  # length of the output that was given instead of decoded
        self._before = Stats()  # totals of the rows that were replaced

    @property
    def output(self) -> Sequence[int]:
        """The output so far: at least the prefix given to `go_to`."""
        return self._row.output if self._row is not None else ()

    @property
    def finish(self) -> Finish | None:
        """Why the output ends with its last token; None where it goes on."""
        return self._row.finish if self._row is not None else None

    @property
    def stats(self) -> Stats:
        """Counters of everything decoded here; `num_output_tokens` includes tokens that were taken back."""
        row = self._row
        return self._before + row.meter.stats(len(row.output)) if row is not None else self._before

    def go_to(self, output: Sequence[int], expected: Sequence[int] = ()) -> None:
        """Continue from `output`; keep what was decoded after it, if it is a prefix of the current output.

        `expected`: tokens that may follow, used as a draft.
        """
        row, known = self._row, list(output)
        self._expects = len(expected) > 0
        if row is not None and len(known) >= self._given and row.output[: len(known)] == known:
            if len(row.output) == len(known):
                self._follower.expect(expected)
            return
        extends = row is not None and row.finish is None and known[: len(row.output)] == row.output
        if row is not None and extends and self._target.supports_drafts:
            row.replay(known[len(row.output) :])
        else:
            self._restart(known)
        self._given = len(known)
        self._follower.expect(expected)

    def step(self) -> None:
        """Propose, verify, commit: one pass of the target. Raises RuntimeError where the output has ended."""
        row = self._row
        if row is None or row.finish is not None:
            raise RuntimeError("step() needs an output that has not ended: call go_to() first")
        # A drafter with nothing to propose is not asked, so that its time does not count against plain decoding.
        row.drafts = self._expects or self._drafts_alone
        try:
            self._passes.run(partial(self._step, row))
        except BaseException:  # in the middle of a pass: what the session holds need not be what the row counts on
            self._passes.run(self._mend)
            self.close()
            if row.finish is None:
                self._restart([*row.output])
            raise

    def _step(self, row: Row) -> None:
        if not self._batch.rows:
            self._batch.add([row])
        self._batch.step()

    def close(self) -> None:
        """Free the target's KV cache."""
        if self._batch.rows:
            self._passes.run(self._batch.close)

    def _restart(self, output: list[int]) -> None:
        """Start a new row, and reuse the part of the old row's cache that it shares."""
        cached = self._held()
        if self._row is not None:
            self._before = self.stats
        request = self._make_request()
        inner = request.drafter
        self._drafts_alone = inner is not None
        self._follower = FollowingDrafter()

        def drafter() -> Drafter:
            self._follower = FollowingDrafter(inner() if inner is not None else None)
            return self._follower

        row = Row(0, replace(request, drafter=drafter), self._target, self._costs, adaptive=self._draft.adaptive)
        row.replay(output)
        if self._batch.rows:
            if self._target.supports_drafts:
                self._passes.run(partial(self._batch.swap_row, row, common_prefix(cached, row.uncached[:-1])))
            else:
                self.close()
        self._row = row

    def _held(self) -> list[int]:
        """Return the tokens that the session has cached."""
        if self._row is None:
            return []
        return [*self._target.start(self._row.request.prompt), *self._row.output][: self._batch.cached]
