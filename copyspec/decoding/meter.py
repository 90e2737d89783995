"""Measurements of decoding: the times of a batch's passes, and what each row drafted and how much it may draft."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from copyspec.budget import Budget, CostModel, prior_slope
from copyspec.decoding.controller import DraftController
from copyspec.decoding.stats import Stats
from copyspec.sources import OUTPUT, Source
from copyspec.tree import DraftTree


def costs_on(device: str, *, exact: bool = False) -> CostModel:
    """Make the cost model of a target on a device of this type. `exact`: in exact mode, where all passes are of one
    size."""
    return CostModel(slope=prior_slope(device, exact=exact))


@dataclass(slots=True)
class PassTimes:
    """Number of passes and their seconds, summed over a batch. A row's share is what was added while it took part."""

    passes: int = 0
    prefill: float = 0.0  # passes that read prompts
    draft: float = 0.0
    target: float = 0.0
    verify: float = 0.0
    other: float = 0.0
    runner: str = "eager"  # how the last pass was made

    def since(self, before: PassTimes) -> PassTimes:
        """Return what was added after `before`."""
        return PassTimes(
            self.passes - before.passes,
            self.prefill - before.prefill,
            self.draft - before.draft,
            self.target - before.target,
            self.verify - before.verify,
            self.other - before.other,
            self.runner,
        )


