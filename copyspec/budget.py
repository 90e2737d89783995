"""The node budget: how many draft nodes one forward pass of the target should verify.

`CostModel` measures passes while they run. A "plain" pass carries no draft nodes and is the unit of cost; a "first"
pass reads the prompts (prefill). Nodes are counted per row, in the largest tree of the batch.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from time import perf_counter

PRIOR_SLOPE = 0.02
"""Assumed cost of a draft node in plain passes, for each row, where nothing near it was measured: small models on a CPU
show 0.01-0.03. First passes bound it from both sides (`_Curves.slope`). It errs on the low side: what is tried gets
measured, what looks too expensive never is."""

GPU_SLOPE = 0.0025
"""The same on a GPU. On an H200, for a model of 7 B parameters: 0.004 for one row, 0.002 to 0.003 for each of 32."""

FEW_TOKENS = 1.5
"""Time per token of a short pass over time per token of a prefill pass, until both are measured."""

MIN_SLOPE = 0.25
"""Beyond the largest node count measured, nodes cost what they did so far on average, but at least this share of what
is assumed: one pass may have been lucky."""

KNOTS = (0, 1, 2, 3, 4, 5, 6, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 64, 96, 128, 192, 256, 512, 1024)
"""Node counts ("knots") whose time is stored; costs in between are interpolated linearly. They are dense where matrix
products switch kernels with the number of rows: on a CPU twelve rows can take longer than sixteen."""

NEIGHBOURS = 1.0
"""Weight, in measurements, of the interpolated value of a knot: one disturbed pass must not make a node count look so
expensive that it is never tried again."""

MIN_RATE = 0.1
"""Minimum weight of a new measurement in a knot's time: the cost drifts as the context grows."""

DRIFT = 0.1
"""Share of a knot's deviation that is applied to all knots: the machine as a whole has become busier or freer."""

ESTABLISHED = 3  # measurements after which a knot's deviation is applied to the others

OUTLIER = 2.0
"""Measured and expected time may differ by at most this factor; anything beyond is clipped as a disturbance."""

PREFILL_TOKENS = 32
"""Minimum length of a first pass, in tokens per row, for its time per token to be used as the cost of a draft node."""

MAX_UNLEARNED = 64
"""Passes that are learned from together while nothing reads the costs. That takes a fifth of the time that learning
after every pass takes, when the model's weights have evicted the curve from the processor's caches."""

MEMORY = 0.8  # weight of earlier rows in the average saving, and of earlier first passes
FIRST_DRAFT_MEMORY = 0.9  # weight of earlier rows in how far first drafts are trusted
MIN_START, MAX_START = 0.75, 4.0
"""Bounds of a new row's starting allowance, in plain passes; within them it is half of what earlier rows saved."""


def prior_slope(device: str, *, exact: bool = False) -> float:
    """The slope to assume on a device of this type. In exact mode all passes are of one size."""
    return 0.0 if exact else GPU_SLOPE if device == "cuda" else PRIOR_SLOPE


