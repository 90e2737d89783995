"""The node budget: how large a tree is worth its verification."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

PRIOR_SLOPE = 0.02
"""Cost of a draft node in units of an empty call before anything is measured: small models on a CPU show
0.01-0.03, a GPU less; too high a guess only makes the first trees small."""

PRIOR_WEIGHT = 4.0
"""How many measured calls the prior is worth."""

DECAY = 0.98
"""Of the weight of past measurements per call: the cost drifts with the length of the context."""

EMPTY_MEMORY = 0.9
"""Weight of what was measured before in the time of an empty call: it is the unit of all costs, and follows soon."""

OUTLIER = 2.0
"""A call that takes this many times what was expected was disturbed and counts as much as that, no more."""


@dataclass(frozen=True, slots=True)
class Budget:
    """How many nodes a step may carry, and what they cost.

    `costs[n]` is the time of a target call with n draft nodes in units of a call without any
    (`costs[0] == 1`), n = 0..max_nodes. Without costs every tree is as cheap as none.
    """

    max_nodes: int
    costs: Sequence[float] = ()
    seconds: float = 0.0  # one row's share of an empty call; 0: not measured

    def cut(self, scores: Sequence[float]) -> int:
        """Nodes to keep of a tree whose path probabilities are `scores`, in the order in which it was grown.

        Maximises expected tokens per time, (1 + scores[0] + ... + scores[n-1]) / costs[n], over n.
        """
        limit = min(len(scores), self.max_nodes)
        if not self.costs:
            return limit
        expected, best, best_n = 1.0, 1.0 / self.costs[0], 0
        for n in range(1, limit + 1):
            expected += scores[n - 1]
            rate = expected / self.costs[n]
            if rate > best:
                best, best_n = rate, n
        return best_n


class CostModel:
    """Learns what a target call costs from the calls that are made anyway, per number of rows.

    An empty call is measured by itself: one token is a matrix-vector product and several are a matrix product,
    and on a CPU the step from the one to the other can cost more than thirty nodes do. Calls with nodes lie on
    a decayed least-squares line, pulled towards PRIOR_SLOPE until calls of different sizes have been seen.
    One instance per target; the first call of a session (prefill) is not counted.
    """

    def __init__(self) -> None:
        self._curves: dict[int, _Curve] = {}

    def observe(self, rows: int, nodes: int, seconds: float) -> None:
        """A call of `rows` rows whose largest tree had `nodes` nodes took `seconds`."""
        self._curve(rows).observe(nodes, seconds)

    def budget(self, rows: int, max_nodes: int, *, adaptive: bool = True) -> Budget:
        """The budget of a row in a call of `rows` rows; `adaptive=False`: max_nodes, whatever they cost."""
        if not adaptive:
            return Budget(max_nodes)
        curve = self._curve(rows)
        return Budget(max_nodes, curve.costs(max_nodes), curve.empty / rows)

    def relative(self, rows: int, nodes: int, extra: float) -> float:
        """Cost of a call with `nodes` nodes and `extra` seconds of drafting, in units of an empty call."""
        curve = self._curve(rows)
        return curve.costs(nodes)[nodes] + (extra / curve.empty if curve.empty else 0.0)

    def _curve(self, rows: int) -> _Curve:
        if rows not in self._curves:
            self._curves[rows] = _Curve(PRIOR_SLOPE * rows)
        return self._curves[rows]


class _Curve:
    """Seconds of a call by its number of nodes: a value for none, a line for one and more."""

    def __init__(self, prior: float) -> None:
        self._prior = prior  # slope of the line in units of its base
        self._empty = 0.0
        self._weight = self._n = self._nn = self._t = self._nt = 0.0

    def observe(self, n: int, seconds: float) -> None:
        expected = self._seconds(n)
        if expected:
            seconds = min(seconds, OUTLIER * expected)
        if n == 0:
            self._empty = EMPTY_MEMORY * self._empty + (1 - EMPTY_MEMORY) * seconds if self._empty else seconds
            return
        self._weight = self._weight * DECAY + 1.0
        self._n = self._n * DECAY + n
        self._nn = self._nn * DECAY + n * n
        self._t = self._t * DECAY + seconds
        self._nt = self._nt * DECAY + n * seconds

    @property
    def empty(self) -> float:
        """Seconds of a call without nodes; 0 before anything was measured."""
        return self._empty or (self._fit()[0] if self._weight else 0.0)

    def costs(self, max_nodes: int) -> list[float]:
        """Costs of 0..max_nodes nodes in units of an empty call."""
        if not self._weight:
            return [1.0 + self._prior * n for n in range(max_nodes + 1)]
        base, per_node = self._fit()
        unit = self._empty or base
        first, slope = max(base / unit, 1.0), per_node / unit
        return [1.0, *(first + slope * n for n in range(1, max_nodes + 1))]

    def _seconds(self, n: int) -> float:
        """What a call is expected to take; 0 where nothing like it was measured."""
        if n == 0:
            return self._empty
        if not self._weight:
            return 0.0
        base, per_node = self._fit()
        return base + per_node * n

    def _fit(self) -> tuple[float, float]:
        """(base, seconds per node). The prior acts as calls at 0 and 32 nodes on the line through the mean."""
        mean_n, mean_t = self._n / self._weight, self._t / self._weight
        base = mean_t / (1.0 + self._prior * mean_n)
        half = PRIOR_WEIGHT / 2
        weight = self._weight + PRIOR_WEIGHT
        n, nn = self._n + half * 32, self._nn + half * 32 * 32
        far = base * (1.0 + self._prior * 32)
        t, nt = self._t + half * (base + far), self._nt + half * 32 * far
        per_node = max(0.0, (weight * nt - n * t) / (weight * nn - n * n))
        return max((t - per_node * n) / weight, 1e-9), per_node


class Pacer:
    """Pauses one row's drafting while it costs more than it brings, and probes now and then.

    `gain` is tokens per call over the cost of the call, averaged over about the last eight proposals; below 1
    plain decoding is faster. Each failed probe doubles the pause.
    """

    MAX_PAUSE = 32  # calls, where drafts were rejected: a rejected draft costs a larger call
    MAX_IDLE = 4  # calls, where nothing was proposed: looking is cheap, and copying should start soon
    _MEMORY = 0.875

    def __init__(self) -> None:
        self._gain = 1.5  # worth a few tries
        self._pause = 1
        self._left = 0

    def wants_draft(self) -> bool:
        """Asked once per call: False skips the draft."""
        if self._left:
            self._left -= 1
            return False
        return True

    def observe(self, drafted: int, accepted: int, cost: float) -> None:
        """The last proposal had `drafted` nodes, of which `accepted` were right; its call cost `cost` times as
        much as an empty one, the drafter's own time included."""
        self._gain = self._MEMORY * self._gain + (1 - self._MEMORY) * (1 + accepted) / cost
        if self._gain >= 1.0:
            self._pause = 1
            return
        self._left = self._pause if drafted else min(self._pause, self.MAX_IDLE)
        self._pause = min(2 * self._pause, self.MAX_PAUSE)
