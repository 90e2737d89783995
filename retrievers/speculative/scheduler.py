"""OS3, the optimal speculation stride: how many retrievals to guess before one batch verifies them.

Zhang et al. 2024 (RaLMSpec, arXiv:2401.14021), section 4. One speculation step takes `a` seconds (a stride is
generated, its query made and answered from the cache), a batch of s queries takes `b0 + b1 * s`, and a guess is
right with probability `gamma`. The costs and gamma are learned from the rounds that are run anyway.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from copyspec.forks import at_rest

MOST = 64
"""The longest round that is considered: at gamma 0.98 and a search as long as 41 steps, 53 are best."""

WORTH = 1.02
"""Speculation must promise this much over plain retrieval: estimates are no better than that."""

SURE = 1.3
"""Speculation that promises this much over plain retrieval is believed; below, the pace of both is measured first."""

DEAR = 3.0
"""Searches that take so many steps' time decide alone: whatever a step may cost more beside them is little."""

PACED = 12  # rounds of a kind that tell its pace
RETRY = 96  # plans to wait, after which speculation that turned out slower is tried again

RECENT_STEPS = 64  # speculation steps whose mean is `a`
RECENT_ROUNDS = 64  # rounds that gamma is estimated from
DECAY = 0.95  # of the weight of a measured batch with each later one
FIXED_SHARE = 0.5  # of a batch of one query, taken as b0 until batches of different sizes were measured
PRIOR_WEIGHT = 0.05  # how many measured batches that guess is worth: it decides only while all are of one size


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds."""

    step: float  # `a`: one speculation step
    batch: float  # `b0`: a batched search, whatever its size
    query: float  # `b1`: each query of it
    late: float = 0.0  # from the end of a search that finds a wrong guess to where what follows it is left off

    def search(self, s: int) -> float:
        """A batched search of `s` queries: b(s)."""
        return self.batch + self.query * s


@dataclass(frozen=True, slots=True)
class Plan:
    """What the next round does."""

    stride: int = 1  # guesses of one round: s
    speculates: bool = False  # False: each retrieval is waited for, as without a cache
    ahead: int = 1  # guesses made while a batch is verified, at most: time that would else be waited
    promise: float = 1.0  # steps per second, over those of plain retrieval


def expected_steps(gamma: float, s: int) -> float:
    """Steps that survive a round of `s`: E(s) = (1 - gamma^s) / (1 - gamma), the first one is always right."""
    return float(s) if gamma >= 1.0 else (1.0 - gamma**s) / (1.0 - gamma)


def round_seconds(gamma: float, s: int, costs: Costs, *, ahead: int = 0) -> float:
    """Expected seconds of a round of `s` steps.

    `ahead`: steps of the next round that are made while the batch is verified. None of them: s*a + b. One: the
    paper's asynchronous form. They are lost where a guess was wrong, and cost nothing where all were right.
    """
    overlapped = min(ahead, s) * costs.step
    right = gamma**s
    searched = costs.search(s)
    hidden = (s - min(ahead, s)) * costs.step + max(overlapped, searched)
    return right * hidden + (1.0 - right) * (s * costs.step + searched + (costs.late if ahead else 0.0))


def best_plan(gamma: float, costs: Costs, *, overlaps: bool, most: int = MOST) -> Plan:
    """The round with the most steps per second, by direct search over 1..`most`.

    `overlaps`: the next round is begun while this one is verified, up to its own length.
    """
    plain = 1.0 / max(costs.step + costs.search(1), 1e-12)
    best, chosen = plain * WORTH, Plan()
    ceiling = expected_steps(gamma, most)
    for s in range(1, most + 1):
        seconds = max(round_seconds(gamma, s, costs, ahead=s if overlaps else 0), 1e-12)
        if ceiling <= best * seconds:
            break  # longer rounds take longer still, and none keeps more than the longest
        rate = expected_steps(gamma, s) / seconds
        if rate > best:
            best, chosen = rate, Plan(s, True, most, rate / plain)
    return chosen


def best_batch(gamma: float, costs: Costs, made: int) -> int:
    """How many of `made` guesses to verify in one search: the steps are there, so only the search costs time."""
    return max(range(1, made + 1), key=lambda s: (expected_steps(gamma, s) / max(costs.search(s), 1e-12), s))


def reading_pays(gamma: float, reading: float, search: float) -> bool:
    """Whether to go on under a guess that takes `reading` seconds before its first token, while a search of `search`
    seconds verifies it.

    A right guess hides the search behind the reading, a wrong one is left off when the reading is over.
    """
    return reading <= search or gamma * search > (1.0 - gamma) * (reading - search)


class Scheduler:
    """Learns costs and gamma while rounds run, and plans the next one. Thread-safe: requests share what they learn.

    `stride` fixes the round's length, and always speculates; None chooses it.
    """

    def __init__(self, *, overlaps: bool = True, stride: int | None = None, most: int = MOST) -> None:
        if stride is not None and not 1 <= stride <= most:
            raise ValueError(f"stride must be None or from 1 to {most}, got {stride!r}")
        self.overlaps = overlaps
        self._stride, self._most = stride, most
        self._steps: deque[float] = deque(maxlen=RECENT_STEPS)
        self._rounds: deque[tuple[int, int]] = deque(maxlen=RECENT_ROUNDS)  # (guesses that were right, guesses)
        self._light: deque[float] = deque(maxlen=RECENT_STEPS)  # steps that did not begin with reading,
        self._readings: deque[float] = deque(maxlen=RECENT_STEPS)  # and those that did
        self._changes: deque[bool] = deque(maxlen=RECENT_ROUNDS)  # whether guesses that have to be read were right
        self._late: deque[float] = deque(maxlen=RECENT_ROUNDS)
        self._paces: dict[bool, deque[tuple[float, int]]] = {
            speculates: deque(maxlen=2 * PACED) for speculates in (False, True)
        }
        self._waits = 0  # since the paces of both were compared and speculation was the slower one
        self._searches = _Line()
        self._lock = at_rest(threading.Lock())

    def observe_step(self, seconds: float, *, reads: bool = False) -> None:
        """One speculation step took so long; `reads`: it began with reading what was found or guessed."""
        with self._lock:
            self._steps.append(seconds)
            (self._readings if reads else self._light).append(seconds)

    def observe_change(self, was_right: bool) -> None:
        """Whether a guess was right that has to be read first."""
        with self._lock:
            self._changes.append(was_right)

    def observe_late(self, seconds: float) -> None:
        """So long after the end of a search that found a wrong guess the steps behind it were left off."""
        with self._lock:
            self._late.append(seconds)

    def observe_search(self, s: int, seconds: float) -> None:
        """A batched search of `s` queries took so long."""
        with self._lock:
            self._searches.add(s, seconds)

    def observe_round(self, right: int, s: int) -> None:
        """Of `s` guesses in their order the first `right` were right, and the next, where there is one, was not."""
        with self._lock:
            self._rounds.append((right, s))

    def observe_pace(self, seconds: float, steps: int, *, speculates: bool) -> None:
        """A round that did or did not speculate took so long for so many steps of verified text."""
        with self._lock:
            self._paces[speculates].append((seconds, steps))

    @property
    def gamma(self) -> float:
        """Posterior mean that a guess is right, from a uniform prior. No upper bound: the paper's bound of 0.6
        loses half of the gain where guesses are mostly right."""
        with self._lock:
            return self._gamma()

    @property
    def costs(self) -> Costs | None:
        """What was learned; None before a step and a search were measured."""
        with self._lock:
            return self._costs()

    def plan(self) -> Plan:
        """The next round. Without speculation until there is something to go by."""
        if self._stride is not None:
            return Plan(self._stride, True, self._stride)
        with self._lock:
            gamma, costs = self._gamma(), self._costs()
        if costs is None:
            return Plan()
        plan = best_plan(gamma, costs, overlaps=self.overlaps, most=self._most)
        is_doubted = plan.promise < SURE and costs.search(1) < DEAR * costs.step
        return Plan() if plan.speculates and is_doubted and self._waits_instead() else plan

    def batch(self, made: int) -> int:
        """How many of `made` guesses the next search verifies, from 1."""
        if self._stride is not None:
            return min(self._stride, made)
        with self._lock:
            gamma, costs = self._gamma(), self._costs()
        return made if costs is None or made < 2 else best_batch(gamma, costs, made)

    def reads(self) -> bool:
        """Whether to go on under a guess that has to be read first."""
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
        """Whether to wait although speculation promises a little: costs are measured while searches run beside the
        steps and slow them down, so that the promise may be wrong by more than that. Rounds of both kinds tell."""
        with self._lock:
            plain, speculating = self._paces[False], self._paces[True]
            if len(plain) < PACED:
                return True
            if len(speculating) < PACED:
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
        if not self._steps or not self._searches.weight:
            return None
        batch, query = self._searches.fit()
        late = sum(self._late) / len(self._late) if self._late else 0.0
        return Costs(sum(self._steps) / len(self._steps), batch, query, late)


def _pace(rounds: Iterable[tuple[float, int]]) -> float:
    """Seconds of a step."""
    seconds, steps = map(sum, zip(*rounds, strict=True))
    return seconds / max(steps, 1)


class _Line:
    """Seconds of a batch by its size: decayed least squares, with neither part below zero."""

    def __init__(self) -> None:
        self.weight = self._n = self._nn = self._t = self._nt = 0.0

    def add(self, n: int, seconds: float) -> None:
        self.weight = self.weight * DECAY + 1.0
        self._n = self._n * DECAY + n
        self._nn = self._nn * DECAY + n * n
        self._t = self._t * DECAY + seconds
        self._nt = self._nt * DECAY + n * seconds

    def fit(self) -> tuple[float, float]:
        """(b0, b1). The prior counts as batches of 1 and MOST queries on a line through the mean."""
        mean_n, mean_t = self._n / self.weight, self._t / self.weight
        one = mean_t / (FIXED_SHARE + (1.0 - FIXED_SHARE) * mean_n)  # seconds of one query
        weight, n, nn, t, nt = self.weight, self._n, self._nn, self._t, self._nt
        for size in (1, MOST):
            # Their weight falls with the distance, else a far guess would outweigh what was measured near by.
            share = PRIOR_WEIGHT / size**2
            seconds = one * (FIXED_SHARE + (1.0 - FIXED_SHARE) * size)
            weight, n, nn = weight + share, n + share * size, nn + share * size * size
            t, nt = t + share * seconds, nt + share * size * seconds
        slope = (weight * nt - n * t) / (weight * nn - n * n)
        slope = min(max(slope, 0.0), t / n)
        return max((t - slope * n) / weight, 0.0), slope