@dataclass(frozen=True, slots=True)
class Budget:
    """The largest tree that one row may draft, and the cost of each size.

    `costs[n]` is the time of a target pass with n draft nodes, in plain passes (`costs[0] == 1`),
    n = 0..max_nodes. Without `costs`, nodes are free.
    """

    max_nodes: int
    costs: Sequence[float] = ()
    seconds: float = 0.0  # one row's share of a plain pass; 0: not measured
    chain: bool = False
    """Whether the draft must be one chain of up to `max_nodes` tokens, for targets and engines without tree support."""

    def cut(self, scores: Sequence[float]) -> int:
        """Return how many nodes to keep of a tree with path probabilities `scores`, in the order it was grown.

        Maximises the expected tokens per unit of time, (1 + scores[0] + ... + scores[n-1]) / costs[n], over n.
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
    """Learns the cost of a target pass, per number of rows, from the passes that are made anyway.

    The time is not linear in the number of nodes: one token is a matrix-vector product, several are a matrix product,
    and kernels change with the number of rows. Each node count is therefore measured separately, and costs between
    two measured counts are interpolated. First passes give the cost of one more token in a prefill. Use one instance
    per target and machine.

    Static passes are padded to a few sizes. Then passes are measured by the size that they compute, so that few are
    needed to know all costs.
    """

    def __init__(
        self,
        clock: Callable[[], float] = perf_counter,
        slope: float = PRIOR_SLOPE,
        padded: Callable[[int, int], tuple[int, int]] | None = None,
    ) -> None:
        """`clock` returns seconds; it is read around passes and drafts. Tests and simulations pass their own.
        `slope`: assumed cost of a draft node in plain passes, for each row, where nothing was measured. `padded`: the
        rows and nodes that a pass of so many computes; None: no others than it holds."""
        self.clock = clock
        self._is_padded = padded is not None
        self._curves = _Curves(slope, padded)
        self._first = [0.0] * 3  # decayed sums over first passes: count, tokens, seconds
        self._earned = 0.0  # average saving of a row by drafting, in plain passes
        self.start = MIN_START
        """A new row's starting allowance: the plain passes that it may lose by drafting before it has gained any."""
        self.trust = 1.0
        """How often the first token of a draft in a row's first pass was right, over the probability that the drafter
        gave, at most 1: some models begin with words of their own before they copy."""
        self._first_drafts = [0.0, 0.0]  # decayed sums over these tokens: expected, right
        self.has_drafted = False
        """Whether a draft was made. The very first loads code and data, which on a GPU takes as long as several plain
        passes: it is not charged, or the first call would hardly draft."""
        self._ratio: float | None = None
        self._unlearned: list[tuple[int, int, float]] = []  # rows, nodes, seconds of passes not learned from yet

    def observe(self, rows: int, nodes: int, seconds: float, computed: tuple[int, int] | None = None) -> None:
        """Record that a pass of `rows` rows, with `nodes` nodes in its largest tree, took `seconds`. `computed`: rows
        and nodes with padding, if the session knows; otherwise `padded` is assumed."""
        if computed is not None and self._is_padded:
            rows, nodes = computed
        self._unlearned.append((rows, nodes, seconds))
        if not self._curves[rows].empty or len(self._unlearned) == MAX_UNLEARNED:
            self.learn()  # a first measurement replaces a guess

    def learn(self) -> None:
        """Learn from the passes that `observe` recorded. While rows draft, decoding calls this during each pass,
        so that no device waits for it: the costs of a pass lag behind by one measurement."""
        unlearned, self._unlearned = self._unlearned, []
        for rows, nodes, seconds in unlearned:
            curve = self._curves[rows]
            is_first = not curve.empty
            self._ratio = curve.observe(nodes, seconds)
            if is_first:
                curve.assume(self._curves.slope(curve.rows))

    def take_ratio(self) -> float | None:
        """Return the last pass's time over its expected time, once; None where nothing was expected or it was read."""
        self.learn()
        ratio, self._ratio = self._ratio, None
        return ratio

    def observe_first(self, rows: int, tokens: int, seconds: float) -> None:
        """Record a first pass of `rows` rows that read `tokens` tokens of each, draft nodes included."""
        self.learn()
        self._first = [
            MEMORY * total + new for total, new in zip(self._first, (1, rows * tokens, seconds), strict=True)
        ]
        if tokens >= PREFILL_TOKENS:
            measured, before = seconds / (rows * tokens), self._curves.per_token
            # The fastest pass counts most: longer prompts take more time per token, and nodes are appended last.
            self._curves.per_token = 0.5 * (min(before, measured) + measured) if before else measured
            # The fixed cost is that of a plain pass; the first of all passes takes longer, while a device warms up.
            call = max((curve.empty for curve in self._curves.values()), default=0.0)
            if before and call:
                beyond = max(0.0, seconds - call) / (rows * tokens)
                least = self._curves.least_per_token
                self._curves.least_per_token = beyond if least is None else 0.5 * (min(least, beyond) + beyond)
            for curve in self._curves.values():
                curve.assume(self._curves.slope(curve.rows))

    def budget(self, rows: int, max_nodes: int, *, adaptive: bool = True, is_first: bool = False) -> Budget:
        """Return the budget of each row in a pass of `rows` rows; `adaptive=False` allows max_nodes at any cost.

        `is_first`: the pass reads the prompts, and a node is one more prompt token. Its cost is bounded by the mean
        time per token of such passes (an overestimate, as it includes their fixed cost) and by the cost of a node in a
        later pass.
        """
        if not adaptive:
            return Budget(max_nodes)
        if len(self._unlearned) > 1:  # of passes without drafts
            self.learn()
        curve = self._curves[rows]
        if self._is_padded and not curve.empty:
            curve = self._curves.larger(curve)
        costs, seconds = curve.costs(max_nodes), curve.empty
        if is_first and self._curves.per_token and seconds and max_nodes:
            slope = min(self._curves.per_token * rows / seconds, (costs[-1] - 1.0) / max_nodes)
            costs = [1.0 + slope * n for n in range(max_nodes + 1)]
        return Budget(max_nodes, costs, seconds / rows)

    def seconds(self, rows: int) -> float:
        """Seconds of a plain pass, as learned so far; 0 before anything was."""
        return self._curves.larger(self._curves[rows]).empty

    def split_first(self, lengths: Sequence[int]) -> list[int]:
        """Split prompts of `lengths` tokens, in rising order, into first passes; return the number of rows of each.

        All rows of a pass are padded to its longest, and each pass has a fixed cost: the slowest plain pass measured,
        over all numbers of rows. Returns one pass where nothing was measured.
        """
        self.learn()
        count = len(lengths)
        call = max((curve.empty for curve in self._curves.values()), default=0.0)
        calls, tokens, time = self._first
        per_token = (time - calls * call) / tokens if tokens else 0.0
        if not call or per_token <= 0.0:
            return [count]
        seconds, sizes = [0.0], [0]  # cheapest time for the first n rows, and how many of them the last pass reads
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
        """Seconds of a pass of `rows` rows, as learned so far, for each node count that was measured."""
        return self._curves.larger(self._curves[rows]).measured()

    def finish(self, saved_passes: float, first_draft: tuple[float, bool] | None = None) -> None:
        """Record that a row has ended for which drafting saved `saved_passes` plain passes (negative: cost them).

        `first_draft`: the probability of the first token drafted in its first pass, and whether it was right. The
        probability is 0 if no draft was worth its cost: then first drafts are trusted more each time, and tried again.
        """
        self._earned = MEMORY * self._earned + (1.0 - MEMORY) * saved_passes
        self.start = min(max(0.5 * self._earned, MIN_START), MAX_START)
        if first_draft is not None:
            totals = zip(self._first_drafts, first_draft, strict=True)
            self._first_drafts = [FIRST_DRAFT_MEMORY * total + new for total, new in totals]
            expected, right = self._first_drafts
            self.trust = min(1.0, (right + 1.0) / (expected + 1.0))  # as if one more had been expected and right


