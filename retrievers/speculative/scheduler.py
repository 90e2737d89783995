"""The optimal speculation stride scheduler (OS3): how many retrievals to guess before one batch verifies them.

Zhang et al. 2024 (RaLMSpec, arXiv:2401.14021), section 4. A speculation step takes `a` seconds (to generate a stride
and to answer its query from the cache), a batched search of s queries takes `b0 + b1 * s` seconds, and a guess is right
with probability `gamma`. Costs and gamma are estimated from the rounds that are run anyway.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from copyspec.common.forks import fork_safe

MOST = 64
"""Longest round considered: at gamma 0.98 and a search as long as 41 steps, 53 steps are best."""

MIN_SPEEDUP = 1.02
"""Least predicted speed-up over plain retrieval for which to speculate; the estimates are not more precise."""

CLEAR_SPEEDUP = 1.3
"""From this predicted speed-up on the prediction is trusted; below, the pace of both ways is measured first."""

SEARCH_DOMINATES = 3.0
"""If a search takes as long as this many steps, the prediction is trusted, too: slower steps would matter little."""

MIN_ROUNDS = 12  # rounds after which the pace of a way is known
RETRY = 96  # plans without speculation after which speculation that was slower is tried again

RECENT_STEPS = 64  # speculation steps averaged for `a`
RECENT_ROUNDS = 64  # rounds that gamma is estimated from
DECAY = 0.95  # of the weight of measured batches, per batch
FIXED_SHARE = 0.5  # prior share of b0 in the time of a batch of one query
PRIOR_WEIGHT = 0.05  # weight of that prior in measured batches: it only matters while all have the same size


@dataclass(frozen=True, slots=True)
class Costs:
    """Measured costs, in seconds."""

    step: float  # `a`: one speculation step
    batch: float  # `b0`: a batched search, whatever its size
    query: float  # `b1`: each query of it
    late: float = 0.0  # from the end of a search that finds a wrong guess until the steps after it are aborted

    def search(self, s: int) -> float:
        """Return the time of a batched search of `s` queries: b(s)."""
        return self.batch + self.query * s


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan of the next round."""

    stride: int = 1  # guesses per round: s. Where steps go on during searches, `Scheduler.is_enough` decides
    speculates: bool = False  # False: wait for each retrieval, as without a cache
    ahead: int = 1  # maximum number of guesses made while a batch is verified
    promise: float = 1.0  # predicted speed-up over plain retrieval


def expected_steps(gamma: float, s: int) -> float:
    """Return the expected number of kept steps of a round: E(s) = (1 - gamma^s) / (1 - gamma); the first always is."""
    return float(s) if gamma >= 1.0 else (1.0 - gamma**s) / (1.0 - gamma)


def round_seconds(gamma: float, s: int, costs: Costs, *, ahead: int = 0) -> float:
    """Return the expected time of a round of `s` steps, in seconds.

    `ahead`: steps of the next round that are made while the batch is verified. Without any, the time is s*a + b; one is
    the paper's asynchronous form. These steps are free if all guesses were right, and lost otherwise.
    """
    overlapped = min(ahead, s) * costs.step
    right = gamma**s
    searched = costs.search(s)
    hidden = (s - min(ahead, s)) * costs.step + max(overlapped, searched)
    return right * hidden + (1.0 - right) * (s * costs.step + searched + (costs.late if ahead else 0.0))


def best_plan(gamma: float, costs: Costs, *, overlaps: bool) -> Plan:
    """Return the plan with the most steps per second, by direct search over strides 1..MOST.

    `overlaps`: whether the next round is begun while this one is verified, up to its own length.
    """
    plain = 1.0 / max(costs.step + costs.search(1), 1e-12)
    best, chosen = plain * MIN_SPEEDUP, Plan()
    ceiling = expected_steps(gamma, MOST)
    for s in range(1, MOST + 1):
        seconds = max(round_seconds(gamma, s, costs, ahead=s if overlaps else 0), 1e-12)
        if ceiling <= best * seconds:
            break  # longer rounds take longer, and none keeps more steps than `ceiling`
        rate = expected_steps(gamma, s) / seconds
        if rate > best:
            best, chosen = rate, Plan(s, True, MOST, rate / plain)
    return chosen


def best_batch(gamma: float, costs: Costs, made: int) -> int:
    """Return how many of `made` guesses to verify in one search. Their steps are done, so only the search costs."""
    return max(range(1, made + 1), key=lambda s: (expected_steps(gamma, s) / max(costs.search(s), 1e-12), s))


