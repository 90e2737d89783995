"""What a step of the engine costs, and which drafts of its rows pay."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

Chain = tuple[Sequence[int], Sequence[float]]
"""Draft tokens of one row, and of each the estimated probability that the draft is right up to it."""

PRIOR = 0.02
"""Of a token, in parts of what a step takes that computes none: rather too cheap than too dear, for what is drafted is
measured."""

MEMORY = 0.98  # weight of earlier steps: contexts grow, machines get busy
RIDGE = 0.01
"""Weight of the prior beside what was measured. It decides where all steps have as many tokens, as those of a full
batch without drafts have: drafts that did not pay are tried again when what was measured of them has faded."""

LEAST_SLOPE = 1e-3
"""Of a token, in parts of a step: it may be found to be free, or to save time."""

LEAST_SCORE = 0.02
"""Of a token that is drafted at all."""


LEAST_EXPONENT, MOST_EXPONENT = 0.2, 3.0
SLOWNESS = 100  # draft tokens whose record moves the exponent by as much as they were wrong


class Calibration:
    """What the drafter's probabilities are worth for the model that the engine runs: p becomes p ** exponent.

    One model copies nearly everything that it is told to edit, another rewrites it. Each row learns that for itself,
    which takes longer than most outputs are; this is what all rows have shown.
    """

    def __init__(self) -> None:
        self.exponent = 1.0

    def observe(self, drafts: Sequence[tuple[Sequence[float], int]]) -> None:
        """The drafts of a step: the drafter's probabilities, and how many tokens were accepted."""
        scores = np.array([score for scores, _ in drafts for score in scores])
        wrong = float((scores**self.exponent).sum()) - sum(accepted for _, accepted in drafts)
        moved = self.exponent * float(np.exp(wrong / (len(scores) + SLOWNESS)))
        self.exponent = min(max(moved, LEAST_EXPONENT), MOST_EXPONENT)

    def apply(self, scores: Sequence[float]) -> list[float]:
        """The probabilities as they turn out to be."""
        exponent = self.exponent
        return [score**exponent for score in scores]

    def undo(self, score: float) -> float:
        """What the drafter says where `apply` gives `score`."""
        return float(score ** (1.0 / self.exponent))


class StepCosts:
    """Seconds of a step = a + c tokens, by least squares that forget.

    vLLM computes the tokens of all rows as one batch, without padding: what a step costs depends on how many there
    are, not on whose they are, nor on whether they were drafted. Errors count by their share of the step: a step that
    something else on the machine held up for long says little.
    """

    def __init__(self) -> None:
        # Sums over steps, weighted: of 1, of tokens, of their squares, of seconds, of seconds times tokens.
        self._sums = [0.0] * 5
        self._start, self._token = 1.0, PRIOR  # a, c

    def observe(self, tokens: int, seconds: float) -> None:
        """A step that computed so many tokens took so long."""
        weight = seconds**-2
        step = (1.0, tokens, tokens**2, seconds, seconds * tokens)
        self._sums = [MEMORY * total + weight * each for total, each in zip(self._sums, step, strict=True)]
        ones, firsts, squares, times, products = self._sums
        # As if a step without tokens and one with the mean number had been measured as the prior has them.
        mean = firsts / ones
        unit = times / (ones * (1.0 + PRIOR * mean))
        extra = RIDGE * ones
        ones, firsts, squares = ones + 2 * extra, firsts + extra * mean, squares + extra * mean**2
        times += extra * unit * (2.0 + PRIOR * mean)
        products += extra * unit * (1.0 + PRIOR * mean) * mean
        token = (ones * products - firsts * times) / max(ones * squares - firsts**2, 1e-12 * ones * squares)
        token = min(max(token, 0.0), products / squares)  # neither part of a step can be less than nothing
        self._start, self._token = max((times - token * firsts) / ones, 0.0), token

    def slope(self, rows: int) -> float:
        """What a draft token adds to a step of `rows`, in parts of that step without drafts."""
        empty, token = self._step(rows)
        return token / empty

    def fit(self, chains: Sequence[Chain]) -> list[list[int]]:
        """The drafts of a step: the likeliest tokens of all rows, as many as bring most tokens per second."""
        rows = len(chains)
        scores = np.array([score for _, chain in chains for score in chain])
        if not len(scores):
            return [[] for _ in chains]
        scores[::-1].sort()
        empty, token = self._step(rows)
        rates = (rows + np.cumsum(scores)) / (empty + token * np.arange(1, len(scores) + 1))
        best = int(rates.argmax())
        if rates[best] <= rows / empty:
            return [[] for _ in chains]
        return cut(chains, max(float(scores[best]), LEAST_SCORE))

    def _step(self, rows: int) -> tuple[float, float]:
        """What a step without drafts takes, and a draft token."""
        empty = self._start + self._token * rows
        return empty, max(self._token, LEAST_SLOPE * empty)


def cut(chains: Sequence[Chain], least: float) -> list[list[int]]:
    """The tokens of each chain up to the first that scores below `least`: scores fall along a chain."""
    drafts: list[list[int]] = []
    for tokens, scores in chains:
        length = 0
        while length < len(scores) and scores[length] >= least:
            length += 1
        drafts.append(list(tokens[:length]))
    return drafts
