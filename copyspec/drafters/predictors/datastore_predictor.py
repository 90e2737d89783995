"""A datastore as predictor (REST): the tokens that followed the end of the output in a corpus, mixed with copies."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from copyspec.drafters.predictors.base import Path, TokenProbs, Weights
from copyspec.drafters.predictors.store import CONTEXT_TOKENS, CONTINUATION_TOKENS, MAX_HITS, Hit, HitRates, Store

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
        predicted.sort(key=lambda each: -each[1])
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
                (self._matched, _), found = self._store.find(self._context, CONTINUATION_TOKENS, MAX_HITS)
                self._hits = list(found)
        return self._hits