def now_pays(gamma: float, costs: Costs, made: int, wait: float) -> bool:
    """Whether to verify `made` guesses while steps go on, and not with one more that is made in `wait` seconds.

    Searches that keep up with the steps leave nothing to wait for at the end. Those that do not are the bottleneck:
    what counts is the kept steps per second of searching, or of waiting to search.
    """
    now, later = costs.search(made), wait + costs.search(made + 1)
    return now <= made * costs.step or expected_steps(gamma, made) * later >= expected_steps(gamma, made + 1) * now


def reading_pays(gamma: float, reading: float, search: float) -> bool:
    """Whether to continue with a guessed text that takes `reading` seconds to prefill, while a search of `search`
    seconds verifies it.

    A right guess hides the search behind the prefill; a wrong one is only aborted when the prefill has ended.
    """
    return reading <= search or gamma * search > (1.0 - gamma) * (reading - search)


class Scheduler:
    """Estimates costs and gamma from the rounds, and plans the next one. Thread-safe, so requests can share it.

    `stride`: a fixed length of the rounds, which then always speculate; None: choose it.
    """

    def __init__(self, *, overlaps: bool = True, stride: int | None = None) -> None:
        if stride is not None and not 1 <= stride <= MOST:
            raise ValueError(f"stride must be None or from 1 to {MOST}, got {stride!r}")
        self.overlaps = overlaps
        self._stride = stride
        self._steps: deque[float] = deque(maxlen=RECENT_STEPS)
        self._rounds: deque[tuple[int, int]] = deque(maxlen=RECENT_ROUNDS)  # (right guesses, guesses)
        self._light: deque[float] = deque(maxlen=RECENT_STEPS)  # times of steps without a prefill of a new text
        self._readings: deque[float] = deque(maxlen=RECENT_STEPS)  # times of steps with one
        self._changes: deque[bool] = deque(maxlen=RECENT_ROUNDS)  # whether guesses that need a prefill were right
        self._late: deque[float] = deque(maxlen=RECENT_ROUNDS)
        self._paces: dict[bool, deque[tuple[float, int]]] = {
            speculates: deque(maxlen=2 * MIN_ROUNDS) for speculates in (False, True)
        }
        self._waits = 0  # plans without speculation since it was found to be slower
        self._searches = _Line()
        self._lock = fork_safe(threading.Lock())

    def observe_step(self, seconds: float, *, reads: bool = False, is_first: bool = False) -> None:
        """Record the time of a speculation step. `reads`: it began with the prefill of a found or guessed text.
        `is_first`: with that of the prompt, which no other step does."""
        with self._lock:
            if not is_first:
                self._steps.append(seconds)
            (self._readings if reads else self._light).append(seconds)

    def observe_change(self, was_right: bool) -> None:
        """Record whether a guess that needs a prefill was right."""
        with self._lock:
            self._changes.append(was_right)

    def observe_late(self, seconds: float) -> None:
        """Record the time from the end of a search that found a wrong guess until the steps after it were aborted."""
        with self._lock:
            self._late.append(seconds)

    def observe_search(self, s: int, seconds: float) -> None:
        """Record the time of a batched search of `s` queries."""
        with self._lock:
            self._searches.add(s, seconds)

    def observe_round(self, right: int, s: int) -> None:
        """Record that the first `right` of `s` guesses were right and the next one, if any, was wrong."""
        with self._lock:
            self._rounds.append((right, s))

    def observe_pace(self, seconds: float, steps: int, *, speculates: bool) -> None:
        """Record the time of a round and its number of verified steps, with or without speculation."""
        with self._lock:
            self._paces[speculates].append((seconds, steps))

    @property
    def gamma(self) -> float:
        """Probability that a guess is right: posterior mean with a uniform prior. It has no upper bound; the paper's
        bound of 0.6 loses half of the gain if guesses are mostly right."""
        with self._lock:
            return self._gamma()

    @property
    def costs(self) -> Costs | None:
        """Estimated costs; None before a step and a search were measured."""
        with self._lock:
            return self._costs()

    def plan(self) -> Plan:
        """Plan the next round, without speculation until costs are known."""
        if self._stride is not None:
            return Plan(self._stride, True, self._stride)
        with self._lock:
            gamma, costs = self._gamma(), self._costs()
        if costs is None:
            return Plan()
        plan = best_plan(gamma, costs, overlaps=self.overlaps)
        is_doubted = plan.promise < CLEAR_SPEEDUP and costs.search(1) < SEARCH_DOMINATES * costs.step
        return Plan() if plan.speculates and is_doubted and self._waits_instead() else plan

    def batch(self, made: int) -> int:
        """Return how many of `made` guesses the next search is to verify, at least 1."""
        if self._stride is not None:
            return min(self._stride, made)
        with self._lock:
            gamma, costs = self._gamma(), self._costs()
        return made if costs is None or made < 2 else best_batch(gamma, costs, made)

    def is_enough(self, made: int, plan: Plan, elapsed: float = 0.0) -> bool:
        """Whether to verify `made` guesses now, and not with one more. `elapsed`: seconds since the step began that
        will make it."""
        if self._stride is not None or not self.overlaps:
            return made >= plan.stride
        with self._lock:
            gamma, costs = self._gamma(), self._costs()
        return costs is None or now_pays(gamma, costs, made, max(costs.step - elapsed, 0.0))

    def reads(self) -> bool:
        """Whether to continue with a guess that needs a prefill."""
        if self._stride is not None:
            return True
        with self._lock:
            costs = self._costs()
            if costs is None or not self._readings or not self._light:
                return True
            reading = max(sum(self._readings) / len(self._readings) - sum(self._light) / len(self._light), 0.0)
            gamma = (1.0 + sum(self._changes)) / (2.0 + len(self._changes))
        return reading_pays(gamma, reading, costs.search(1))

    def _waits_instead(self) -> bool:
        """Whether not to speculate although a small speed-up is predicted.

        Searches that run in parallel slow the steps down, so the prediction may be off by more than a small speed-up.
        The measured pace of rounds with and without speculation decides."""
        with self._lock:
            plain, speculating = self._paces[False], self._paces[True]
            if len(plain) < MIN_ROUNDS:
                return True
            if len(speculating) < MIN_ROUNDS:
                return False
            if _pace(speculating) < _pace(plain):
                return False
            self._waits += 1
            if self._waits >= RETRY:
                self._waits = 0
                speculating.clear()
            return True

    def _gamma(self) -> float:
        right = sum(matched for matched, _ in self._rounds)
        broken = sum(matched < s for matched, s in self._rounds)
        return (1.0 + right) / (2.0 + right + broken)

    def _costs(self) -> Costs | None:
        steps = self._steps or self._light or self._readings  # texts of two steps only show how long the first takes
        if not steps or not self._searches.weight:
            return None
        batch, query = self._searches.fit()
        late = sum(self._late) / len(self._late) if self._late else 0.0
        return Costs(sum(steps) / len(steps), batch, query, late)


