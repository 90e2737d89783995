"""The controller: when a row drafts, how many nodes a call carries, and what drafting may lose."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from operator import add
from typing import TYPE_CHECKING

from copyspec.tree import EMPTY, ROOT, DraftTree

if TYPE_CHECKING:
    from copyspec.budget import Budget

SHARE = 0.015
"""Of a row's tokens, in calls' worth of time: what drafting may lose beside what the row starts with."""

STAKE = 6.0
"""Calls' worth of time that drafting has gained and may lose again, at most."""

LOOKS = 0.01
"""Share of a row's time that goes into asking a drafter that has nothing to say."""

PROBE_NODES = 2  # of a draft that is not believed, made to see whether it still deserves that

_LOOK_MEMORY = 0.8  # weight of earlier looks in what one costs
_OUTLIER = 2.0  # a look that takes so many times what looks took was disturbed, and counts as that

_TRIALS = 0.9  # weight of earlier trials per trial in a drafter's record
_BEFORE = 4.0  # trials in which a new row's drafter is taken to have been as right as it said
_DOUBT = 1.0  # trials that keep a record of none right from being believed to the last


class DraftController:
    """Decides for one row, by what its drafts have been worth.

    Three things keep drafting from costing more than it brings:
    - the record: how often some child was right where the drafter said how likely that was. What it says later counts
      as much less as it was wrong, so that trees shrink, and are left out where no size of them pays;
    - pauses: while the average gain of a draft, tokens per call over the cost of the call, lies below 1, or drafts are
      not believed. Each failure doubles the pause, and behind it a draft is tried, of PROBE_NODES if not believed;
    - the allowance: what drafting may have lost by now, whatever drafters say and however passes are priced. It
      begins with `start` calls' worth of time and grows by SHARE per token and by what drafts gain.
    """

    MAX_PAUSE = 32  # calls
    _MEMORY = 0.875

    def __init__(self, start: float = 1.0) -> None:
        self.earned = 0.0
        """Calls' worth of time that drafts saved, less what they cost."""
        self._allowed = start
        self._gain = 1.25  # worth a few tries
        self._pause = 1
        self._left = 0
        self._right = self._said = _BEFORE
        self._look = 0.0  # what asking the drafter costs
        self.is_probe = False
        """The next draft is the first one after a pause."""

    @property
    def trust(self) -> float:
        """What a probability that the drafter names is multiplied with, at most 1."""
        return min(1.0, (self._right + _DOUBT) / (self._said + _DOUBT))

    @property
    def allowance(self) -> float:
        """Calls' worth of time that the next call may lose."""
        return max(0.0, self._allowed)

    def wants_draft(self) -> bool:
        """Asked once per call: False skips the draft."""
        self._allowed += SHARE
        if self._left:
            self._left -= 1
            return False
        return self._allowed > 0.0

    def believed(self, tree: DraftTree) -> list[float]:
        """What each node's score is worth by the record. [m]"""
        trust, scores = 1.0 if self.is_probe else self.trust, tree.scores
        worth: list[float] = []
        for parent, score in zip(tree.parents, scores, strict=True):
            if parent == ROOT:
                worth.append(trust * (score if score < 1.0 else 1.0))
                continue
            said = scores[parent]
            worth.append(worth[parent] * trust * (score / said if score < said else 1.0) if said > 0.0 else 0.0)
        return worth

    def observe(self, proposed: DraftTree, drafted: DraftTree, path: Sequence[int], cost: float, look: float) -> None:
        """The drafter gave `proposed`, the call carried `drafted`, of which `path` was right.

        `cost`: what that cost the call beyond an empty one, in units of it; `look`: what asking the drafter cost.
        """
        look = min(look, _OUTLIER * self._look) if self._look else look
        self._look = _LOOK_MEMORY * self._look + (1 - _LOOK_MEMORY) * look if self._look else look
        saved = len(path) - cost - look
        self.earned += saved
        self._allowed = min(self._allowed + saved, STAKE)
        if not len(drafted.tokens):
            self._pass_over(proposed)
            return
        self.is_probe = False
        self._record(drafted, path)
        self._gain = self._MEMORY * self._gain + (1 - self._MEMORY) * (1 + len(path)) / (1.0 + cost + look)
        if self._gain >= 1.0:
            self._pause = 1
        else:
            self._wait()

    def _pass_over(self, proposed: DraftTree) -> None:
        if len(proposed.tokens) and self.trust < 1.0:
            self._wait()
        else:
            self._left = min(ceil(self._look / LOOKS) - 1, self.MAX_PAUSE) if self._look > LOOKS else 0

    def _wait(self) -> None:
        self._left, self.is_probe = self._pause, True
        self._pause = min(2 * self._pause, self.MAX_PAUSE)

    def _record(self, tree: DraftTree, path: Sequence[int]) -> None:
        """Whether some child was right at each node that the output came to, against how likely that was said."""
        said = {ROOT: 0.0, **dict.fromkeys(path, 0.0)}
        for parent, score in zip(tree.parents, tree.scores, strict=True):
            if parent in said:
                said[parent] += score
        # All nodes of the path but the last have a child on it.
        for depth, (node, total) in enumerate(said.items()):
            if total > 0.0:
                above = 1.0 if node == ROOT else tree.scores[node]
                self._said = _TRIALS * self._said + min(1.0, total / above if above > 0.0 else 1.0)
                self._right = _TRIALS * self._right + (depth < len(path))


def fit(
    controllers: Sequence[DraftController | None], trees: Sequence[DraftTree], budget: Budget
) -> tuple[list[DraftTree], int]:
    """The trees of one call, cut to the nodes that are worth their cost, and how many each might have had.

    All rows wait for the widest tree: the width is the one that gives the most expected tokens of all rows per time,
    among those that lose no more than the drafting rows are allowed to if all drafts are wrong.
    """
    sizes = [len(tree.tokens) for tree in trees]
    widest = max(sizes)
    if not budget.costs or not widest:
        return list(trees), budget.max_nodes
    rows = len(trees)
    orders: list[list[int]] = []
    gains = [0.0] * (widest + 1)  # expected tokens of the n-th node of every row
    allowed = 0.0
    for controller, tree, size in zip(controllers, trees, sizes, strict=True):
        if controller is None or not size:
            orders.append([])
            continue
        worth = controller.believed(tree)
        most = PROBE_NODES if controller.is_probe and controller.trust < 1.0 else size
        # The likeliest first, equal ones as stored.
        order = sorted(range(size), key=worth.__getitem__, reverse=True)[:most]
        orders.append(order)
        gains[1 : 1 + len(order)] = map(add, gains[1:], map(worth.__getitem__, order))
        allowed += controller.allowance
    limit = budget.max_nodes
    while limit and rows * (budget.costs[limit] - 1.0) > allowed:
        limit -= 1
    expected, best, width = float(rows), rows / budget.costs[0], 0
    for n in range(1, min(widest, limit) + 1):
        expected += gains[n]
        if expected / budget.costs[n] > best and rows * (budget.costs[n] - 1.0) <= allowed:
            best, width = expected / budget.costs[n], n
    if not width:
        return [EMPTY] * rows, limit
    fitted = [
        tree if size <= width and size <= len(order) else tree.only(order[:width])
        for tree, size, order in zip(trees, sizes, orders, strict=True)
    ]
    return fitted, limit
