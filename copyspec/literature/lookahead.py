"""Parallel decoding: the target's own parallel guesses serve as drafts, without a draft model.

Jacobi decoding (Santilli et al. 2023, arXiv 2305.10427) feeds a row of guesses to the target and takes its argmax after
each of them as the next guesses. Lookahead decoding (Fu et al. 2024, arXiv 2402.02057) keeps several such rows, whose
columns form n-grams, and drafts the n-grams that begin with the last token. Both are trees here: the first row is a
chain, and each column hangs from its token there, so one forward pass with one mask reads guesses and drafts.

    copyspec.generate(prompt, drafter=copyspec.Lookahead(window=5, ngram=4))
    copyspec.generate(prompt, drafter=["auto", copyspec.Lookahead()])   # beside copies
"""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from copyspec.budget import Budget
from copyspec.common.checks import check_whole
from copyspec.drafters.base import Drafter, ScoredDraft
from copyspec.drafters.custom import DraftContext
from copyspec.drafters.predictors.base import Path, paths
from copyspec.tree import EMPTY, ROOT, DraftTree

POOL_TOKENS = 4096
"""The n-gram pool keeps n-grams for this many first tokens; the least recently used one is dropped."""

GRAM_CHANCE, GUESS_CHANCE = 0.3, 0.1
"""Initial probabilities that the next token of a pooled n-gram, and of a row of guesses, is accepted."""

MEMORY = 0.95  # decay of these two running averages, per forward pass


@dataclass(frozen=True, slots=True)
class Lookahead:
    """Lookahead decoding, for `drafter=`. Raises ValueError if a size is out of range."""

    window: int = 5  # columns, W
    ngram: int = 4  # tokens of an n-gram, N: N - 1 rows of guesses
    candidates: int = 4  # n-grams verified per forward pass, G

    def __post_init__(self) -> None:
        check_whole("window", self.window, low=1, high=64)
        check_whole("ngram", self.ngram, low=2, high=16)
        check_whole("candidates", self.candidates, low=1, high=64)

    def __call__(self, context: DraftContext) -> Drafter:
        """Make the drafter of one row."""
        return LookaheadDrafter(self, context.prompt)


@dataclass(frozen=True, slots=True)
class Jacobi:
    """Plain Jacobi decoding, for `drafter=`. Raises ValueError if `tokens` is out of range."""

    tokens: int = 8  # length of the chain of guesses

    def __post_init__(self) -> None:
        check_whole("tokens", self.tokens, low=1, high=256)

    def __call__(self, context: DraftContext) -> Drafter:
        """Make the drafter of one row."""
        return JacobiDrafter(self, context.prompt)


class _Guessing:
    """State shared by both drafters: the last token, the target's argmax after each node, and initial guesses."""

    def __init__(self, prompt: Sequence[int]) -> None:
        self._last = prompt[-1] if len(prompt) else 0
        self._first = list(prompt) or [0]
        self._random = random.Random(0)
        self._predicted: Mapping[Path, int] = {}
        self._was_asked = False  # for a draft, since the output last grew

    def observe(self, scored: ScoredDraft) -> None:
        """Keep the target's most likely token after the root and each node."""
        nodes = [(), *paths(scored.tree.tokens, scored.tree.parents)]
        self._predicted = {path: words[0][0] for path, words in zip(nodes, scored.top(1), strict=True)}

    def _guess(self) -> int:
        """A random token of the prompt."""
        return self._random.choice(self._first)


class JacobiDrafter(_Guessing):
    """Drafts a chain of guesses: each is the target's argmax after the guesses before it in the last forward pass."""

    def __init__(self, options: Jacobi, prompt: Sequence[int]) -> None:
        super().__init__(prompt)
        self._options = options
        self._chain = [self._guess() for _ in range(options.tokens)]
        self._chance = GUESS_CHANCE

    def propose(self, budget: Budget) -> DraftTree:
        """Return the chain of guesses, cut to `budget.max_nodes`."""
        self._was_asked = True
        return DraftTree.of_chain(self._chain[: max(0, budget.max_nodes)], self._chance)

    def accept(self, tokens: Sequence[int]) -> None:
        """Drop the accepted guesses and replace the others by the target's argmax at their positions."""
        right = 0
        while right < min(len(tokens) - 1, len(self._chain)) and self._chain[right] == tokens[right]:
            right += 1
        if self._was_asked:  # the guess may have been right although the pass left it out
            self._chance = MEMORY * self._chance + (1 - MEMORY) * (self._chain[0] == tokens[0])
        predicted = [
            self._predicted.get(tuple(self._chain[:length])) for length in range(right + 1, len(self._chain) + 1)
        ]
        known = [token for token in predicted if token is not None]
        self._chain = [*known, *(self._guess() for _ in range(self._options.tokens - len(known)))]
        self._predicted, self._was_asked = {}, False


