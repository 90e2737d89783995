"""A datastore as predictor (REST): the tokens that followed the end of the output in a corpus, mixed with copies."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Protocol

from copyspec.drafters.predictors.base import Path, TokenProbs, Weights

MAX_HITS = 64  # matches read per step: more change few trees and cost two microseconds each
CONTINUATION_TOKENS = 16  # tokens of continuation read from each match: deeper nodes are hardly ever accepted
CONTEXT_TOKENS = 32  # last tokens of the text that are looked up

PRIOR_RATES = (0.05, 0.34, 0.45, 0.45, 0.52, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8)
"""Probability that one of the drafted next tokens is right, by length of the match; the last entry is for all longer
matches. Lengths up to five are measured on recorded chats, answers and summaries, with a datastore of 8 million tokens
of books and articles."""

PRIOR_COUNT = 8.0  # PRIOR_RATES count as much as this many proposals of this output
RATE_DECAY = 0.97  # of the learned rates, per proposal, because an output moves from one subject to another

Hit = tuple[int, int, Sequence[int], float]
"""(document, offset, tokens, weight)."""

MIN_PROBABILITY = 0.01  # predictions of lower probability are not worth a node on any device

PRIOR_WEIGHTS = (2.0, 1.0, 0.3, 0.1)
"""Initial weights beside copies: as low as that of a copy found by a match of one token."""

PLACES = (1, 3, 15)
PATH_FACTORS = (0.3, 0.4, 0.5, 0.6)
"""Factors on the probability of predictions after a drafted path. The matches were found for the end of the output, and
some of them continue like the draft by chance only. The first three factors are for up to 1, 3 and 15 such matches, the
last for more. Measured: where copies propose only other tokens, such predictions are right .14 to .45 times as often as
the length of the match suggests; where copies propose the same token, just as often."""

ANY = 1 << 32  # the token ids of a datastore are lower


class Store(Protocol):
    """The look-up that drafts need of a datastore."""

    def find(self, context: Sequence[int], length: int, count: int) -> tuple[tuple[int, int], Sequence[Hit]]:
        """Find the longest suffix of `context` that occurs in the store.

        Returns its length and its number of occurrences, and for up to `count` of them
        (document, offset, at most `length` following tokens, share of the weight)."""


class HitRates:
    """The probability that one of the drafted next tokens is right, by length of the match, as learned so far."""

    def __init__(self) -> None:
        self._right = [PRIOR_COUNT * prior for prior in PRIOR_RATES]
        self._tries = [PRIOR_COUNT] * len(PRIOR_RATES)

    def __call__(self, matched: int) -> float:
        bucket = min(matched, len(PRIOR_RATES) - 1)
        return self._right[bucket] / self._tries[bucket]

    def record(self, matched: int, right: bool) -> None:
        """Record whether one of the tokens drafted after a match of this length was `right`."""
        bucket = min(matched, len(PRIOR_RATES) - 1)
        prior = PRIOR_COUNT * (1 - RATE_DECAY)
        self._right[bucket] = RATE_DECAY * self._right[bucket] + prior * PRIOR_RATES[bucket] + right
        self._tries[bucket] = RATE_DECAY * self._tries[bucket] + prior + 1


class DatastorePredictor:
    """Predicts what followed the longest suffix matches of the output in a datastore; one row's view of it.

    The retrieval is that of REST (He et al. 2024, arXiv 2311.08252). Unlike there, copies from the row's own text can
    outweigh the datastore, with weights that are learned as for draft models.

    `context`: the prompt's tokens. `vocab_size`: of the target; token ids from there on are left out (None: none is).
    """

    kind = "datastore"
    is_model = False

    def __init__(self, store: Store, context: Sequence[int], *, vocab_size: int | None = None) -> None:
        self._store = store
        self._vocab_size = ANY if vocab_size is None else vocab_size
        self._context = list(context[-CONTEXT_TOKENS:])
        self._weights = Weights(PRIOR_WEIGHTS)
        self._rates = HitRates()
        self._matched = 0
        self._hits: list[Hit] | None = None  # of this context; None: not searched yet
        self._groups: dict[Path, list[Hit]] = {}  # the hits, by the beginning of their continuation
        self._predicted: dict[Path, TokenProbs | None] = {}

    def weight(self, miss_prob: float) -> float:
        return self._weights(miss_prob)

    def predict(self, path: Path) -> TokenProbs | None:
        """Return the tokens that follow `path` in the hits' continuations; None if no continuation begins with it."""
        if path not in self._predicted:
            self._predicted[path] = self._predicted_after(path)
        return self._predicted[path]

    def accept(self, tokens: Sequence[int]) -> None:
        predicted = self.predict(()) if tokens and self._hits else None
        if predicted:
            self._rates.record(self._matched, any(token == tokens[0] for token, _ in predicted))
        self._context = [*self._context, *tokens][-CONTEXT_TOKENS:]
        self._hits, self._groups, self._predicted = None, {}, {}

    def update_weight(self, miss_prob: float, gradient: float) -> None:
        self._weights.update(miss_prob, gradient)

    def _predicted_after(self, path: Path) -> TokenProbs | None:
        group, depth = self._going(path), len(path)
        if not group:
            return None
        total = 0.0
        shares: dict[int, float] = {}
        onward: dict[int, list[Hit]] = {}
        for hit in group:
            _, _, tokens, weight = hit
            total += weight
            if depth < len(tokens):
                token = tokens[depth]
                if token in shares:
                    shares[token] += weight
                    onward[token].append(hit)
                elif token < self._vocab_size:
                    shares[token], onward[token] = weight, [hit]
        self._groups.update(((*path, token), hits) for token, hits in onward.items())
        scale = self._rates(self._matched + depth) / total
        if len(group) < len(self._found()):
            scale *= PATH_FACTORS[bisect_left(PLACES, len(group))]
        predicted = [(token, scale * share) for token, share in shares.items() if scale * share >= MIN_PROBABILITY]
        predicted.sort(key=lambda prediction: -prediction[1])
        return predicted or None

    def _going(self, path: Path) -> list[Hit]:
        """The hits whose continuation begins with `path`. `predict` of the parent path groups them by next token."""
        if len(path) > CONTINUATION_TOKENS:  # no continuation is longer, and the recursion would be as deep as the path
            return []
        if not path:
            return self._found()
        if path not in self._groups:
            self.predict(path[:-1])
        return self._groups.get(path, [])

    def _found(self) -> list[Hit]:
        if self._hits is None:
            self._hits = []
            if self._context:
                (self._matched, _), hits = self._store.find(self._context, CONTINUATION_TOKENS, MAX_HITS)
                self._hits = list(hits)
        return self._hits
