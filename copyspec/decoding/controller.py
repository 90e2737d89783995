"""The controller of one row: when to draft, how many nodes to draft, and how much time drafting may lose.

Time is counted in plain passes: forward passes of the target without draft nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import ClassVar

from copyspec.tree import COMPILED, ROOT, DraftTree

LOSS_PER_TOKEN = 0.015
"""Plain passes that drafting may lose per output token, beyond the row's starting allowance."""

MAX_ALLOWANCE = 6.0
"""Maximum allowance, in plain passes: earlier gains beyond it cannot be lost again."""

MAX_IDLE_SHARE = 0.01
"""Maximum share of a row's time spent in calls of `propose` that return an empty tree."""

_COST_MEMORY = 0.8  # weight of earlier calls of the drafter in its average time
_OUTLIER = 2.0  # a drafter call longer than this many times the average is clipped as a disturbance

_DECAY = 0.9  # decay, per trial, of earlier trials in a drafter's record
_PRIOR_TRIALS = 4.0  # trials in which a new row's drafter counts as calibrated
_PSEUDO_COUNT = 1.0  # pseudo-count that keeps `calibration` above 0 when no trial succeeded


@dataclass(eq=False, slots=True)
class DraftController:
    """Decides for one row how much to draft, from what its drafts have gained so far.

    Three mechanisms keep drafting from costing more than it saves:
    - the record compares how often a drafted child was right with the probability that the drafter gave. Later
      probabilities are scaled down accordingly, so that trees shrink, or are left out where no size pays;
    - pauses follow while the average gain of a draft (tokens per pass over the pass's cost) is below 1, or while scaled
      probabilities justify no draft. Each failure doubles the pause; a trial draft ends it;
    - the allowance bounds the loss, whatever drafters claim and however passes are priced. It grows by LOSS_PER_TOKEN
      per token and by what drafts gain.
    """

    MAX_PAUSE: ClassVar[int] = 32  # in passes
    _MEMORY: ClassVar[float] = 0.875

    allowance: float = 1.0
    """Plain passes that the next pass may lose; below 0: none."""
    saved_passes: float = 0.0
    """Time that drafts saved less what they cost, in plain passes."""
    calibration: float = 1.0
    """Factor, at most 1, by which the drafter's probabilities are multiplied."""
    wants_draft: bool = True
    """Whether to ask the drafter in the next pass. `observe` follows a pass that did, `advance` one that did not."""
    is_probe: bool = False
    """Whether the next draft is the first one after a pause."""
    trust: float = 1.0
    """Factor for the probability that the first token of a draft in the row's first pass is right."""
    _gain: float = 1.25  # above 1, so that a new row drafts a few times
    _pause: int = 1
    _pause_left: int = 0
    _accepted: float = _PRIOR_TRIALS
    _expected: float = _PRIOR_TRIALS
    _draft_cost: float = 0.0  # average cost of asking the drafter, in plain passes

    def observe(
        self, proposed: DraftTree, drafted: DraftTree, path: Sequence[int], cost: float, draft_cost: float
    ) -> None:
        """Record that the drafter proposed `proposed` and the pass verified `drafted` and accepted `path`.

        `cost`: cost of the draft nodes, in plain passes; `draft_cost`: cost of asking the drafter, in the same unit.
        """
        if average := self._draft_cost:
            draft_cost = min(draft_cost, _OUTLIER * average)
            self._draft_cost = _COST_MEMORY * average + (1 - _COST_MEMORY) * draft_cost
        else:
            self._draft_cost = draft_cost
        saved = len(path) - cost - draft_cost
        self.saved_passes += saved
        self.allowance = min(self.allowance + saved, MAX_ALLOWANCE)
        if len(drafted.tokens):
            self.is_probe = False
            expected, accepted = record(drafted.parents, drafted.scores, path, _DECAY, self._expected, self._accepted)
            self._expected, self._accepted = expected, accepted
            self.calibration = min(1.0, (accepted + _PSEUDO_COUNT) / (expected + _PSEUDO_COUNT))
            self._gain = self._MEMORY * self._gain + (1 - self._MEMORY) * (1 + len(path)) / (1.0 + cost + draft_cost)
            if self._gain >= 1.0:
                self._pause = 1
            else:
                self._wait()
        elif len(proposed.tokens) and self.calibration < 1.0:
            self._wait()
        else:
            self._pause_left = (
                min(ceil(self._draft_cost / MAX_IDLE_SHARE) - 1, self.MAX_PAUSE)
                if self._draft_cost > MAX_IDLE_SHARE
                else 0
            )
        self.advance()

    def advance(self) -> None:
        """Go on to the next pass. `observe` does so itself."""
        self.allowance += LOSS_PER_TOKEN
        self.wants_draft = not self._pause_left and self.allowance > 0.0
        if self._pause_left:
            self._pause_left -= 1

    def _wait(self) -> None:
        self._pause_left, self.is_probe = self._pause, True
        self._pause = min(2 * self._pause, self.MAX_PAUSE)


def _record(
    parents: Sequence[int], scores: Sequence[float], path: Sequence[int], decay: float, expected: float, accepted: float
) -> tuple[float, float]:
    """Record at each node that the output reached whether a child was right, and the probability given for that."""
    totals = {ROOT: 0.0, **dict.fromkeys(path, 0.0)}
    for parent, score in zip(parents, scores, strict=True):
        if parent in totals:
            totals[parent] += score
    # Each node of the path but the last has its accepted child on the path.
    for depth, (node, total) in enumerate(totals.items()):
        if total > 0.0:
            above = 1.0 if node == ROOT else scores[node]
            expected = decay * expected + min(1.0, total / above if above > 0.0 else 1.0)
            accepted = decay * accepted + (depth < len(path))
    return expected, accepted


record = _record if COMPILED is None else COMPILED.record
