"""Predictors: drafters that give next-token probabilities, and the calibration and weights of their predictions.

In this package "copies" are the tokens proposed by copying, and a miss is the event that none of them is right.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from copyspec.common.checks import brief
from copyspec.tree import ROOT, DraftTree

if TYPE_CHECKING:
    from copyspec.options import SamplingOptions

Path = tuple[int, ...]
"""Draft tokens from the root to a node; () is the root."""

TokenProbs = Sequence[tuple[int, float]]
"""Predicted next tokens: (token, probability), most likely first. The probabilities sum to at most 1."""

BINS = 10  # bins of probability, calibrated separately
TRUST = 6.0  # predicted tokens after which a bin's observed accuracy counts as much as the model's own probability
DECAY = 0.99  # of the observed accuracy, per predicted token
PRIOR_ACCURACY = 0.5  # accuracy of the most likely token before any was seen
FORGET = 0.01  # step of `top1_accuracy` to its prior per draft made without the model, so that it is tried again
MEMORY = 0.9  # decay of the running average of the time of a run
SLOWEST = 3.0  # times the average that one run may count as
MIN_TIME = 0.25  # of the average, to which it falls while it does not run
MOST_SECONDS = 60.0  # of a run, by what was kept
SUREST = 0.99  # highest calibrated probability

MISS_PROBS = (0.4, 0.15, 0.05)  # borders between ranges of the probability of a miss; each has its own weight
PRIOR_WEIGHTS = (4.0, 2.0, 1.0, 0.5)  # from the range above 0.4 to that below 0.05
MIN_WEIGHT, MAX_WEIGHT = 0.05, 64.0
RATE = 0.5  # learning rate of a weight's logarithm


@dataclass(frozen=True, slots=True)
class RowContext:
    """The row that a `Predictor` is made for; custom drafters get `custom.DraftContext`."""

    prompt: Sequence[int]
    sampling: SamplingOptions
    position: int
    """Absolute position of the output's first token in the target; the sampling noise is keyed by position."""
    vocab_size: int
    """Vocabulary size of the target; higher token ids are not drafted."""


class Predictor(Protocol):
    """One row's view of a table or a neural network that predicts tokens."""

    @property
    def kind(self) -> str:
        """The name of its tokens in the stats: "model", "heads", "pool" or "datastore"."""

    @property
    def is_model(self) -> bool:
        """Whether it is a `NeuralPredictor`."""

    def weight(self, miss_prob: float) -> float:
        """The weight of its predictions, on the scale of `Estimates`, at this probability of a miss."""

    def predict(self, path: Path) -> TokenProbs | None:
        """Return the predictions after `path`; None if a table has none, or a network has not read `path` yet."""

    def accept(self, tokens: Sequence[int]) -> None:
        """Append `tokens` to the output and forget the predictions after the old one."""

    def update_weight(self, miss_prob: float, gradient: float) -> None:
        """Adapt the weight. `gradient`: derivative of the log-likelihood of one output token with respect to the
        logarithm of `weight(miss_prob)`."""


class PredictorFactory(Protocol):
    """For `drafter=`: its predictor drafts in one tree with copies and draft models, weighted by how often it is
    right. Without any of these, alone."""

    def predictor(self, row: RowContext) -> Predictor:
        """Make the predictor of one row."""


class NeuralPredictor(Predictor, Protocol):
    """A network, such as a draft model or heads: it predicts after the paths that its forward passes have read."""

    @property
    def top1_accuracy(self) -> float:
        """Recent share of correct top-1 predictions."""

    @property
    def seconds(self) -> float:
        """Expected time of a `run`, in seconds; 0 before the first measurement."""

    def run(self, tree: DraftTree) -> bool:
        """Compute the predictions after the root and every node of `tree`. Returns False if it cannot."""

    def skip(self) -> None:
        """Note that it was not run for this draft, because that would not pay."""


