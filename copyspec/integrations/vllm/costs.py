"""What a step of the engine costs, and which drafts of its rows pay."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Chain = tuple[Sequence[int], Sequence[float]]
"""Draft tokens of one row, and of each the estimated probability that the draft is right up to it."""

PRIOR = (1.0, 0.02, 0.02)
"""Seconds of a step by step, row and draft token, but for their unit, before anything was measured: rather too cheap
than too dear, for what is drafted is measured."""

MEMORY = 0.98  # weight of earlier steps: contexts grow, machines get busy
RIDGE = 0.003
"""Weight of the prior beside what was measured. While nothing is drafted, what was measured of drafts fades, until the
prior has them tried again: after a few hundred steps."""

OUTLIER = 2.0
"""A step that takes so many times what was expected, or as little, was disturbed, and counts as that."""

LEAST_SLOPE = 1e-3
"""Of a draft token, in parts of a step: least squares may find that tokens are free, or worse."""

LEAST_SCORE = 0.02
"""Of a token that is drafted at all."""

STEPS = 3  # measured before the line says more than the prior


class StepCosts:
    """Seconds of a step = a + b rows + c draft tokens, by least squares that forget.

    vLLM computes the tokens of all rows as one batch, without padding: what a step costs depends on how many there
    are, not on how they are shared out.
    """

    def __init__(self) -> None:
        self._moments: NDArray[np.float64] = np.zeros((3, 3))
        self._products: NDArray[np.float64] = np.zeros(3)
        self._steps = 0
        self._weight = 0.0
        self._seconds = 0.0  # of a step of late
        self._line: NDArray[np.float64] = np.array(PRIOR)

    def observe(self, rows: int, drafted: int, seconds: float) -> None:
        """A step of `rows` tokens and `drafted` more took so long."""
        step = np.array([1.0, rows, drafted])
        if self._steps >= STEPS:
            expected = max(float(self._line @ step), 1e-9)
            seconds = min(max(seconds, expected / OUTLIER), expected * OUTLIER)
        weight = seconds**-2  # relative errors count
        self._moments = MEMORY * self._moments + weight * np.outer(step, step)
        self._products = MEMORY * self._products + weight * seconds * step
        self._weight = MEMORY * self._weight + weight
        self._seconds = seconds if not self._steps else 0.9 * self._seconds + 0.1 * seconds
        self._steps += 1
        if self._steps >= STEPS:
            prior = np.array(PRIOR) * self._seconds / (PRIOR[0] + PRIOR[1] * rows)
            ridge = RIDGE * self._weight * np.diag([1.0, rows**2, rows**2])
            self._line = np.linalg.solve(self._moments + ridge, self._products + ridge @ prior)

    def slope(self, rows: int) -> float:
        """What a draft token adds to a step of `rows`, in parts of that step without drafts."""
        empty, each = self._empty(rows)
        return each / empty

    def fit(self, chains: Sequence[Chain]) -> list[list[int]]:
        """The drafts of a step: the likeliest tokens of all rows, as many as bring most tokens per second."""
        rows = len(chains)
        scores = np.array([score for _, chain in chains for score in chain])
        if not len(scores):
            return [[] for _ in chains]
        scores[::-1].sort()
        empty, each = self._empty(rows)
        rates = (rows + np.cumsum(scores)) / (empty + each * np.arange(1, len(scores) + 1))
        best = int(rates.argmax())
        if rates[best] <= rows / empty:
            return [[] for _ in chains]
        return cut(chains, max(float(scores[best]), LEAST_SCORE))

    def _empty(self, rows: int) -> tuple[float, float]:
        """Seconds of a step without drafts, and of a draft token, both in some unit."""
        start, row, token = map(float, self._line)
        empty = max(start + row * rows, 0.1 * self._seconds, 1e-9)
        return empty, max(token, LEAST_SLOPE * empty)


def cut(chains: Sequence[Chain], least: float) -> list[list[int]]:
    """The tokens of each chain up to the first that scores below `least`: scores fall along a chain."""
    drafts: list[list[int]] = []
    for tokens, scores in chains:
        length = 0
        while length < len(scores) and scores[length] >= least:
            length += 1
        drafts.append(list(tokens[:length]))
    return drafts
