"""Simulates decoding in time: recorded outputs, real drafts, and pass times from a given curve.

On a busy machine measured times are unreliable. Here the controller of `copyspec.budget` reads a simulated clock, which
advances by the curve's time with every pass and by a fixed time with every draft. Its decisions, and its gain or loss
against plain decoding, are therefore the same in every run.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch

from benchmarks.speed.prompts import Case
from copyspec.budget import Budget, CostModel
from copyspec.decoding.loop import DecodeSettings, decode
from copyspec.decoding.requests import Request
from copyspec.decoding.stats import Stats
from copyspec.drafters.base import Drafter
from copyspec.drafters.predictors.ngrams import KEY_BITS, KEY_MASK, ORDERS, NGrams, context
from copyspec.options import DraftOptions, SamplingOptions
from copyspec.sources import Source
from copyspec.targets.base import Scores, Session, Target
from copyspec.tree import DraftTree


@dataclass(frozen=True, slots=True)
class Device:
    """Times of a target's forward passes."""

    seconds: float  # per pass over one token
    costs: Mapping[int, float]  # by number of tokens beyond the first, in units of that pass; interpolated linearly
    prefill: float  # per prompt token, in the same units
    draft_seconds: float = 1e-4  # per call of the drafter
    noise: float = 0.0  # standard deviation of the logarithm of a pass's time

    def units(self, tokens: int) -> float:
        """Cost of a pass over so many tokens of all rows."""
        more, (*_, before, last) = tokens - 1, self.costs if len(self.costs) > 1 else (0, 1)
        if more <= last:
            return float(np.interp(more, list(self.costs), list(self.costs.values())))
        slope = (self.costs[last] - self.costs[before]) / (last - before) if len(self.costs) > 1 else 0.0
        return self.costs[last] + slope * (more - last)


DEVICES: Mapping[str, Device] = {
    "cpu-float32": Device(
        0.170,
        {0: 1, 1: 1.10, 2: 1.16, 3: 1.95, 4: 2.0, 6: 2.7, 8: 2.85, 12: 4.0, 16: 2.75, 24: 3.2, 32: 3.6, 64: 5.0},
        prefill=0.045,
    ),
    "cpu-bfloat16": Device(0.175, {0: 1, 1: 1.07, 4: 1.15, 8: 1.18, 16: 1.25, 32: 1.4, 64: 1.8}, prefill=0.012),
    "gpu": Device(0.02, {0: 1, 1: 1.03, 32: 1.08, 64: 1.15, 256: 1.9, 1024: 5.0}, prefill=0.005),
    "small": Device(0.004, {0: 1, 1: 1.25, 32: 2.0, 64: 3.0}, prefill=0.02),
}
"""Typical curves: qwen2.5-0.5b on one thread in two precisions (in float32 few rows are slow); a GPU while passes are
bound by memory; and a model so small that a draft takes a fortieth of a pass."""


class Clock:
    """A clock, in seconds, that advances only when it is set."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass(slots=True)
class Outcome:
    """Result of simulating some cases."""

    outputs: list[list[int]]
    seconds: float
    stats: list[Stats] = field(default_factory=list)


MakeDrafter = Callable[[Case, frozenset[int]], Drafter]


def simulate(
    cases: Sequence[Case],
    device: Device,
    draft: DraftOptions,
    costs: CostModel,
    make: MakeDrafter | None,
    *,
    max_new_tokens: int = 512,
    batch_size: int = 1,
    seed: int = 0,
) -> Outcome:
    """Decode the recorded outputs of `cases` in simulated time. `make`: makes a row's drafter; None: plain decoding."""
    dense = _Dense(cases)
    clock = Clock()
    costs.clock = clock
    target: Target = _Target(dense, device, clock, random.Random(seed))
    eos = frozenset(row[-1] for row in dense.outputs)
    requests = []
    for case, recorded in zip(dense.cases, dense.outputs, strict=True):
        drafter = None if make is None else partial(_slow, make, case, eos, clock, device.draft_seconds)
        limit = min(max_new_tokens, len(recorded))
        requests.append(Request(case.prompt, limit, SamplingOptions(), eos, case.sources, drafter))
    outcome = Outcome([[] for _ in cases], 0.0)
    for step in decode(target, requests, DecodeSettings(draft, batch_size), costs):
        for output in step:
            outcome.outputs[output.row].extend(output.tokens)
            if output.stats is not None:
                outcome.stats.append(output.stats)
    expected = [row[:max_new_tokens] for row in dense.outputs]
    assert outcome.outputs == expected, "a simulated run must say what was recorded"
    outcome.seconds = clock.now
    return outcome


