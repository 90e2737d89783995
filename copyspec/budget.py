"""The node budget: how many draft nodes one forward pass of the target should verify.

`CostModel` measures passes while they run, by the tokens that they compute: those of all rows together. A "plain" pass
carries no draft nodes and is the unit of cost; a "first" pass reads the prompts (prefill).
"""

from __future__ import annotations

import sys
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter

PRIOR_SLOPE = 0.02
"""Assumed cost of one more token, in passes over a single one, where nothing near it was measured: small models on a
CPU show 0.01-0.03. First passes bound it from both sides (`CostModel.observe_first`). It errs on the low side: what is
tried gets measured, what looks too expensive never is."""

GPU_SLOPE = 0.0025
"""The same on a GPU. On an H200, for a model of 7 B parameters: 0.004 for one row, 0.002 to 0.003 for each of 32."""

PRICE = 0.25
"""Share of a node's cost at which the rows of a batch draft it: what they draft together is cut again (`loop.fit`), and
the likeliest nodes of all rows must be among it."""

CROWD = 4
"""Tokens of a row in a pass of many, at whose cost they draft."""

FEW_TOKENS = 1.5
"""Time per token of a short pass over time per token of a prefill pass, until both are measured."""

MIN_SLOPE = 0.25
"""Beyond the most tokens measured, one costs what they did so far on average, but at least this share of what is
assumed: one pass may have been lucky."""