def _pace(rounds: Iterable[tuple[float, int]]) -> float:
    """Seconds per step."""
    seconds, steps = map(sum, zip(*rounds, strict=True))
    return seconds / max(steps, 1)


class _Line:
    """The time of a batch as a linear function of its size: decayed least squares, non-negative coefficients."""

    def __init__(self) -> None:
        self.weight = self._n = self._nn = self._t = self._nt = 0.0

    def add(self, n: int, seconds: float) -> None:
        self.weight = self.weight * DECAY + 1.0
        self._n = self._n * DECAY + n
        self._nn = self._nn * DECAY + n * n
        self._t = self._t * DECAY + seconds
        self._nt = self._nt * DECAY + n * seconds

    def fit(self) -> tuple[float, float]:
        """Return (b0, b1). The prior consists of batches of 1 and MOST queries on a line through the mean."""
        mean_n, mean_t = self._n / self.weight, self._t / self.weight
        one = mean_t / (FIXED_SHARE + (1.0 - FIXED_SHARE) * mean_n)  # seconds of a batch of one query
        weight, n, nn, t, nt = self.weight, self._n, self._nn, self._t, self._nt
        for size in (1, MOST):
            # Smaller weight for the larger size, else that distant point would outweigh the measured ones.
            share = PRIOR_WEIGHT / size**2
            seconds = one * (FIXED_SHARE + (1.0 - FIXED_SHARE) * size)
            weight, n, nn = weight + share, n + share * size, nn + share * size * size
            t, nt = t + share * seconds, nt + share * size * seconds
        slope = (weight * nt - n * t) / (weight * nn - n * n)
        slope = min(max(slope, 0.0), t / n)
        return max((t - slope * n) / weight, 0.0), slope
