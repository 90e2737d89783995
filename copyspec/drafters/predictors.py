"""Predictors: drafters that say which tokens come next with which probability, and what such words are worth."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from copyspec.tree import ROOT, DraftTree

Path = tuple[int, ...]
"""Draft tokens from the root to a node; () is the root."""

Words = Sequence[tuple[int, float]]
"""What may come next: (token, probability), the likeliest first. The probabilities sum up to at most 1."""

BINS = 10  # of probabilities, each with a record of its own
TRUST = 6.0  # words after which a bin's record counts as much as the model's own probability
DECAY = 0.99  # of the record, per word
SUREST = 0.99  # no record makes a word surer


class Predictor(Protocol):
    """One row's view of a model, or of a table, that predicts."""

    @property
    def kind(self) -> str:
        """What its tokens are called in the stats: "model" or "pool"."""
        ...

    @property
    def weight(self) -> float:
        """How much its word counts beside copies, on the scale of `Estimates`."""
        ...

    @property
    def hits(self) -> float:
        """How often its likeliest word is right."""
        ...

    @property
    def seconds(self) -> float:
        """What a `read` takes; 0 before any was measured."""
        ...

    def words(self, path: Path) -> Words | None:
        """What comes after `path`; None: not known before a `read` that holds it."""
        ...

    def read(self, tree: DraftTree) -> bool:
        """Looks at the root and the nodes of `tree`, whose `words` are known afterwards. False: it cannot."""
        ...

    def follow(self, tokens: Sequence[int]) -> None:
        """The output grew by `tokens`; what was known of the paths after it is forgotten."""
        ...

    def learn(self, gradient: float) -> None:
        """Of the log-likelihood of the output by the logarithm of `weight`, at one token."""
        ...


class Reliability:
    """How often the words of a model are right, by the probability that it gave them.

    A model that drafts for another is right more or less often than it says: a greedy target takes its likeliest
    token always, and a draw with shared noise agrees more often than two independent ones would.
    """

    def __init__(self) -> None:
        self._right = [0.0] * BINS
        self._expected = [0.0] * BINS
        self.hits = 0.5
        """How often the likeliest word was right of late."""

    def __call__(self, probability: float) -> float:
        """The chance that a word of this `probability` is right."""
        bin_ = _bin(probability)
        ratio = (self._right[bin_] + TRUST * (bin_ + 0.5) / BINS) / (self._expected[bin_] + TRUST * (bin_ + 0.5) / BINS)
        return min(probability * ratio, SUREST)

    def record(self, words: Words, token: int) -> None:
        """A model said `words` as it gave them, and `token` came."""
        self.hits = DECAY * self.hits + (1 - DECAY) * (words[0][0] == token)
        for word, probability in words:
            self._record(probability, word == token)

    def _record(self, probability: float, right: bool) -> None:
        bin_ = _bin(probability)
        self._right[bin_] = self._right[bin_] * DECAY + right
        self._expected[bin_] = self._expected[bin_] * DECAY + probability


def calibrated(words: Words, reliability: Reliability) -> Words:
    """`words` as likely as they have been, their sum at most 1."""
    found = [(token, reliability(probability)) for token, probability in words]
    total = max(1.0, sum(probability for _, probability in found))
    return [(token, probability / total) for token, probability in found]


def paths(tokens: Sequence[int], parents: Sequence[int]) -> list[Path]:
    """The path of each node."""
    found: list[Path] = []
    for token, parent in zip(tokens, parents, strict=True):
        found.append((token,) if parent == ROOT else (*found[parent], token))
    return found


def _bin(probability: float) -> int:
    return min(int(probability * BINS), BINS - 1)