KNOTS = (
    *(1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 13, 15, 17, 21, 25, 29, 33, 41, 49, 65, 97, 129, 193, 257, 385, 513, 769, 1025),
    *(1537, 2049, 4097),
)
"""Numbers of tokens ("knots") whose time is stored; times in between are interpolated linearly. They are dense where
matrix products switch kernels with the number of tokens: on a CPU twelve can take longer than sixteen."""

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
"""Minimum length of a first pass, in tokens, for its time per token to be used as the cost of a draft node."""

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

    `costs[n]` is the time of a target pass with n draft nodes of this row, in plain passes (`costs[0] == 1`),
    n = 0..max_nodes. Without `costs`, nodes are free.
    """

    max_nodes: int
    costs: Sequence[float] = ()
    seconds: float = 0.0  # one row's share of a plain pass; 0: not measured
    is_guessed: bool = False
    """Whether no plain pass like it was measured, so that costs are relative to a guess."""
    shared: Sequence[float] = ()
    """The costs of a pass with 0, 1, ... draft nodes of all rows together."""
    plain: int = 1  # tokens of a plain pass, padding included
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
    """Learns the time of a target pass by the tokens that it computes, from the passes that are made anyway.

    The time is not linear in the number of tokens: one token is a matrix-vector product, several are a matrix product.
    Each number is therefore measured separately, and times between two measured ones are interpolated. First passes
    give the cost of one more token in a prefill. Use one instance per target and machine.
    """

    def __init__(self, clock: Callable[[], float] = perf_counter, slope: float = PRIOR_SLOPE) -> None:
        """`clock` returns seconds; it is read around passes and drafts. Tests and simulations pass their own.
        `slope`: assumed cost of one more token in passes over a single one, where nothing was measured."""
        self.clock = clock
        self._slope = slope
        self._curve = _Curve(slope)
        self._per_token = 0.0
        """Seconds per token in a first pass; 0 before one was measured."""
        self._least_per_token: float | None = None
        """The same without the fixed cost of a pass. A device that prompts keep busy takes at least as long for a
        node."""
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
        self._unlearned: list[tuple[int, float]] = []  # tokens, seconds of passes not learned from yet

    def observe(self, tokens: int, seconds: float) -> bool:
        """Record that a pass computed so many tokens in `seconds`, padding included. Returns whether what it costs was
        known from earlier ones, and not a guess."""
        curve = self._curve
        self._unlearned.append((tokens, seconds))
        if curve.is_empty or len(self._unlearned) == MAX_UNLEARNED:
            self.learn()  # a first measurement replaces a guess
        return curve.weights.get(KNOTS[min(bisect_left(KNOTS, tokens), len(KNOTS) - 1)], 0.0) >= ESTABLISHED

    def learn(self) -> None:
        """Learn from the passes that `observe` recorded. While rows draft, decoding calls this during each pass,
        so that no device waits for it: the costs of a pass lag behind by one measurement."""
        unlearned, self._unlearned = self._unlearned, []
        curve = self._curve
        for tokens, seconds in unlearned:
            is_first = curve.is_empty
            self._ratio = curve.observe(tokens, seconds)
            if is_first:
                curve.assume(self._slope, self._per_token, self._least_per_token)

    def take_ratio(self) -> float | None:
        """Return the last pass's time over its expected time, once; None where nothing was expected or it was read."""
        self.learn()
        ratio, self._ratio = self._ratio, None
        return ratio

    def observe_first(self, tokens: int, seconds: float) -> None:
        """Record a first pass over `tokens` tokens of all rows, draft nodes included."""
        self.learn()
        if tokens >= PREFILL_TOKENS:
            measured, before = seconds / tokens, self._per_token
            # The fastest pass counts most: longer prompts take more time per token, and nodes are appended last.
            self._per_token = 0.5 * (min(before, measured) + measured) if before else measured
            # The fixed cost is that of a plain pass; the first of all passes takes longer, while a device warms up.
            if before and self._curve.single:
                beyond = max(0.0, seconds - self._curve.single) / tokens
                least = self._least_per_token
                self._least_per_token = beyond if least is None else 0.5 * (min(least, beyond) + beyond)
            self._curve.assume(self._slope, self._per_token, self._least_per_token)

    def budget(
        self,
        rows: int,
        max_nodes: int,
        computes: Callable[[int], int] | None = None,
        *,
        adaptive: bool = True,
        is_first: bool = False,
        uncached: int = 0,
        most_tokens: int = sys.maxsize,
    ) -> Budget:
        """Return the budget of each row in a pass of `rows` rows; `adaptive=False` allows max_nodes at any cost.

        `computes`: the tokens that a pass over so many computes, padding included; None: no others. `uncached`: those
        of the pass without drafts, if it also reads prompts. `most_tokens`: those that it should have at most with
        drafts, so that rows do not wait for them long. `is_first`: all rows are new, and a node is one more prompt
        token. Its cost is bounded by the mean time per token of such passes (an overestimate, as it includes their
        fixed cost) and by the cost of a node in a later pass.
        """
        if not adaptive:
            return Budget(max_nodes)
        if len(self._unlearned) > 1:  # of passes without drafts
            self.learn()
        curve, base, plain = self._curve, rows, rows  # tokens without drafts, and without prompts
        if computes is not None or not is_first:
            base = max(rows, uncached)
        most = min(base + rows * max_nodes, max(most_tokens, base if computes is None else computes(base)))
        sizes: Sequence[int] = range(base, most + 1)
        if computes is not None:
            plain, sizes = computes(rows), [computes(base)]
            while sizes[-1] < most:
                sizes.append(computes(sizes[-1] + 1))
        unit, first, *more = curve.at([plain, *sizes])
        # What the prompts take does not count: their tokens are read with drafts or without.
        scale = 1.0 / unit
        before = scale * first - 1.0
        shared = [1.0, *[max(1.0, scale * time - before) for time in more]]
        if computes is not None:  # passes up to the same size cost the same
            by_size, shared = shared, []
            for size, cost in zip(sizes, by_size, strict=True):
                shared += [cost] * (min(size, most) + 1 - base - len(shared))
        costs, max_nodes = shared, min(max_nodes, most - base)
        if rows > 1:
            crowd = 0 if computes is not None else min((CROWD - 1) * rows, most - base)
            last = min(crowd + rows if computes is None else CROWD * rows, most - base)
            price = max(0.0, PRICE * rows * (shared[last] - shared[crowd]) / max(last - crowd, rows))
            costs = [1.0 + price * n for n in range(max_nodes + 1)]
        seconds = 0.0 if curve.is_empty else curve.pace * unit
        if is_first and computes is None and self._per_token and seconds and max_nodes:
            slope = min(self._per_token / seconds, (shared[-1] - 1.0) / (len(shared) - 1))
            shared = [1.0 + slope * n for n in range(len(shared))]
            costs = shared if rows == 1 else costs
        is_guessed = not curve.is_empty and KNOTS[min(bisect_left(KNOTS, plain), len(KNOTS) - 1)] not in curve.weights
        return Budget(max_nodes, costs, seconds / rows, is_guessed, shared, plain)

    def seconds(self, plain: int) -> float:
        """Seconds of a plain pass over so many tokens, as learned so far; 0 before anything was."""
        self.learn()
        curve = self._curve
        return 0.0 if curve.is_empty else curve.pace * curve.at([plain])[0]

    def measured(self, plain: int) -> Mapping[int, float]:
        """Seconds of a pass of the same rows, as learned so far, by the numbers of tokens that were measured."""
        return {tokens: seconds for tokens, seconds in self._curve.measured().items() if tokens >= plain}

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
    """Seconds of a pass as a function of the tokens that it computes."""

    def __init__(self, prior: float) -> None:
        self.is_empty = True
        """Whether nothing was measured yet."""
        self._prior = prior  # cost of a token in passes over one, where nothing was measured
        self.pace = 1.0
        """Factor common to all times: how busy the machine is."""
        self.single = 0.0
        """Seconds of a pass over one token; 0 before anything was measured."""
        self._times: dict[int, float] = {}  # by knot, in rising order, in seconds over `_pace`
        self.weights: dict[int, float] = {}
        """By knot, how often it was measured."""

    def assume(self, slope: float, per_token: float, least: float | None) -> None:
        """Set the cost of a token where nothing was measured: `slope`, in passes over one, as far as first passes allow
        it, which take `per_token` seconds a token, and at least `least` beside their fixed cost."""
        if per_token and self.single:
            self._prior = min(max(slope, (least or 0.0) / self.single), FEW_TOKENS * per_token / self.single)
            self.single = self.pace * self._at(1)

    def observe(self, tokens: int, seconds: float) -> float | None:
        """Learn from a pass; return its time over its expected time, None where nothing was expected."""
        index = bisect_left(KNOTS, tokens)
        high = KNOTS[min(index, len(KNOTS) - 1)]
        low = KNOTS[max(index - 1, 0)] if high > tokens else high
        share = (tokens - low) / (high - low) if high > low else 1.0
        if self.is_empty:
            prior = self._prior
            self._times = {high: seconds * (1.0 + prior * (high - 1)) / (1.0 + prior * (min(tokens, high) - 1))}
            self.weights, self.is_empty, self.single = {high: 1.0}, False, self._at(1)
            return None
        at_high = self._at(high)
        at_low = at_high if low == high else self._at(low)
        over_expected = seconds / (self.pace * (at_low + share * (at_high - at_low)))
        ratio = min(max(over_expected, 1.0 / OUTLIER), OUTLIER)
        if self.weights.get(high if share >= 0.5 else low, 0.0) >= ESTABLISHED:
            drift = ratio**DRIFT
            self.pace *= drift
            ratio /= drift
        known = len(self._times)
        for knot, part, time in ((low, 1.0 - share, at_low), (high, share, at_high)):
            if part > 0.0:
                self.weights[knot] = weight = self.weights.get(knot, 0.0) + part
                rate = max(1.0 / (weight + NEIGHBOURS), MIN_RATE)
                self._times[knot] = self._times.get(knot, time) * ratio ** (part * rate)
        if len(self._times) > known:
            self._times = dict(sorted(self._times.items()))
        self.single = self.pace * self._at(1)
        return over_expected

    def measured(self) -> Mapping[int, float]:
        """Seconds by number of tokens, at the knots measured so far."""
        return {knot: self.pace * time for knot, time in self._times.items()}

    def at(self, tokens: Sequence[int]) -> list[float]:
        """The times of passes over so many tokens, in rising order, over `pace`; of a single one as 1 before anything
        was measured."""
        unit, times = self.single / self.pace or 1.0, list[float]()
        low, low_time = 1, unit
        for high, time in (*self._times.items(), (sys.maxsize, 0.0)):
            if tokens[len(times)] <= high:
                slope = (time - low_time) / (high - low) if high > low else 0.0
                if high == sys.maxsize:
                    slope = prior = self._prior * unit
                    if low > 1:
                        slope = min(prior, max((low_time - unit) / (low - 1), MIN_SLOPE * prior))
                some = tokens[len(times) : bisect_right(tokens, high, len(times))]
                times += [low_time + slope * (count - low) for count in some]
                if len(times) == len(tokens):
                    break
            low, low_time = high, time
        return times

    def _at(self, tokens: int) -> float:
        """The time of so many tokens in seconds over `_pace`; needs at least one measurement."""
        times = self._times
        if tokens in times:
            return times[tokens]
        first = next(iter(times))
        start, before = 1, times[first] / (1.0 + self._prior * (first - 1))
        single = before
        for knot, time in times.items():
            if knot > tokens:
                return before + (time - before) * (tokens - start) / (knot - start)
            start, before = knot, time
        return max(single, before) + self._prior * single * (tokens - start)
