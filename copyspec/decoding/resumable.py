"""A row that is decoded on demand: from wherever its caller says that the output stands."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol, TypeVar

from copyspec.budget import CostModel
from copyspec.decoding.loop import propose, score
from copyspec.decoding.pacing import shares
from copyspec.decoding.requests import Finish, Request, RowStats
from copyspec.decoding.row import Row
from copyspec.drafters.base import Drafter
from copyspec.drafters.following import FollowingDrafter
from copyspec.options import DraftOptions
from copyspec.targets.base import Session, Target
from copyspec.tree import EMPTY, DraftTree

T = TypeVar("T")


class PassRunner(Protocol):
    """Runs the calls of a target, one after the other: others may have it in between."""

    def run(self, call: Callable[[], T]) -> T: ...


class Resumable:
    """One prompt, whose output may be taken back to any earlier token, or replaced, and is decoded from there.

    The output is a function of the prompt and of what stands before each token: `go_to` any prefix, `step` until
    `output` is as long as is wanted. Keys and values are kept for what the new prefix has in common with the old.
    Sampling noise is keyed by the output's own positions, so it is that of any other prompt's continuation, too.
    """

    def __init__(
        self,
        target: Target,
        make_request: Callable[[], Request],
        draft: DraftOptions,
        cost_model: CostModel,
        passes: PassRunner,
    ) -> None:
        """`make_request` gives equal requests each time, with stop conditions of their own; `passes` runs every call
        of the target."""
        self._target, self._make_request, self._draft, self._costs = target, make_request, draft, cost_model
        self._passes = passes
        self._row: _ResumableRow | None = None
        self._follower = FollowingDrafter()
        self._session: Session | None = None
        self._expects = self._drafts_alone = False  # what was expected last; without any expectation
        self._given = 0  # tokens of the output up to the last one that was given, not decoded
        self._before = RowStats()  # of the rows that were replaced

    @property
    def output(self) -> Sequence[int]:
        """What is known of the output: at least the prefix that was gone to."""
        return self._row.output if self._row is not None else ()

    @property
    def finish(self) -> Finish | None:
        """Why the output ends with its last token; None where it goes on."""
        return self._row.finish if self._row is not None else None

    @property
    def stats(self) -> RowStats:
        """Counters of all that was decoded here; `output_tokens` counts what was taken back, too."""
        return self._before + self._row.stats if self._row is not None else self._before

    def go_to(self, output: Sequence[int], expected: Sequence[int] = ()) -> None:
        """Goes on from `output`; what was decoded behind it before stays known.

        `expected`: what may follow, to be drafted.
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
        """Propose, verify, commit: one call of the target. Raises RuntimeError where the output has ended."""
        row = self._row
        if row is None or row.finish is not None:
            raise RuntimeError("step() goes on from an output that has not ended: call go_to() first")
        self._passes.run(lambda: self._step(row))

    def _step(self, row: Row) -> None:
        session = self._session = self._session or self._target.open([row.request.prompt])
        clock, longest = self._costs.clock, len(row.chain)
        started = clock()
        tree, allowed = self._propose(row, is_first=longest > 1)
        proposed = clock()
        picks = score(session, [row], [tree])[0]
        scored = clock()
        path = row.verify(tree, picks)
        session.keep([path])
        self._account(row, tree, path, (started, proposed, scored), allowed=allowed, longest=longest)

    def close(self) -> None:
        """Frees the target's cache."""
        if self._session is not None:
            self._passes.run(self._session.close)
            self._session = None

    def _restart(self, output: list[int]) -> None:
        """A new row, and as much of the old one's cache as it can use."""
        held = self._held()
        if self._row is not None:
            self._before = self._before + self._row.stats
        request = self._make_request()
        inner = request.drafter
        self._drafts_alone = inner is not None
        self._follower = FollowingDrafter()

        def drafter() -> Drafter:
            self._follower = FollowingDrafter(inner() if inner is not None else None)
            return self._follower

        row = _ResumableRow(
            0, replace(request, drafter=drafter), self._target, self._costs, adaptive=self._draft.adaptive
        )
        row.replay(output)
        if self._session is not None:
            same = _common(held, row.chain[:-1])
            if self._target.supports_drafts:
                self._passes.run(partial(self._session.trim, [same]))
                row.chain = row.chain[same:]
            else:
                self.close()
        self._row = row

    def _held(self) -> list[int]:
        """The tokens that the session has cached."""
        if self._row is None or self._session is None:
            return []
        return [*self._target.start(self._row.request.prompt), *self._row.output][: self._session.lengths[0]]

    def _propose(self, row: Row, *, is_first: bool) -> tuple[DraftTree, int]:
        # A drafter that has nothing to say is not asked, and nothing is booked: that is no part of plain decoding.
        if not self._target.supports_drafts or not (self._expects or self._drafts_alone):
            return EMPTY, 0
        trees, allowed = propose([row], self._draft, self._costs, is_first=is_first)
        return trees[0] if self._target.supports_trees else trees[0].first_chain(), allowed

    def _account(
        self,
        row: Row,
        tree: DraftTree,
        path: Sequence[int],
        times: tuple[float, float, float],
        *,
        allowed: int,
        longest: int,
    ) -> None:
        """`longest`: tokens that the call carried before the tree; one, in those calls whose cost is learned."""
        started, proposed, scored = times
        is_regular = longest == 1
        if is_regular:
            self._costs.observe(1, len(tree), scored - proposed)
        stats = row.stats
        stats.calls += 1
        stats.draft_seconds += proposed - started
        if is_regular:
            stats.target_seconds += scored - proposed
        else:
            stats.prefill_seconds += scored - proposed
        row.report(tree, path, shares(self._costs, [tree], allowed, is_first=not is_regular)[0])
        stats.verify_seconds += self._costs.clock() - scored


class _ResumableRow(Row):
    """A row whose output so far may be given."""

    @property
    def output(self) -> list[int]:
        return self._output

    def replay(self, tokens: Sequence[int]) -> None:
        """`tokens` join the output as if they had been picked. Ends the row where the output must not be longer."""
        if not self._output:
            self.picker.key_noise_from(0)
        if not tokens and self._output:
            return
        for token in tokens:
            self._output.append(token)
            self.picker.append(token)
            self.finish = self._check(token)
        self._origins.extend([None] * len(tokens))
        self._reported = len(self._output)
        self.chain = [*self.chain, *tokens]
        if self._drafter is not None and tokens:
            self._drafter.accept(tokens)


def _common(first: Sequence[int], second: Sequence[int]) -> int:
    """Length of the common prefix."""
    shared = 0
    for a, b in zip(first, second, strict=False):
        if a != b:
            break
        shared += 1
    return shared
