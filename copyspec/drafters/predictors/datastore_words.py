"""What followed the end of the output in a datastore, as words beside the copies of a row (REST)."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from copyspec.drafters.predictors.base import Path, Weights, Words
from copyspec.drafters.predictors.datastore import (
    CONTEXT,
    DECAY,
    HITS,
    LENGTH,
    PRIOR,
    PRIOR_WEIGHT,
    Store,
)
from copyspec.tree import DraftTree

FEWEST = 0.01  # probability of a word that is said: less likely ones are worth no node on any device

PRIOR_WEIGHTS = (2.0, 1.0, 0.3, 0.1)
"""What a word counts beside copies before it is learned: as little as a match of one token elsewhere."""

PLACES = (1, 3, 15)
BEHIND = (0.3, 0.4, 0.5, 0.6)
"""How much less often words are right behind a draft than the length of the match says: of the places found for the
output's end some happen to go on as the draft does. By how many do: up to each of PLACES, then more. Where copies offer
other tokens only they are right .14 to .45 times as often as expected, where copies know the token too as often."""

ANY = 1 << 32  # ids of a datastore are below

_Hit = tuple[int, int, Sequence[int], float]


class DatastorePredictor:
    """Says what followed the longest matches of the output's end in a datastore, and how likely that is.

    The retrieval of REST (He et al. 2024, arXiv 2311.08252) without its drawback: where the row's own text says
    more, copies outvote the store, by weights that are learned as those of draft models are. One row's view.

    `context`: the prompt's tokens. `vocab_size`: of the target, which has no token from there on; None: any.
    """

    kind = "datastore"
    can_read = False
    seconds = 0.0  # of a read: the store is looked up when the first word is asked for

    def __init__(self, store: Store, context: Sequence[int], *, vocab_size: int | None = None) -> None:
        self._store = store
        self._vocab_size = ANY if vocab_size is None else vocab_size
        self._context = list(context[-CONTEXT:])
        self._weights = Weights(PRIOR_WEIGHTS)
        self._right = [PRIOR_WEIGHT * prior for prior in PRIOR]
        self._tries = [PRIOR_WEIGHT] * len(PRIOR)
        self._matched = 0
        self._hits: list[_Hit] | None = None  # of this context; None: not looked up yet
        self._groups: dict[Path, list[_Hit]] = {}  # the places found by what they go on with
        self._said: dict[Path, Words | None] = {}

    @property
    def hits(self) -> float:
        """How often one of the words after this context is right."""
        return self._chance(self._matched)

    def weight(self, left: float) -> float:
        return self._weights(left)

    def words(self, path: Path) -> Words | None:
        """What the places found go on with behind `path`; None where none of them goes there."""
        if path not in self._said:
            self._said[path] = self._said_after(path)
        return self._said[path]

    def read(self, tree: DraftTree) -> bool:
        """There is nothing to read: one look-up finds all that is said."""
        return False

    def follow(self, tokens: Sequence[int]) -> None:
        said = self.words(()) if tokens and self._hits else None
        if said:
            bucket = min(self._matched, len(PRIOR) - 1)
            prior = PRIOR_WEIGHT * (1 - DECAY)
            right = any(token == tokens[0] for token, _ in said)
            self._right[bucket] = DECAY * self._right[bucket] + prior * PRIOR[bucket] + right
            self._tries[bucket] = DECAY * self._tries[bucket] + prior + 1
        self._context = [*self._context, *tokens][-CONTEXT:]
        self._hits, self._groups, self._said = None, {}, {}

    def rest(self) -> None:
        pass

    def learn(self, left: float, gradient: float) -> None:
        self._weights.learn(left, gradient)

    def _said_after(self, path: Path) -> Words | None:
        group, depth = self._going(path), len(path)
        if not group:
            return None
        total = 0.0
        shares: dict[int, float] = {}
        onward: dict[int, list[_Hit]] = {}
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
        scale = self._chance(self._matched + depth) / total
        if len(group) < len(self._found()):
            scale *= BEHIND[bisect_left(PLACES, len(group))]
        said = [(token, scale * share) for token, share in shares.items() if scale * share >= FEWEST]
        said.sort(key=lambda each: -each[1])
        return said or None

    def _chance(self, matched: int) -> float:
        bucket = min(matched, len(PRIOR) - 1)
        return self._right[bucket] / self._tries[bucket]

    def _going(self, path: Path) -> list[_Hit]:
        """The places found whose continuation begins with `path`: those of its beginning are told apart first."""
        if not path:
            return self._found()
        if path not in self._groups:
            self.words(path[:-1])
        return self._groups.get(path, [])

    def _found(self) -> list[_Hit]:
        if self._hits is None:
            self._hits = []
            if self._context:
                (self._matched, _), found = self._store.find(self._context, LENGTH, HITS)
                self._hits = list(found)
        return self._hits
