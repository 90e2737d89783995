"""The controller of one row: when to draft, how many nodes to draft, and how much time drafting may lose.

Time is counted in plain passes: forward passes of the target without draft nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from operator import add
from typing import TYPE_CHECKING, ClassVar

from copyspec.tree import COMPILED, EMPTY, ROOT, DraftTree

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


@dataclass(eq=False, slots=True)
class DraftController:
    """Decides for one row how much to draft, from what its drafts have gained so far.

    Three mechanisms keep drafting from costing more than it saves:
    - the record compares how often a drafted child was right with the probability that the drafter gave. Later
      probabilities are scaled down accordingly, so that trees shrink, or are left out where no size pays;
    - pauses follow while the average gain of a draft (tokens per pass over the pass's cost) is below 1, or while scaled
      probabilities justify no draft. Each failure doubles the pause; a trial draft ends it;
    - the allowance bounds the loss, whatever drafters claim and however passes are priced. It grows by SHARE per token
      and by what drafts gain.
    """

    MAX_PAUSE: ClassVar[int] = 32  # in passes
    _MEMORY: ClassVar[float] = 0.875

    allowance: float = 1.0
    """Plain passes that the next pass may lose; below 0: none."""
    earned: float = 0.0
    """Time that drafts saved less what they cost, in plain passes."""
    trust: float = 1.0
    """Factor, at most 1, by which the drafter's probabilities are multiplied."""
    is_probe: bool = False
    """Whether the next draft is the first one after a pause."""
    _gain: float = 1.25  # above 1, so that a new row drafts a few times
    _pause: int = 1
    _left: int = 0
    _right: float = _BEFORE
    _said: float = _BEFORE
    _look: float = 0.0  # average cost of asking the drafter, in plain passes

    def wants_draft(self) -> bool:
        """Whether to draft in this pass. Call once per pass: it advances the pause and the allowance."""
        self.allowance += SHARE
        if self._left:
            self._left -= 1
            return False
        return self.allowance > 0.0

    def observe(self, proposed: DraftTree, drafted: DraftTree, path: Sequence[int], cost: float, look: float) -> None:
        """Record that the drafter proposed `proposed` and the pass verified `drafted` and accepted `path`.

        `cost`: cost of the draft nodes, in plain passes; `look`: cost of asking the drafter, in the same unit.
        """
        look = min(look, _OUTLIER * self._look) if self._look else look
        self._look = _LOOK_MEMORY * self._look + (1 - _LOOK_MEMORY) * look if self._look else look
        saved = len(path) - cost - look
        self.earned += saved
        self.allowance = min(self.allowance + saved, STAKE)
        if not len(drafted.tokens):
            self._pass_over(proposed)
            return
        self.is_probe = False
        record = COMPILED.record if COMPILED is not None else _record
        said, right = self._said, self._right
        self._said, self._right = record(drafted.parents, drafted.scores, path, _TRIALS, said, right)
        self.trust = min(1.0, (self._right + _DOUBT) / (self._said + _DOUBT))
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
    drafts: list[_Draft | None] = []
    allowed = 0.0
    for controller, tree, size in zip(controllers, trees, sizes, strict=True):
        if controller is None or not size:
            drafts.append(None)
            continue
        most = min(PROBE_NODES, size) if controller.is_probe and controller.trust < 1.0 else size
        scale = 1.0 if controller.is_probe else controller.trust  # a trial after a pause is a fair one
        drafts.append((tree.parents, tree.scores, scale, most))
        allowed += max(0.0, controller.allowance)
    chosen = COMPILED.fit if COMPILED is not None else _fit
    limit, width, orders = chosen(drafts, budget.costs, widest, budget.max_nodes, allowed)
    if not width:
        return [EMPTY] * len(trees), limit
    fitted = [
        tree if size <= width and size <= len(order) else tree.only(order[:width])
        for tree, size, order in zip(trees, sizes, orders, strict=True)
    ]
    return fitted, limit


_Draft = tuple[Sequence[int], Sequence[float], float, int]
"""Parents and scores of a tree, the factor for its scores, and how many of its nodes may be used."""


def _fit(
    drafts: Sequence[_Draft | None], costs: Sequence[float], widest: int, limit: int, allowed: float
) -> tuple[int, int, list[list[int]]]:
    """The largest size allowed, up to `limit`; the width that pays; and each draft's nodes, the most likely first.

    `costs`: of passes with 0 to `limit` nodes; `widest`: nodes of the largest draft; `allowed`: plain passes that all
    rows together may lose.
    """
    rows = len(drafts)
    orders: list[list[int]] = []
    gains = [0.0] * (widest + 1)  # summed over the rows: expected tokens of each row's n-th node
    for draft in drafts:
        if draft is None:
            orders.append([])
            continue
        parents, scores, scale, most = draft
        worth = believed(parents, scores, scale)
        # Most likely nodes first, ties in stored order.
        order = sorted(range(len(worth)), key=worth.__getitem__, reverse=True)[:most]
        orders.append(order)
        gains[1 : 1 + len(order)] = map(add, gains[1:], map(worth.__getitem__, order))
    while limit and rows * (costs[limit] - 1.0) > allowed:
        limit -= 1
    expected, best, width = float(rows), rows / costs[0], 0
    for n in range(1, min(widest, limit) + 1):
        expected += gains[n]
        if expected / costs[n] > best and rows * (costs[n] - 1.0) <= allowed:
            best, width = expected / costs[n], n
    return limit, width, orders


def believed(parents: Sequence[int], scores: Sequence[float], scale: float) -> list[float]:
    """The path probability of each node, multiplied by `scale` at every step of the path. [m]"""
    worth: list[float] = []
    for parent, score in zip(parents, scores, strict=True):
        above, said = (1.0, 1.0) if parent == ROOT else (worth[parent], scores[parent])
        likely = said > 0.0 and score > 0.0  # drafters of users may report anything, NaN too
        worth.append(above * scale * (score / said if score < said else 1.0) if likely else 0.0)
    return worth


def _record(
    parents: Sequence[int], scores: Sequence[float], path: Sequence[int], decay: float, said: float, right: float
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
            said = decay * said + min(1.0, total / above if above > 0.0 else 1.0)
            right = decay * right + (depth < len(path))
    return said, right
