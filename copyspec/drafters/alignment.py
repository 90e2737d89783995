"""Edit alignment: how far the output has come in the text that it edits."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

BAND = 256
"""Positions kept on either side of the best one: insertions and deletions up to about this length are followed."""

MOVE_EVERY = 32  # output tokens between two looks at where the band should be; far fewer than BAND


class Alignment:
    """D[j], the least number of insertions, deletions and substitutions that turn source[:j] into the output so far.

    One row of the Wagner-Fischer table, moved on by each output token y:
    D'[j] = min(D[j] + 1, D[j-1] + [source[j-1] != y], D'[j-1] + 1). Kept as F[j] = D[j] - j - (output tokens), for
    which it reads F'[j] = min(F[j], F[j-1] + [source[j-1] != y] - 2, F'[j-1]): three array operations and a running
    minimum. Long sources are followed in a band around the position of least cost. The output may begin at any of the
    first `free` positions without cost: for a source that an instruction stands before.
    """

    def __init__(self, source: Sequence[int], band: int = BAND, free: int = 0) -> None:
        self.start = 0  # the j of the band's first entry
        self._source: NDArray[np.int64] = np.array(source, dtype=np.int64)
        self._band = band
        self._output = 0  # tokens of output
        self._steps: NDArray[np.int32] = np.arange(len(source) + 1, dtype=np.int32)
        self._row: NDArray[np.int32] = -np.minimum(self._steps[: 2 * band + 1], free)  # F over the band

    def __len__(self) -> int:
        return len(self._row)

    @property
    def costs(self) -> NDArray[np.int32]:
        """D over the band. [len(self)]"""
        return self._row + self._steps[self.start : self.start + len(self._row)] + self._output

    def push(self, token: int) -> None:
        """One more token of output."""
        row, start = self._row, self.start
        replaced = row[:-1] + (self._source[start : start + len(row) - 1] != token)
        replaced -= 2
        np.minimum(row[1:], replaced, out=row[1:])
        np.minimum.accumulate(row, out=row)
        self._output += 1
        if self._output % min(MOVE_EVERY, self._band // 2) == 0 and len(row) <= len(self._source):
            self._move_band()

    def least(self) -> int:
        """The least cost of any position."""
        return int(self.costs.min())

    def best(self) -> int:
        """The first position of least cost."""
        return self.start + int(self.costs.argmin())

    def excess(self) -> tuple[int, list[int]]:
        """First position of the band, and for each position of it how much its cost is above the least."""
        costs = self.costs
        costs -= costs.min()
        return self.start, costs.tolist()

    def reach(self, position: int) -> None:
        """The output is known to stand at `position`: where the band does not hold it, the band starts anew there."""
        if self.start <= position < self.start + len(self._row):
            return
        self.start = max(0, position - self._band)
        stop = min(len(self._source), position + self._band)
        steps = self._steps[self.start : stop + 1]
        self._row = abs(steps - position) - steps - self._output

    def _move_band(self) -> None:
        best = self.best()
        stop = self.start + len(self._row) - 1
        if best + self._band > stop and stop < len(self._source):
            more = min(best + 2 * self._band, len(self._source)) - stop  # D rises by 1 a position: F stays
            self._row = np.concatenate((self._row, np.full(more, self._row[-1], dtype=np.int32)))
        if best - self._band > self.start:
            self._row = self._row[best - self._band - self.start :].copy()
            self.start = best - self._band