class LookaheadDrafter(_Guessing):
    """Drafts n-grams from a pool, and rows of guesses whose columns fill it. Each sequence has its own pool."""

    def __init__(self, options: Lookahead, prompt: Sequence[int]) -> None:
        super().__init__(prompt)
        self._options = options
        self._rows = [[self._guess() for _ in range(options.window)] for _ in range(options.ngram - 1)]
        self._pool: OrderedDict[int, OrderedDict[Path, None]] = OrderedDict()
        self._gram_chance, self._guess_chance = GRAM_CHANCE, GUESS_CHANCE
        self._proposed: list[Path] = []

    def propose(self, budget: Budget) -> DraftTree:
        """Return n-grams that begin with the last token, then as many columns of guesses as there is room for."""
        if budget.max_nodes <= 0:
            return EMPTY
        chances: dict[Path, float] = {}
        self._was_asked = True
        self._proposed = list(reversed(self._pool.get(self._last, ())))[: self._options.candidates]
        for gram in self._proposed:
            _add(chances, gram, self._gram_chance, budget.max_nodes)
        for column in range(self._options.window):
            if len(chances) + self._options.ngram - 1 > budget.max_nodes:
                break
            _add(chances, self._column(column), self._guess_chance, budget.max_nodes)
        return _tree(chances)

    def accept(self, tokens: Sequence[int]) -> None:
        """Put the completed columns into the pool and shift the rows up by one."""
        if self._proposed:  # n-grams and guesses may have been right although the pass left them out
            hit = any(gram[0] == tokens[0] for gram in self._proposed)
            self._gram_chance = MEMORY * self._gram_chance + (1 - MEMORY) * hit
        if self._was_asked:
            self._guess_chance = MEMORY * self._guess_chance + (1 - MEMORY) * (self._rows[0][0] == tokens[0])
        newest: list[int] = []
        for column in range(self._options.window):
            path = self._column(column)
            predicted = self._predicted.get(path)
            newest.append(self._guess() if predicted is None else predicted)
            if predicted is not None:
                self._keep((*path[column:], predicted))
        self._rows = [*self._rows[1:], newest]
        self._last, self._predicted, self._proposed, self._was_asked = tokens[-1], {}, [], False

    def _column(self, column: int) -> Path:
        """The path to a column's last guess: along the first row to the column, then down."""
        return (*self._rows[0][: column + 1], *(row[column] for row in self._rows[1:]))

    def _keep(self, gram: Path) -> None:
        grams = self._pool.setdefault(gram[0], OrderedDict())
        self._pool.move_to_end(gram[0])
        grams.pop(gram[1:], None)
        grams[gram[1:]] = None
        if len(grams) > self._options.candidates:
            grams.popitem(last=False)
        if len(self._pool) > POOL_TOKENS:
            self._pool.popitem(last=False)


def _add(chances: dict[Path, float], path: Path, chance: float, most: int) -> None:
    """Add the missing nodes of `path`, up to `most` nodes in all."""
    for length in range(1, len(path) + 1):
        if path[:length] not in chances:
            if len(chances) == most:
                return
            chances[path[:length]] = chance**length


def _tree(chances: Mapping[Path, float]) -> DraftTree:
    """The paths as a draft tree, in their order; the first path becomes its first chain."""
    index: dict[Path, int] = {(): ROOT}
    for path in chances:
        index[path] = len(index) - 1
    parents = [index[path[:-1]] for path in chances]
    scores = [min(chance, chances.get(path[:-1], 1.0)) for path, chance in chances.items()]
    return DraftTree([path[-1] for path in chances], parents, scores, [None] * len(chances))
