"""Limits the mean number of draft nodes per call instead of the maximum, so that trees are large only where that
pays."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from copyspec.budget import Budget

MIN_RATE, MAX_RATE = 0.001, 0.999
"""Search range of the least score. Below it a copy drafter's draft is not cut; above it only certain nodes are kept."""

HALVINGS = 14  # bisection steps, on a logarithmic scale: to within 0.05 %
CLOSE = 0.998  # stop when this share of the allowed mean is used


@dataclass(frozen=True, slots=True)
class PromisingBudget(Budget):
    """A budget that keeps nodes by the tokens expected of them, whatever a call costs."""

    least_score: float = 0.0

    def cut(self, scores: Sequence[float]) -> int:
        """Return the n that maximises scores[0] + ... + scores[n-1] - n * least_score."""
        total = best = 0.0
        count = 0
        for n, score in enumerate(scores[: self.max_nodes], start=1):
            total += score - self.least_score
            if total >= best:
                best, count = total, n
        return count


class Counted(Protocol):
    """Counts of one budget on one set."""

    calls: int
    nodes: int


_Counts = TypeVar("_Counts", bound=Counted)


def within_mean(measure: Callable[[Budget], _Counts], mean: float, most: int) -> _Counts:
    """Return the counts of `measure` under a budget of `mean` nodes per call on average and `most` in any one call.

    A given mean number of nodes gains the most tokens if the last node of every tree has the same score (the
    multiplier of the constraint). This least score is one number per method and set, found by bisection. A method
    that gives all its nodes the same score is limited to shorter drafts instead.
    """
    measured = measure(Budget(most))
    if measured.nodes <= mean * measured.calls:
        return measured
    fits: _Counts | None = None
    low, high = math.log(MIN_RATE), math.log(MAX_RATE)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        measured = measure(PromisingBudget(most, least_score=math.exp(middle)))
        if measured.nodes > mean * measured.calls:
            low = middle
            continue
        fits, high = measured, middle
        if measured.nodes >= CLOSE * mean * measured.calls:
            break
    return _shorter(measure, mean, most) if fits is None else fits


def _shorter(measure: Callable[[Budget], _Counts], mean: float, most: int) -> _Counts:
    """Find the largest fixed number of nodes per call that stays within the mean."""
    fits, low, high = measure(Budget(math.floor(mean))), math.floor(mean), most
    while high - low > 1:
        middle = (low + high) // 2
        measured = measure(Budget(middle))
        if measured.nodes > mean * measured.calls:
            high = middle
        else:
            fits, low = measured, middle
    return fits
