"""The node budget: how large a tree is worth its verification."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from time import perf_counter

PRIOR_SLOPE = 0.02
"""Cost of a draft node in units of an empty call where nothing near it was measured: small models on a CPU show
0.01-0.03, a GPU less. Rather too low than too high: what is tried is measured, what is not never is."""

KNOTS = (0, 1, 2, 3, 4, 5, 6, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 64, 96, 128, 192, 256, 512, 1024)
"""Numbers of nodes whose time is kept; between them costs lie on straight lines. Close together where matrix products
of few rows change their kernel: on a CPU twelve rows can take longer than sixteen."""

NEIGHBOURS = 1.0
"""Measurements that the line between its neighbours counts as, for a knot: one disturbed call must not put a price on
a number of nodes that keeps it from being tried again."""

LEAST_RATE = 0.1
"""Of a new measurement in the time of a knot: the cost drifts with the length of the context."""

DRIFT = 0.1
"""Share of what one knot turns out to be slower or faster that all follow: the machine is busy, or was."""

ESTABLISHED = 3  # measurements after which a knot says something of the others

OUTLIER = 2.0
"""A call that takes this many times what was expected, or as little, was disturbed and counts as that, no more."""

PREFILL_TOKENS = 32
"""Of a first call, at least, for its time per token to say what draft nodes add to such a call."""

MEMORY = 0.8  # weight of earlier rows in what a row earns by drafting, and of earlier first calls
LEAST_START, MOST_START = 0.75, 4.0
"""Calls' worth of time that a new row may lose: half of what earlier rows earned, between these."""


@dataclass(frozen=True, slots=True)
class Budget:
    """How many nodes a step may carry, and what they cost.

    `costs[n]` is the time of a target call with n draft nodes in units of a call without any
    (`costs[0] == 1`), n = 0..max_nodes. Without costs every tree is as cheap as none.
    """

    max_nodes: int
    costs: Sequence[float] = ()
    seconds: float = 0.0  # one row's share of an empty call; 0: not measured
    chain: bool = False
    """Whether one chain is asked for, of up to `max_nodes` tokens: of targets and engines that verify no trees."""

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

    A call's time by its number of nodes is no line: one token is a matrix-vector product and several are a matrix
    product, and kernels change with the number of rows. Each number of nodes that is used is measured by itself, and
    what lies between two measured ones is taken to lie on the line through them. First calls, which read the prompt,
    tell what a token adds to such a call. One instance per target; times on other machines are other times.
    """

    def __init__(self, clock: Callable[[], float] = perf_counter) -> None:
        """`clock`: seconds, read around passes and drafts; tests and simulations bring their own."""
        self.clock = clock
        self._curves = _Curves()
        self._per_token = 0.0  # seconds of one token of one row in a first call
        self._first = [0.0] * 3  # of first calls, earlier ones at less: how many, their tokens, their seconds
        self._earned = 0.0  # calls' worth of time that a row saves by drafting
        self._ratio: float | None = None

    def observe(self, rows: int, nodes: int, seconds: float) -> None:
        """A call of `rows` rows whose largest tree had `nodes` nodes took `seconds`."""
        self._ratio = self._curves[rows].observe(nodes, seconds)

    def take_ratio(self) -> float | None:
        """What the last call took, in terms of what was expected of it; None where nothing was, and once it is told."""
        ratio, self._ratio = self._ratio, None
        return ratio

    def observe_first(self, rows: int, tokens: int, seconds: float) -> None:
        """A first call of `rows` rows read `tokens` tokens of each, draft nodes included."""
        self._first = [
            MEMORY * total + new for total, new in zip(self._first, (1, rows * tokens, seconds), strict=True)
        ]
        if tokens >= PREFILL_TOKENS:
            measured = seconds / (rows * tokens)
            # The fastest such call counts most: longer prompts take more time per token, and nodes come last.
            self._per_token = measured if not self._per_token else 0.5 * (min(self._per_token, measured) + measured)

    def budget(self, rows: int, max_nodes: int, *, adaptive: bool = True, is_first: bool = False) -> Budget:
        """The budget of a row in a call of `rows` rows; `adaptive=False`: max_nodes, whatever they cost.

        `is_first`: the call reads the prompts, where nodes are a few tokens more.
        """
        if not adaptive:
            return Budget(max_nodes)
        costs = self.costs(rows, max_nodes, is_first=is_first)
        return Budget(max_nodes, costs, self._curves[rows].empty / rows)

    def seconds(self, rows: int) -> float:
        """Of a call without nodes; 0 before anything was measured."""
        return self._curves[rows].empty

    def costs(self, rows: int, max_nodes: int, *, is_first: bool = False) -> list[float]:
        """Of calls with 0..max_nodes nodes, in units of a call without any.

        In a first call a node is one token more of many. It costs no more than the tokens of such calls take on
        average, which includes what a call costs anyway, nor than a node of later calls.
        """
        curve = self._curves[rows]
        costs, seconds = curve.costs(max_nodes), curve.empty
        if not (is_first and self._per_token and seconds and max_nodes):
            return costs
        slope = min(self._per_token * rows / seconds, (costs[-1] - 1.0) / max_nodes)
        return [1.0 + slope * n for n in range(max_nodes + 1)]

    def split_first(self, lengths: Sequence[int]) -> list[int]:
        """How many rows each first call should read, of prompts of `lengths` tokens in rising order.

        All rows of a call are filled up to its longest, and each call has a cost of its own: that of one without nodes
        for the most rows measured. One call, where nothing was measured.
        """
        count = len(lengths)
        call = max((curve.empty for curve in self._curves.values()), default=0.0)
        calls, tokens, time = self._first
        per_token = (time - calls * call) / tokens if tokens else 0.0
        if not call or per_token <= 0.0:
            return [count]
        seconds, sizes = [0.0], [0]  # of the first n rows at best, and how many of them the last call reads
        for end, longest in enumerate(lengths, 1):
            of_row = longest * per_token
            best = min(range(end), key=lambda start: seconds[start] + (end - start) * of_row)
            seconds.append(seconds[best] + (end - best) * of_row + call)
            sizes.append(end - best)
        found = []
        while count:
            found.append(sizes[count])
            count -= sizes[count]
        return found[::-1]

    def measured(self, rows: int) -> Mapping[int, float]:
        """Seconds of a call of `rows` rows by its number of nodes, of those numbers that were measured."""
        return self._curves[rows].measured()

    def start(self) -> float:
        """Calls' worth of time that a new row may lose by drafting before it has gained any."""
        return min(max(0.5 * self._earned, LEAST_START), MOST_START)

    def finish(self, earned: float) -> None:
        """A row has ended, to which drafting brought `earned` calls' worth of time, or took them."""
        self._earned = MEMORY * self._earned + (1.0 - MEMORY) * earned


