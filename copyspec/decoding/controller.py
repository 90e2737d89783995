"""The controller of one row: when to draft, how many nodes to draft, and how much time drafting may lose.

Time is counted in plain passes: forward passes of the target without draft nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from operator import add
from typing import TYPE_CHECKING

from copyspec.tree import EMPTY, ROOT, DraftTree

if TYPE_CHECKING:
    from copyspec.budget import Budget

SHARE = 0.015
"""Plain passes that drafting may lose per output token, beyond the row's starting allowance."""

STAKE = 6.0
"""Maximum allowance, in plain passes: earlier gains beyond it cannot be lost again."""

LOOKS = 0.01
"""Maximum share of a row's time that goes into asking a drafter that proposes nothing."""

PROBE_NODES = 2  # size of a trial draft from a drafter whose probabilities proved too high

_LOOK_MEMORY = 0.8  # weight of earlier calls of the drafter in its average time
_OUTLIER = 2.0  # a drafter call longer than this many times the average is clipped as a disturbance

_TRIALS = 0.9  # decay, per trial, of earlier trials in a drafter's record
_BEFORE = 4.0  # trials in which a new row's drafter counts as calibrated
_DOUBT = 1.0  # pseudo-count that keeps `trust` above 0 when no trial succeeded


class DraftController:
    """Decides for one row how much to draft, from what its drafts have gained so far.

    Three mechanisms keep drafting from costing more than it saves:
    - the record compares how often a drafted child was right with the probability that the drafter gave. Later
      probabilities are scaled down accordingly, so that trees shrink, or are left out where no size pays;
    - pauses follow while the average gain of a draft (tokens per pass over the pass's cost) is below 1, or while scaled
      probabilities justify no draft. Each failure doubles the pause; a trial draft ends it;
    - the allowance bounds the loss, whatever drafters claim and however passes are priced. It starts with `start`
      plain passes and grows by SHARE per token and by what drafts gain.
    """

    MAX_PAUSE = 32  # in passes
    _MEMORY = 0.875

    def __init__(self, start: float = 1.0) -> None:
        self.earned = 0.0
        """Time that drafts saved less what they cost, in plain passes."""
        self._allowed = start
        self._gain = 1.25  # above 1, so that a new row drafts a few times
        self._pause = 1
        self._left = 0
        self._right = self._said = _BEFORE
        self._look = 0.0  # average cost of asking the drafter, in plain passes
        self.is_probe = False
        """Whether the next draft is the first one after a pause."""

    @property
    def trust(self) -> float:
        """Factor, at most 1, by which the drafter's probabilities are multiplied."""
        return min(1.0, (self._right + _DOUBT) / (self._said + _DOUBT))

    @property
    def allowance(self) -> float:
        """Plain passes that the next pass may lose."""
        return max(0.0, self._allowed)

    def wants_draft(self) -> bool:
        """Whether to draft in this pass. Call once per pass: it advances the pause and the allowance."""
        self._allowed += SHARE
        if self._left:
            self._left -= 1
            return False
        return self._allowed > 0.0

    def believed(self, tree: DraftTree) -> list[float]:
        """The path probability of each node, scaled by `trust` at every step of the path. [m]"""
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
        """Record that the drafter proposed `proposed` and the pass verified `drafted` and accepted `path`.

        `cost`: cost of the draft nodes, in plain passes; `look`: cost of asking the drafter, in the same unit.
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
        """Record at each node that the output reached whether a child was right, and the probability given for that."""
        said = {ROOT: 0.0, **dict.fromkeys(path, 0.0)}
        for parent, score in zip(tree.parents, tree.scores, strict=True):
            if parent in said:
                said[parent] += score
        # Each node of the path but the last has its accepted child on the path.
        for depth, (node, total) in enumerate(said.items()):
            if total > 0.0:
                above = 1.0 if node == ROOT else tree.scores[node]
                self._said = _TRIALS * self._said + min(1.0, total / above if above > 0.0 else 1.0)
                self._right = _TRIALS * self._right + (depth < len(path))


def fit(
    controllers: Sequence[DraftController | None], trees: Sequence[DraftTree], budget: Budget
) -> tuple[list[DraftTree], int]:
    """Cut the trees of one pass to the nodes that are worth their cost; also return the largest size allowed.

    All rows wait for the widest tree. The width maximises the expected tokens of all rows per unit of time, among
    the widths whose cost stays within the drafting rows' allowance even if all drafts are wrong.
    """
    sizes = [len(tree.tokens) for tree in trees]
    widest = max(sizes)
    if not budget.costs or not widest:
        return list(trees), budget.max_nodes
    rows = len(trees)
    orders: list[list[int]] = []
    gains = [0.0] * (widest + 1)  # summed over the rows: expected tokens of each row's n-th node
    allowed = 0.0
    for controller, tree, size in zip(controllers, trees, sizes, strict=True):
        if controller is None or not size:
            orders.append([])
            continue
        worth = controller.believed(tree)
        most = PROBE_NODES if controller.is_probe and controller.trust < 1.0 else size
        # Most likely nodes first, ties in stored order.
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