class RunTime:
    """Measured time of a predictor's runs."""

    def __init__(self) -> None:
        self.seconds = 0.0
        """Running average, lower after skipped runs; 0 before the second run."""
        self._average = 0.0
        self._is_warm = False

    def took(self, seconds: float) -> None:
        """Record that a run took `seconds`. The first one, which may load and convert weights, does not count, and a
        single slow one, when other programs had the core, counts little."""
        if not self._is_warm:
            self._is_warm = True
            return
        if self._average:
            seconds = self._average + (1 - MEMORY) * (min(seconds, SLOWEST * self._average) - self._average)
        self._average = self.seconds = seconds

    def restore(self, seconds: float) -> None:
        """Begin with an average that was measured before."""
        self._average = self.seconds = seconds

    def skip(self) -> None:
        """Note that the predictor was not run, so that it is tried again after a while, should the time have been
        measured too high."""
        self.seconds = max(self.seconds * (1 - FORGET), MIN_TIME * self._average)


class Reliability:
    """Calibration of a model's probabilities: how often tokens of a given probability were right.

    A draft model's probabilities are not acceptance rates: a greedy target always takes its most likely token, and
    draws that share their noise agree more often than independent ones.
    """

    def __init__(self, accuracy: float = PRIOR_ACCURACY) -> None:
        """`accuracy`: that of the most likely token before any was seen."""
        self._right = [0.0] * BINS
        self._expected = [0.0] * BINS
        self._ratios = [1.0] * BINS
        self.top1_accuracy = accuracy
        """Recent share of correct top-1 predictions."""

    def __call__(self, probability: float) -> float:
        """Return the calibrated probability that a token of this `probability` is right."""
        return min(probability * self._ratios[_bin(probability)], SUREST)

    def skip(self) -> None:
        """Note that the model was not called: its measured accuracy moves a little towards the prior."""
        self.top1_accuracy += FORGET * (PRIOR_ACCURACY - self.top1_accuracy)

    def record(self, probs: TokenProbs, token: int) -> None:
        """Record that `token` came where the model had predicted `probs`, uncalibrated."""
        self.top1_accuracy = DECAY * self.top1_accuracy + (1 - DECAY) * (probs[0][0] == token)
        for predicted, probability in probs:
            self._record(probability, predicted == token)

    def _record(self, probability: float, right: bool) -> None:
        bin_ = _bin(probability)
        self._right[bin_] = self._right[bin_] * DECAY + right
        self._expected[bin_] = self._expected[bin_] * DECAY + probability
        self._calibrate(bin_)

    def state(self) -> dict[str, object]:
        """What `restore` takes."""
        return {"right": self._right, "expected": self._expected, "accuracy": self.top1_accuracy}

    def restore(self, state: Mapping[str, object]) -> None:
        """Begin with what was seen before. Raises ValueError for anything but a `state`."""
        most = 2.0 / (1.0 - DECAY)
        right, expected = (_numbers(state.get(name), BINS, 0.0, most) for name in ("right", "expected"))
        (accuracy,) = _numbers([state.get("accuracy")], 1, 0.0, 1.0)
        self._right, self._expected, self.top1_accuracy = right, expected, accuracy
        for bin_ in range(BINS):
            self._calibrate(bin_)

    def _calibrate(self, bin_: int) -> None:
        prior = TRUST * (bin_ + 0.5) / BINS
        self._ratios[bin_] = (self._right[bin_] + prior) / (self._expected[bin_] + prior)


class Weights:
    """Weights of a model's predictions beside copies, one for each range of MISS_PROBS, learned from what was right."""

    def __init__(self, prior: Sequence[float] = PRIOR_WEIGHTS) -> None:
        self._weights = list(prior)

    def __call__(self, miss_prob: float) -> float:
        return self._weights[_bucket(miss_prob)]

    @property
    def values(self) -> list[float]:
        """By range of the probability of a miss."""
        return self._weights

    def update(self, miss_prob: float, gradient: float) -> None:
        """As `Predictor.update_weight`."""
        bucket = _bucket(miss_prob)
        weight = self._weights[bucket] * math.exp(RATE * gradient)
        self._weights[bucket] = min(MAX_WEIGHT, max(MIN_WEIGHT, weight))