class _Curve:
    """Seconds of a call by its number of nodes."""

    def __init__(self, prior: float) -> None:
        self.empty = 0.0
        """Seconds of a call without nodes; 0 before anything was measured."""
        self._prior = prior  # cost of a node in units of an empty call, where nothing was measured
        self._pace = 1.0  # what all times have in common: the machine is busy, or is not
        self._times: dict[int, float] = {}  # by knot, in rising order, in units of the pace
        self._weights: dict[int, float] = {}
        self._costs: list[float] = []  # of 0, 1, ... nodes, as far as they were asked for since a time changed

    def observe(self, n: int, seconds: float) -> float | None:
        """Learns from a call; the ratio of its time to what was expected, None where nothing was."""
        index = bisect_left(KNOTS, n)
        high = KNOTS[min(index, len(KNOTS) - 1)]
        low = KNOTS[max(index - 1, 0)] if high > n else high
        share = (n - low) / (high - low) if high > low else 1.0
        if not self._times:
            self._times = {high: seconds * (1.0 + self._prior * high) / (1.0 + self._prior * n)}
            self._weights, self._costs, self.empty = {high: 1.0}, [], self._at(0)
            return None
        at_high = self._at(high)
        at_low = at_high if low == high else self._at(low)
        found = seconds / (self._pace * (at_low + share * (at_high - at_low)))
        ratio = min(max(found, 1.0 / OUTLIER), OUTLIER)
        if self._weights.get(high if share >= 0.5 else low, 0.0) >= ESTABLISHED:
            drift = ratio**DRIFT
            self._pace *= drift
            ratio /= drift
        known = len(self._times)
        for knot, part, time in ((low, 1.0 - share, at_low), (high, share, at_high)):
            if part > 0.0:
                self._weights[knot] = weight = self._weights.get(knot, 0.0) + part
                rate = max(1.0 / (weight + NEIGHBOURS), LEAST_RATE)
                self._times[knot] = self._times.get(knot, time) * ratio ** (part * rate)
        if len(self._times) > known:
            self._times = dict(sorted(self._times.items()))
        self._costs, self.empty = [], self._pace * self._at(0)
        return found

    def costs(self, max_nodes: int) -> list[float]:
        """Costs of 0..max_nodes nodes in units of an empty call, which is the cheapest."""
        if len(self._costs) > max_nodes:
            return self._costs[: max_nodes + 1]
        costs: list[float] = [1.0]
        unit = self._at(0) if self._times else 1.0
        known = [(0, unit), *((knot, time) for knot, time in self._times.items() if knot)]
        for (start, time), (end, following) in pairwise(known):
            base, slope = time / unit, (following - time) / (end - start) / unit
            between = [base + slope * n for n in range(1, end - start + 1)]
            costs += between if time >= unit and following >= unit else [max(1.0, cost) for cost in between]
        costs += [costs[-1] + self._prior * n for n in range(1, max_nodes + 2 - len(costs))]
        self._costs = costs
        return costs[: max_nodes + 1]

    def measured(self) -> Mapping[int, float]:
        """Seconds by number of nodes."""
        return {knot: self._pace * time for knot, time in self._times.items()}

    def _at(self, n: int) -> float:
        """In units of the pace, once anything was measured."""
        times = self._times
        if n in times:
            return times[n]
        first = next(iter(times))
        start, before = 0, times[first] / (1.0 + self._prior * first)
        empty = before
        for knot, time in times.items():
            if knot > n:
                return before + (time - before) * (n - start) / (knot - start)
            start, before = knot, time
        return max(empty, before) + self._prior * empty * (n - start)


class _Curves(dict[int, _Curve]):
    """By the number of rows of a call."""

    def __missing__(self, rows: int) -> _Curve:
        self[rows] = curve = _Curve(PRIOR_SLOPE * rows)
        return curve