class AlwaysWrong:
    """A drafter that is always wrong and always confident, with as many nodes as allowed, in one or several chains.

    Its tokens do not occur in the recorded output.
    """

    def __init__(self, case: Case, score: float = 0.95, width: int = 1) -> None:
        tokens = set(case.recorded or ())
        self._wrong = [token for token in range(len(tokens) + 2 * width + 2) if token not in tokens][: max(width, 1)]
        self._score, self._width = score, width

    def propose(self, budget: Budget) -> DraftTree:
        """Return `width` chains of equal length, with the same score for each node."""
        tokens: list[int] = []
        parents: list[int] = []
        scores: list[float] = []
        for index in range(budget.max_nodes):
            parent = index - self._width
            tokens.append(self._wrong[index % self._width])
            parents.append(max(parent, -1))
            scores.append((1.0 if parent < 0 else scores[parent]) * self._score / (1 if parent >= 0 else self._width))
        return DraftTree(tokens, parents, scores, [None] * len(tokens))

    def accept(self, tokens: Sequence[int]) -> None:
        """Learn nothing."""


SPARE = 80  # tokens that no text contains


class _DenseNGrams(NGrams):
    """N-grams in the token ids of a simulated vocabulary. Tokens outside it are wrong and become spare ones."""

    def __init__(self, ngrams: NGrams, ids: Mapping[int, int]) -> None:
        self._ngrams, self._ids, self._tokens_of, self.arrays = ngrams, ids, list(ids), None
        self.small_words, self.word_pieces = (
            frozenset(ids[token] for token in tokens if token in ids)
            for tokens in (ngrams.small_words, ngrams.word_pieces)
        )

    def share_out(self, weight: float, key: int, least: float) -> list[tuple[int, float]]:
        tokens = []
        while key:
            key, token = key >> KEY_BITS, (key & KEY_MASK >> KEY_BITS * (ORDERS - 1)) - 1
            tokens.append(self._tokens_of[token] if token < len(self._tokens_of) else -1)
        words: dict[int, float] = {}
        for token, part in self._ngrams.share_out(weight, context(tokens[::-1]), least):
            number = self._ids.get(token, len(self._ids) + token % SPARE)
            words[number] = words.get(number, 0.0) + part
        return list(words.items())


class _Dense:
    """Cases with tokens renumbered from 0, so that the simulated vocabulary is no larger than the texts need."""

    def __init__(self, cases: Sequence[Case]) -> None:
        ids: dict[int, int] = {}

        def dense(tokens: Sequence[int]) -> list[int]:
            return [ids.setdefault(token, len(ids)) for token in tokens]

        texts = [
            (
                dense(case.prompt),
                tuple(Source(dense(source.tokens), source.kind) for source in case.sources),
                dense(case.recorded or ()),
            )
            for case in cases
        ]
        ngrams = next((case.ngrams for case in cases if case.ngrams is not None), None)
        renumbered = None if ngrams is None else _DenseNGrams(ngrams, ids)
        self.cases = [Case(*text, renumbered) for text in texts]
        self.outputs = [list(case.recorded or ()) for case in self.cases]
        self.vocab_size = len(ids) + SPARE


class _Slow:
    """A drafter that advances the simulated clock."""

    def __init__(self, drafter: Drafter, clock: Clock, seconds: float, of_node: float) -> None:
        self._drafter, self._clock, self._seconds, self._of_node = drafter, clock, seconds, of_node

    def propose(self, budget: Budget) -> DraftTree:
        tree = self._drafter.propose(budget)
        self._clock.now += self._seconds + self._of_node * len(tree)
        return tree

    def accept(self, tokens: Sequence[int]) -> None:
        self._drafter.accept(tokens)