def calibrated(probs: TokenProbs, reliability: Reliability) -> TokenProbs:
    """Return `probs` with calibrated probabilities, scaled to a sum of at most 1."""
    corrected = [(token, reliability(probability)) for token, probability in probs]
    total = max(1.0, sum(probability for _, probability in corrected))
    return [(token, probability / total) for token, probability in corrected]


class Learned:
    """What is learned of a network while it drafts, for all rows of an engine together."""

    def __init__(self, accuracy: float = PRIOR_ACCURACY) -> None:
        self.reliability = Reliability(accuracy)
        self.weights = Weights()
        self.time = RunTime()

    def state(self) -> dict[str, object]:
        """What `restore` takes, as JSON holds it."""
        return self.reliability.state() | {"weights": self.weights.values, "seconds": self.time.seconds}

    def restore(self, state: Mapping[str, object]) -> None:
        """Begin with what was learned before. Raises ValueError for anything but a `state`, which changes nothing."""
        weights = _numbers(state.get("weights"), len(PRIOR_WEIGHTS), MIN_WEIGHT, MAX_WEIGHT)
        (seconds,) = _numbers([state.get("seconds")], 1, 0.0, MOST_SECONDS)
        self.reliability.restore(state)
        self.weights = Weights(weights)
        self.time.restore(seconds)


class CalibratedPredictor:
    """What the predictors of networks share: probabilities calibrated by the network's accuracy so far."""

    kind = "model"
    is_model = True

    def __init__(self, learned: Learned) -> None:
        self._learned = learned
        self._predicted: dict[Path, TokenProbs] = {}  # uncalibrated predictions since the output last grew
        self._calibrated: dict[Path, TokenProbs] = {}  # calibrated, as far as they were asked for

    def weight(self, miss_prob: float) -> float:
        return self._learned.weights(miss_prob)

    @property
    def top1_accuracy(self) -> float:
        return self._learned.reliability.top1_accuracy

    @property
    def seconds(self) -> float:
        return self._learned.time.seconds

    def predict(self, path: Path) -> TokenProbs | None:
        probs = self._calibrated.get(path)
        if probs is None and (predicted := self._uncalibrated(path)) is not None:
            probs = self._calibrated[path] = calibrated(predicted, self._learned.reliability)
        return probs

    def accept(self, tokens: Sequence[int]) -> None:
        for index, token in enumerate(tokens):
            if predicted := self._uncalibrated(tuple(tokens[:index])):
                self._learned.reliability.record(predicted, token)
        self._predicted.clear()
        self._calibrated.clear()

    def skip(self) -> None:
        self._learned.reliability.skip()
        self._learned.time.skip()

    def update_weight(self, miss_prob: float, gradient: float) -> None:
        self._learned.weights.update(miss_prob, gradient)

    def _uncalibrated(self, path: Path) -> TokenProbs | None:
        return self._predicted.get(path)


def paths(tokens: Sequence[int], parents: Sequence[int]) -> list[Path]:
    """Return the path of each node."""
    node_paths: list[Path] = []
    for token, parent in zip(tokens, parents, strict=True):
        node_paths.append((token,) if parent == ROOT else (*node_paths[parent], token))
    return node_paths


def walked(drafted: Sequence[int], parents: Sequence[int], tokens: Sequence[int]) -> list[int]:
    """Return the nodes that spell the longest prefix of `tokens` in the tree of the tokens `drafted`."""
    nodes: list[int] = []
    node = ROOT
    for child, parent in enumerate(parents):  # children come after their parents
        if len(nodes) < len(tokens) and parent == node and drafted[child] == tokens[len(nodes)]:
            nodes.append(child)
            node = child
    return nodes


def _numbers(values: object, count: int, low: float, high: float) -> list[float]:
    """A list of so many numbers in this range. Raises ValueError for anything else."""
    if isinstance(values, list) and len(values) == count:
        numbers = [float(value) for value in values if type(value) in (int, float) and low <= value <= high]
        if len(numbers) == count:
            return numbers
    raise ValueError(f"it holds {brief(values)} where {count} numbers from {low:g} to {high:g} are expected")


def _bucket(miss_prob: float) -> int:
    return sum(miss_prob < border for border in MISS_PROBS)


def _bin(probability: float) -> int:
    return min(int(probability * BINS), BINS - 1)
