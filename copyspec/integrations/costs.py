"""Models the time of an engine step, and selects the drafts of a batch that pay for themselves."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import chain
from math import exp, inf
from operator import neg

Chain = tuple[Sequence[int], Sequence[float]]
"""Draft tokens of one row, and for each the estimated probability that the draft is right up to and including it."""

PRIOR = 0.02
"""Prior cost of a token, relative to a step's fixed cost. Rather too low than too high, because the cost of what is
drafted gets measured."""

MEMORY = 0.98  # weight of earlier steps, since contexts grow and load changes
RIDGE = 0.01
"""Weight of the prior relative to the measurements. It matters if all steps have the same number of tokens, as a full
batch without drafts has: once old measurements have faded, drafts that did not pay are tried again."""

MIN_SLOPE = 1e-3
"""Minimum cost of a token relative to a step, because the fit may come out as zero or negative."""

MIN_SCORE = 0.02
"""Minimum probability of a token that is drafted."""


MIN_EXPONENT, MAX_EXPONENT = 0.2, 3.0
SLOWNESS = 100  # draft tokens over which the exponent adapts


class Calibration:
    """Corrects the drafter's probabilities for the model in use: p becomes p ** exponent.

    One model copies nearly everything it is told to edit, another rewrites it. Each row learns this by itself, but more
    slowly than most outputs last; the exponent is learned over all rows.
    """

    def __init__(self) -> None:
        self.exponent = 1.0

    def observe(self, drafted: int, expected: float, accepted: int) -> None:
        """Update with a step's drafts: the number of their tokens, the sum of the calibrated probabilities, and the
        number of accepted tokens."""
        moved = self.exponent * exp((expected - accepted) / (drafted + SLOWNESS))
        self.exponent = min(max(moved, MIN_EXPONENT), MAX_EXPONENT)

    def apply(self, scores: Sequence[float]) -> list[float]:
        """The calibrated probabilities."""
        exponent = self.exponent
        return [score**exponent for score in scores]


class StepCosts:
    """Models the seconds of a step as a + c * tokens, by least squares with exponential forgetting.

    vLLM computes the tokens of all rows as one batch without padding, so the time of a step depends on their total
    number, not on which row they belong to or whether they were drafted. Errors are weighted relative to the step's
    time, so that a step delayed by something else on the machine counts little.
    """

    def __init__(self) -> None:
        # Weighted sums over steps of 1, tokens, tokens squared, seconds, and seconds times tokens.
        self._sums = (0.0, 0.0, 0.0, 0.0, 0.0)
        self._start, self._token = 1.0, PRIOR  # a, c

    def observe(self, tokens: int, seconds: float) -> None:
        """Add a step's number of tokens and its time."""
        weight = seconds**-2
        ones, firsts, squares, times, products = self._sums
        ones = MEMORY * ones + weight
        firsts = MEMORY * firsts + weight * tokens
        squares = MEMORY * squares + weight * tokens**2
        times = MEMORY * times + weight * seconds
        products = MEMORY * products + weight * seconds * tokens
        self._sums = (ones, firsts, squares, times, products)
        # Add the prior as two pseudo-measurements: a step without tokens and one with the mean number of tokens.
        mean = firsts / ones
        unit = times / (ones * (1.0 + PRIOR * mean))
        extra = RIDGE * ones
        ones, firsts, squares = ones + 2 * extra, firsts + extra * mean, squares + extra * mean**2
        times += extra * unit * (2.0 + PRIOR * mean)
        products += extra * unit * (1.0 + PRIOR * mean) * mean
        token = (ones * products - firsts * times) / max(ones * squares - firsts**2, 1e-12 * ones * squares)
        token = min(max(token, 0.0), products / squares)  # neither part of the cost can be negative
        self._start, self._token = max((times - token * firsts) / ones, 0.0), token

    def fit(self, chains: Sequence[Chain]) -> list[list[int]]:
        """The drafts of a step: the most probable tokens of all rows, as many as maximise tokens per second."""
        empty, token = self.seconds(len(chains))
        if len(chains) == 1:
            scores = chains[0][1]  # they fall along a chain
        else:
            scores = sorted(chain.from_iterable([chain_scores for _, chain_scores in chains]), reverse=True)
        produced, seconds, least = float(len(chains)), empty, inf
        for score in scores:
            # Tokens per second rise with each further token, up to one whose score is too low, and fall from there on.
            if score * seconds <= produced * token:
                break
            produced += score
            seconds += token
            least = score
        return cut(chains, max(least, MIN_SCORE))

    def seconds(self, rows: int) -> tuple[float, float]:
        """Seconds of a step without drafts, and of one draft token."""
        empty = self._start + self._token * rows
        return empty, max(self._token, MIN_SLOPE * empty)


def cut(chains: Sequence[Chain], least: float) -> list[list[int]]:
    """The prefix of each chain with scores of at least `least`; scores decrease along a chain."""
    return [list(tokens[: bisect_right(scores, -least, key=neg)]) for tokens, scores in chains]