def _slow(
    make: MakeDrafter, case: Case, eos: frozenset[int], clock: Clock, seconds: float, of_node: float = 0.0
) -> Drafter:
    return _Slow(make(case, eos), clock, seconds, of_node)


class _Target:
    """A target that predicts the recorded tokens. It finds rows by their prompts, since batches may open them in any
    order."""

    supports_trees = supports_drafts = True
    keeps_states = False
    is_encoder_decoder = False
    max_length = encoder_length = None
    device = torch.device("cpu")
    layers_by = "by nobody (outputs are recorded)"

    def __init__(self, dense: _Dense, device: Device, clock: Clock, rng: random.Random) -> None:
        self.vocab_size = dense.vocab_size
        self.whole = [[*case.prompt, *output] for case, output in zip(dense.cases, dense.outputs, strict=True)]
        self.costs, self.clock, self.rng = device, clock, rng
        self._unopened = [(case.prompt, row) for row, case in enumerate(dense.cases)]

    def start(self, prompt: Sequence[int]) -> list[int]:
        return list(prompt)

    def open(self, prompts: Sequence[Sequence[int]], new_tokens: int = 0, *, keeps_states: bool = False) -> Session:
        return _Session(self, prompts)

    def row_of(self, prompt: Sequence[int]) -> int:
        """The number of the next row with this prompt."""
        entry = next(entry for entry in self._unopened if entry[0] == list(prompt))
        self._unopened.remove(entry)
        return entry[1]


class _Session:
    runner = "simulated"
    is_settled = True
    computes: Callable[[int], int] | None = None
    most_tokens = most_nodes = sys.maxsize

    def __init__(self, target: _Target, prompts: Sequence[Sequence[int]]) -> None:
        self._target = target
        self._rows: list[int] = []
        self.lengths: list[int] = []
        self._uncached: Sequence[Sequence[int]] = ()
        self.add(prompts)

    def score_with_states(
        self, uncached: Sequence[Sequence[int]], trees: Sequence[DraftTree], layers: Sequence[int] = ()
    ) -> tuple[Scores, None]:
        return self.score(uncached, trees), None

    def score(self, uncached: Sequence[Sequence[int]], trees: Sequence[DraftTree]) -> Scores:
        target = self._target
        self._uncached = uncached
        upcoming: list[int] = []
        for row, (ids, tree) in enumerate(zip(uncached, trees, strict=True)):
            whole = target.whole[self._rows[row]]
            root = self.lengths[row] + len(ids)
            at = [root, *(root + depth for depth in tree.depths())]
            upcoming += [whole[min(index, len(whole) - 1)] for index in at]
        count, tokens = sum(map(len, uncached)), sum(map(len, uncached)) + sum(map(len, trees))
        is_plain = count == len(uncached)
        units = target.costs.units(tokens) if is_plain else 1.0 + (tokens - 1) * target.costs.prefill
        noise = np.exp(target.rng.gauss(0.0, target.costs.noise)) if target.costs.noise else 1.0
        target.clock.now += target.costs.seconds * units * float(noise)
        logits = torch.zeros(len(upcoming), target.vocab_size).scatter_(1, torch.tensor(upcoming).unsqueeze(1), 1.0)
        return Scores.of_rows(torch.split(logits, [1 + len(tree) for tree in trees]))

    def keep(self, paths: Sequence[Sequence[int]]) -> None:
        for row, (ids, path) in enumerate(zip(self._uncached, paths, strict=True)):
            self.lengths[row] += len(ids) + len(path)

    def trim(self, lengths: Sequence[int]) -> None:
        self.lengths = list(lengths)

    def select(self, rows: Sequence[int]) -> None:
        self._rows = [self._rows[row] for row in rows]
        self.lengths = [self.lengths[row] for row in rows]

    def add(self, prompts: Sequence[Sequence[int]], new_tokens: int = 0) -> None:
        self._rows += map(self._target.row_of, prompts)
        self.lengths += [0] * len(prompts)

    def close(self) -> None:
        self._rows, self.lengths = [], []