@dataclass(eq=False, slots=True)
class Meter:
    """Counts the draft tokens of one row and the accepted ones, and tells its controller."""

    _costs: CostModel
    _sources: Sequence[Source]
    _eos: frozenset[int]
    controller: DraftController | None = None  # None: the row always drafts as much as it may
    times: PassTimes = field(default_factory=PassTimes)  # of the whole batch
    before: PassTimes = field(default_factory=PassTimes)  # what was spent before the row joined
    cached_tokens: int = 0  # prompt tokens taken from a prefix cache
    proposed: tuple[DraftTree, float] | None = None
    """The drafter's tree for this pass, and the seconds it took; None: the drafter was not asked."""
    _rows: int = 0  # in the last pass
    _plain: int = 1  # tokens of a plain pass like it, padding included
    _first_draft: tuple[float, bool] | None = None
    """Probability of the first token of the first pass's draft, 0 if none paid, and whether it was right."""
    _uncounted: tuple[DraftTree, Sequence[int], Budget, DraftTree | None, bool] | None = None
    """Of the last pass: tree, path, budget, what the drafter proposed, and whether that was a trial draft."""
    _from: tuple[Counter[int], Counter[int]] = field(default_factory=lambda: (Counter(), Counter()))
    """Tokens by index of their source or OUTPUT: drafted, accepted."""
    _made: tuple[Counter[str], Counter[str]] = field(default_factory=lambda: (Counter(), Counter()))
    """The same of tokens without a source, by the drafter that made them."""
    _accepted: list[int] = field(default_factory=list)  # number of drafts by how many of their tokens were accepted
    _drafted: int = 0
    _allowed: int = 0
    _decisions: Counter[str] = field(default_factory=Counter)

    def pause(self) -> None:
        """Record that the drafter was not asked, because its drafts do not pay at present."""
        self._decisions["paused"] += 1
        if self.controller is not None:
            self.controller.advance()

    def count(self, tree: DraftTree, path: Sequence[int], budget: Budget, rows: int, extra: float) -> None:
        """Record that a pass of `rows` rows verified `tree` and accepted `path`. `extra`: plain passes that the tree
        has cost.

        All rows wait for a pass. Those that drafted pay for what it took longer, in proportion to their nodes and at
        the costs by which they were drafted.
        """
        controller, (proposed, seconds) = self.controller, self.proposed or (None, 0.0)
        is_first, self._rows, self.proposed = not self._rows, rows, None
        self._uncounted = tree, path, budget, proposed, controller is not None and controller.is_probe
        if controller is None:
            return
        if is_first:
            controller.trust = 1.0
        if proposed is None:
            return
        if is_first and len(proposed.tokens):
            score = min(1.0, max(0.0, tree.scores[0])) if len(tree.tokens) else 0.0  # drafters of users report NaN, too
            self._first_draft = score, bool(path) and path[0] == 0
        is_charged, self._costs.has_drafted = self._costs.has_drafted and budget.seconds > 0.0, True
        controller.observe(proposed, tree, path, extra, seconds / budget.seconds if is_charged else 0.0)

    def settle(self) -> None:
        """Count the nodes of the last pass. `stats` does it if need be; decoding calls it while the next pass runs."""
        if self._uncounted is None:
            return
        (tree, path, budget, proposed, was_probe), self._uncounted = self._uncounted, None
        self._plain, accepted, size = budget.plain, len(path), len(tree.tokens)
        if proposed is not None:
            self._allowed += budget.max_nodes
            kept, cut = "probed" if was_probe else "drafted", "unprofitable" if len(proposed.tokens) else "no_draft"
            self._decisions[kept if size else cut] += 1
        if not size:
            return
        if accepted >= len(self._accepted):
            self._accepted += [0] * (accepted + 1 - len(self._accepted))
        self._accepted[accepted] += 1
        self._drafted += size
        self._count_sources(0, tree, range(size))
        self._count_sources(1, tree, path)

    def conclude(self, *, without_own: bool) -> None:
        """Report the row's gain and first draft, once it has ended: later rows start with what they show.
        `without_own`: the last pass ended with a draft token, so that it saved a pass less than its accepted tokens."""
        self._costs.learn()  # for the row's last figures
        if self.controller is not None:
            self.controller.saved_passes -= without_own
            self._costs.finish(self.controller.saved_passes, self._first_draft)

    def stats(self, output_tokens: int, *, ended: bool = True) -> Stats:
        """Return the counters so far; the costs of a pass are filled in only where the row has `ended`."""
        self.settle()
        times, controller, rows = self.times.since(self.before), self.controller, self._rows
        accepted = self._accepted
        deeper = list(accumulate(reversed(accepted)))  # drafts of which n, n - 1, ... tokens or more were accepted
        plain = self._plain
        seconds = self._costs.seconds(plain) if rows and ended else 0.0
        measured = self._costs.measured(plain) if seconds else {}
        return Stats(
            num_passes=times.passes,
            num_drafts=deeper[-1] if deeper else 0,
            num_draft_tokens=self._drafted,
            num_accepted_tokens=sum(deeper[:-1]),
            num_output_tokens=output_tokens,
            num_cached_tokens=self.cached_tokens,
            num_accepted_tokens_per_pos=tuple(deeper[-2::-1]),
            num_draft_tokens_per_source=self._by_source(0),
            num_accepted_tokens_per_source=self._by_source(1),
            decisions=dict(self._decisions),
            num_allowed_nodes=self._allowed,
            calibration=controller.calibration if controller is not None else 1.0,
            saved_passes=controller.saved_passes if controller is not None else 0.0,
            pass_seconds=seconds,
            runner=times.runner,
            pass_costs={tokens - plain: taken / seconds for tokens, taken in measured.items()},
            prefill_seconds=times.prefill,
            draft_seconds=times.draft,
            target_seconds=times.target,
            verify_seconds=times.verify,
            other_seconds=times.other,
        )

    def _count_sources(self, which: int, tree: DraftTree, nodes: Sequence[int]) -> None:
        origins, counts = tree.origins, self._from[which]
        for node in nodes:
            origin = origins[node]
            if origin is not None:
                counts[origin.source] += 1
            else:
                drafter = tree.drafters[node] if tree.drafters is not None else None
                kind = drafter or ("end" if tree.tokens[node] in self._eos else "guess")
                self._made[which][kind] += 1

    def _by_source(self, which: int) -> dict[str, int]:
        """Counts by kind of source; tokens without a source count under the drafter that made them."""
        by_kind, counts = Counter(self._made[which]), self._from[which]
        for index, source in enumerate(self._sources):
            by_kind["prompt" if source.kind == "block" else source.kind] += counts[index]
        by_kind["output"] += counts[OUTPUT]
        return {kind: count for kind, count in by_kind.items() if count}
