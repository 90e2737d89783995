"""Predictors: drafters that say which tokens come next with which probability, and what such words are worth."""

from __future__ import annotations

import math
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
PRIOR_HITS = 0.5
FORGET = 0.01  # of a bad record, for each draft that the model was not asked for: it is asked again now and then
SUREST = 0.99  # no record makes a word surer

LEFT = (0.4, 0.15, 0.05)  # probabilities that copies leave to other tokens: a weight for each range, in this order
PRIOR_WEIGHTS = (4.0, 2.0, 1.0, 0.5)
LEAST_WEIGHT, MOST_WEIGHT = 0.05, 64.0
RATE = 0.5  # step of a weight's logarithm, by its gradient


class Predictor(Protocol):
    """One row's view of a model, or of a table, that predicts."""

    @property
    def kind(self) -> str:
        """What its tokens are called in the stats: "model", "heads", "pool" or "datastore"."""
        ...

    @property
    def can_read(self) -> bool:
        """Whether a `read` may tell it what comes after paths that it knows nothing of."""
        ...

    def weight(self, left: float) -> float:
        """How much its word counts, on the scale of `Estimates`, beside copies that leave the probability `left`
        to other tokens."""
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

    def rest(self) -> None:
        """It is not asked for this draft: it would not pay."""
        ...

    def learn(self, left: float, gradient: float) -> None:
        """`gradient`: of the log-likelihood of one output token by the logarithm of `weight(left)`."""
        ...


class Reliability:
    """How often the words of a model are right, by the probability that it gave them.

    A model that drafts for another is right more or less often than it says: a greedy target takes its likeliest
    token always, and a draw with shared noise agrees more often than two independent ones would.
    """

    def __init__(self) -> None:
        self._right = [0.0] * BINS
        self._expected = [0.0] * BINS
        self.hits = PRIOR_HITS
        """How often the likeliest word was right of late."""

    def __call__(self, probability: float) -> float:
        """The chance that a word of this `probability` is right."""
        bin_ = _bin(probability)
        ratio = (self._right[bin_] + TRUST * (bin_ + 0.5) / BINS) / (self._expected[bin_] + TRUST * (bin_ + 0.5) / BINS)
        return min(probability * ratio, SUREST)

    def rest(self) -> None:
        """The model was not asked: what its words were worth is a little less certain now."""
        self.hits += FORGET * (PRIOR_HITS - self.hits)

    def record(self, words: Words, token: int) -> None:
        """A model said `words` as it gave them, and `token` came."""
        self.hits = DECAY * self.hits + (1 - DECAY) * (words[0][0] == token)
        for word, probability in words:
            self._record(probability, word == token)

    def _record(self, probability: float, right: bool) -> None:
        bin_ = _bin(probability)
        self._right[bin_] = self._right[bin_] * DECAY + right
        self._expected[bin_] = self._expected[bin_] * DECAY + probability


class Weights:
    """What a model's word counts beside copies, by how sure the copies are: learned from which of them was right."""

    def __init__(self, prior: Sequence[float] = PRIOR_WEIGHTS) -> None:
        self._weights = list(prior)

    def __call__(self, left: float) -> float:
        return self._weights[_bucket(left)]

    def learn(self, left: float, gradient: float) -> None:
        """As `Predictor.learn`."""
        bucket = _bucket(left)
        weight = self._weights[bucket] * math.exp(RATE * gradient)
        self._weights[bucket] = min(MOST_WEIGHT, max(LEAST_WEIGHT, weight))


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


def walked(tree: DraftTree, tokens: Sequence[int]) -> list[int]:
    """The nodes of `tree` along `tokens`, as far as it holds them."""
    found: list[int] = []
    node = ROOT
    for child, parent in enumerate(tree.parents):  # children come after their parents
        if len(found) < len(tokens) and parent == node and tree.tokens[child] == tokens[len(found)]:
            found.append(child)
            node = child
    return found


def _bucket(left: float) -> int:
    return sum(left < border for border in LEFT)


def _bin(probability: float) -> int:
    return min(int(probability * BINS), BINS - 1)
