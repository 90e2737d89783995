"""Limits the mean number of draft nodes per call instead of the maximum: trees are large only where that pays."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from copyspec.budget import Budget

LEAST, MOST = 0.001, 0.999
"""Between these a node's least score is searched: below, a copy drafter keeps nothing; above, only certainties."""

HALVINGS = 14  # of the range of least scores, in logarithms: to within 0.05 %
CLOSE = 0.998  # share of the mean that is near enough


@dataclass(frozen=True, slots=True)
class PromisingBudget(Budget):
    """A budget that keeps a node for the tokens it promises; what calls cost does not count."""

    least_score: float = 0.0

    def cut(self, scores: Sequence[float]) -> int:
        """The n that maximises scores[0] + ... + scores[n-1] - n * least score."""
        total = best = 0.0
        count = 0
        for n, score in enumerate(scores[: self.max_nodes], start=1):
            total += score - self.least_score
            if total >= best:
                best, count = total, n
        return count


class Counted(Protocol):
    """What one budget brought on a set."""

    calls: int
    nodes: int


_Counts = TypeVar("_Counts", bound=Counted)


def within_mean(measure: Callable[[Budget], _Counts], mean: float, most: int) -> _Counts:
    """What `measure` counts with the budget that uses up to `mean` nodes a call on average, at most `most` in any.

    To gain the most tokens from a mean number of nodes, the last node of every tree should promise the same (the
    multiplier of the constraint). That least score is one number for a method on a set, found by halving its range.
    A method that says of all it drafts that it is certain is given shorter drafts instead.
    """
    found = measure(Budget(most))
    if found.nodes <= mean * found.calls:
        return found
    fits: _Counts | None = None
    low, high = math.log(LEAST), math.log(MOST)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        found = measure(PromisingBudget(most, least_score=math.exp(middle)))
        if found.nodes > mean * found.calls:
            low = middle
            continue
        fits, high = found, middle
        if found.nodes >= CLOSE * mean * found.calls:
            break
    return _shorter(measure, mean, most) if fits is None else fits


def _shorter(measure: Callable[[Budget], _Counts], mean: float, most: int) -> _Counts:
    """With the largest number of nodes for all calls that stays within the mean."""
    fits, low, high = measure(Budget(math.floor(mean))), math.floor(mean), most
    while high - low > 1:
        middle = (low + high) // 2
        found = measure(Budget(middle))
        if found.nodes > mean * found.calls:
            high = middle
        else:
            fits, low = found, middle
    return fits