class _Curve:
    """Seconds of a pass as a function of its number of nodes, for one number of rows."""

    def __init__(self, rows: int, prior: float, padded: Callable[[int, int], tuple[int, int]] | None) -> None:
        self.rows = rows  # with padding
        self.empty = 0.0
        """Seconds of a plain pass; 0 before anything was measured."""
        self._prior = prior  # cost of a node in plain passes, where nothing was measured
        self._padded = padded
        self._computed: list[int] = []  # nodes that a pass over 0, 1, ... computes, where passes are padded
        self._pace = 1.0  # factor common to all times: how busy the machine is
        self._times: dict[int, float] = {}  # by knot, in rising order, in seconds over `_pace`
        self._weights: dict[int, float] = {}
        self._costs: list[float] = []  # costs of 0, 1, ... nodes; computed anew when a time changes
        self._most = 0  # maximum number of nodes that was asked for

    def assume(self, prior: float) -> None:
        """Set the cost of a node where nothing was measured."""
        self._prior, self._costs = prior, []
        if self._times and 0 not in self._times:
            self.empty = self._pace * self._at(0)

    def observe(self, n: int, seconds: float) -> float | None:
        """Learn from a pass; return its time over its expected time, None where nothing was expected."""
        if self._padded is not None:
            n = self._padded(self.rows, n)[1]
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
                rate = max(1.0 / (weight + NEIGHBOURS), MIN_RATE)
                self._times[knot] = self._times.get(knot, time) * ratio ** (part * rate)
        if len(self._times) > known:
            self._times = dict(sorted(self._times.items()))
        self._costs, self.empty = [], self._pace * self._at(0)
        if self._most:
            self.costs(self._most)
        return found

    def costs(self, max_nodes: int) -> list[float]:
        """Costs of 0..max_nodes nodes in plain passes, at least 1."""
        if len(self._costs) > max_nodes:
            return self._costs[: max_nodes + 1]
        if max_nodes > self._most:
            self._most = max_nodes
            if self._padded is not None:
                self._computed = [self._padded(self.rows, n)[1] for n in range(max_nodes + 1)]
        most = self._computed[-1] if self._computed else self._most
        costs: list[float] = [1.0]
        unit = self._at(0) if self._times else 1.0
        known = [(0, unit), *((knot, time) for knot, time in self._times.items() if knot)]
        for (start, time), (end, following) in pairwise(known):
            if start > most:
                break
            base, slope = time / unit, (following - time) / (end - start) / unit
            between = [base + slope * n for n in range(1, end - start + 1)]
            costs += between if time >= unit and following >= unit else [max(1.0, cost) for cost in between]
        last = len(costs) - 1
        slope = min(self._prior, max((costs[-1] - 1.0) / last, MIN_SLOPE * self._prior)) if last else self._prior
        costs += [costs[-1] + slope * n for n in range(1, most + 2 - len(costs))]
        self._costs = [costs[n] for n in self._computed] or costs
        return self._costs[: max_nodes + 1]

    def measured(self) -> Mapping[int, float]:
        """Seconds by number of nodes, at the knots measured so far."""
        return {knot: self._pace * time for knot, time in self._times.items()}

    def _at(self, n: int) -> float:
        """The time of `n` nodes in seconds over `_pace`; needs at least one measurement."""
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
    """One `_Curve` per number of rows, created on first use. Numbers that are padded to the same one share theirs."""

    def __init__(self, prior: float, padded: Callable[[int, int], tuple[int, int]] | None) -> None:
        super().__init__()
        self._prior, self._padded = prior, padded

    per_token = 0.0
    """Seconds per token and row in a first pass; 0 before one was measured."""

    least_per_token: float | None = None
    """The same without the fixed cost of a pass. A device that prompts keep busy takes at least as long for a node."""

    def __missing__(self, rows: int) -> _Curve:
        computed = rows if self._padded is None else self._padded(rows, 0)[0]
        curve = self[computed] if computed != rows else _Curve(rows, self.slope(rows), self._padded)
        self[rows] = curve
        return curve

    def larger(self, curve: _Curve) -> _Curve:
        """The curve itself if it was measured or passes are not padded, else the next larger one that was: rare sizes
        run in larger ones."""
        if curve.empty or self._padded is None:
            return curve
        known = [other for other in self.values() if other.empty and other.rows > curve.rows]
        return min(known, key=lambda other: other.rows, default=curve)

    def slope(self, rows: int) -> float:
        """Assumed cost of a draft node in each row where nothing was measured, in plain passes of `rows` rows."""
        slope = self._prior * rows
        known = [curve for curve in self.values() if curve.empty]
        if not self.per_token or not known:
            return slope
        plain = min(known, key=lambda curve: abs(curve.rows - rows)).empty / rows
        return min(max(slope, (self.least_per_token or 0.0) / plain), FEW_TOKENS * self.per_token / plain)
