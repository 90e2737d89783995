"""Edit alignment: how far the output has come in the text that it edits."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

BAND = 256
"""Positions kept on either side of the best one: insertions and deletions up to this length are followed exactly."""


class Alignment:
    """D[j], the least number of insertions, deletions and substitutions that turn source[:j] into the output so far.

    One row of the Wagner-Fischer table, moved on by each output token y (design: arXiv 2106.04970 keeps n-grams
    instead): D'[j] = min(D[j] + 1, D[j-1] + [source[j-1] != y], D'[j-1] + 1), where the last term over all j is
    j + cummin(... - j). Long sources are followed in a band around the position of least cost.
    """

    def __init__(self, source: Sequence[int], band: int = BAND) -> None:
        self.source: NDArray[np.int64] = np.array(source, dtype=np.int64)
        self.start = 0  # j of costs[0]
        self._band = band
        self._steps: NDArray[np.int64] = np.arange(min(len(source), 3 * band) + 1, dtype=np.int64)
        self.costs: NDArray[np.int64] = self._steps[: min(len(source), band) + 1].copy()  # D over the band

    def push(self, token: int) -> None:
        """One more token of output."""
        old, start = self.costs, self.start
        new = old + 1
        stop = start + len(old) - 1
        replaced = old[:-1] + (self.source[start:stop] != token)
        np.minimum(new[1:], replaced, out=new[1:])
        steps = self._steps[: len(new)]
        new -= steps
        np.minimum.accumulate(new, out=new)
        new += steps
        self.costs = new
        if stop < len(self.source) or start > 0:
            self._move_band()

    def best(self) -> int:
        """The first position of least cost."""
        return self.start + int(self.costs.argmin())

    def excess(self) -> tuple[int, list[int]]:
        """First position of the band, and for each position of it how much its cost is above the least."""
        return self.start, (self.costs - self.costs.min()).tolist()

    def reach(self, position: int) -> None:
        """The output is known to stand at `position`: where the band does not hold it, the band starts anew there."""
        if self.start <= position < self.start + len(self.costs):
            return
        self.start = max(0, position - self._band)
        stop = min(len(self.source), position + self._band)
        self.costs = abs(np.arange(self.start, stop + 1, dtype=np.int64) - position)

    def _move_band(self) -> None:
        best = self.best()
        stop = self.start + len(self.costs) - 1
        if best + self._band // 2 > stop and stop < len(self.source):
            more = min(self._band, len(self.source) - stop)
            self.costs = np.concatenate((self.costs, self.costs[-1] + self._steps[1 : more + 1]))
        if best - self._band > self.start:
            cut = best - self._band - self.start
            self.costs, self.start = self.costs[cut:], self.start + cut
