"""The copy drafter: every source of a row in one tree."""

from __future__ import annotations

from collections.abc import Sequence

from copyspec.budget import Budget
from copyspec.drafters.alignment import Alignment
from copyspec.drafters.corpus import BORDER, EDIT, REFERENCE, WRITTEN, Corpus
from copyspec.drafters.growth import Cursor, Grown, grow
from copyspec.drafters.priors import PRIORS
from copyspec.drafters.situations import (
    ALIGNED,
    ALIGNED_1,
    ALIGNED_3,
    EDIT_START,
    FAR_BY_KIND,
    NEAR_BY_KIND,
    REFERENCE_START,
    RESUMED_BY_KIND,
    STRIDE,
    resumed,
    resumed_shifts,
)
from copyspec.drafters.suffix import matches
from copyspec.sources import Source
from copyspec.tree import EMPTY, ROOT, DraftTree

NEAR = 32  # positions after the place copied from last that count as near it
LONG_RUN = 4  # tokens copied in a row, outside edited text, after which a copy is expected to resume
RESUME_WITHIN = {True: 48, False: 6}  # tokens after a copy broke off within which it may resume; True: edited text


class CopyDrafter:
    """Drafts by copying from a row's sources, its prompt and its own output."""

    def __init__(self, sources: Sequence[Source], *, eos: int | None, continues_prompt: bool = True) -> None:
        self._corpus = Corpus(sources, eos, continues_prompt)
        edits = self._corpus.starts(EDIT)
        self._edit_start = edits[0] if edits else -1
        self._alignment: Alignment | None = None
        if edits:
            stop = self._corpus.tokens.index(BORDER, self._edit_start)
            self._alignment = Alignment(self._corpus.tokens[self._edit_start : stop])
        self._weights = list(PRIORS)
        self._cursors: list[Cursor] = []
        self._grown = Grown()
        self._anchor = self._edit_start  # where the last copy stood when it broke off
        self._run = LONG_RUN if edits else 0  # how long it was
        self._since = 0  # output tokens since then

    def propose(self, budget: Budget) -> DraftTree:
        """A tree of likely continuations. Time: about linear in the nodes, hardly dependent on the context."""
        if budget.max_nodes <= 0:
            self._cursors, self._grown = [], Grown()
            return EMPTY
        self._cursors = self._find_cursors()
        self._grown = grown = grow(self._corpus.tokens, self._cursors, self._weights, budget.max_nodes)
        return self._tree(grown, budget.cut(grown.scores))

    def accept(self, tokens: Sequence[int]) -> None:
        """Follows the output and learns from what became of the last tree."""
        self._follow(tokens)
        for token in tokens:
            self._corpus.append(token)
            if self._alignment is not None:
                self._alignment.push(token)
        self._cursors, self._grown = [], Grown()

    def _find_cursors(self) -> list[Cursor]:
        corpus = self._corpus
        output_start, kinds = corpus.output_start, corpus.kinds
        anchor = self._anchor
        cursors: list[Cursor] = []
        seen: set[int] = set()
        excess: list[int] = []
        first = 0
        if self._alignment is not None:
            first, excess = self._alignment.excess()
            first += self._edit_start
        for position, length in matches(corpus):
            kind = kinds[position] if position < output_start else WRITTEN
            if kind == EDIT:
                index = position - first
                over = excess[index] if 0 <= index < len(excess) else 99
                family = (
                    ALIGNED if over == 0 else ALIGNED_1 if over == 1 else ALIGNED_3 if over <= 3 else FAR_BY_KIND[0]
                )
            elif anchor >= 0 and 0 <= position - anchor <= NEAR:
                family = NEAR_BY_KIND[kind]
            else:
                family = FAR_BY_KIND[kind]
            cursors.append((position, family * STRIDE + length))
            seen.add(position)
        self._add_resumed(cursors, seen)
        return cursors

    def _add_resumed(self, cursors: list[Cursor], seen: set[int]) -> None:
        """Cursors where nothing matches: the start of the output, and past the place where a copy broke off."""
        corpus = self._corpus
        end = len(corpus.tokens)
        if end == corpus.output_start:
            if self._edit_start >= 0 and self._edit_start not in seen:
                cursors.append((self._edit_start, EDIT_START * STRIDE))
            cursors.extend((start, REFERENCE_START * STRIDE) for start in corpus.starts(REFERENCE) if start not in seen)
            return
        since, anchor = self._since, self._anchor
        if since == 0 or anchor < 0:
            return
        kind = corpus.kinds[anchor] if anchor < corpus.output_start else WRITTEN
        if since > RESUME_WITHIN[kind == EDIT] or (kind != EDIT and self._run < LONG_RUN):
            return
        family = RESUMED_BY_KIND[kind] * STRIDE
        for shift in resumed_shifts(since):
            position = anchor + shift
            if position >= end or (position < corpus.output_start and corpus.kinds[position] != kind):
                break
            if position not in seen:
                cursors.append((position, family + resumed(since, shift)))

    def _follow(self, tokens: Sequence[int]) -> None:
        """Walks the last tree along `tokens`, to know where the copy broke off."""
        children = {
            (parent, token): node
            for node, (parent, token) in enumerate(zip(self._grown.parents, self._grown.tokens, strict=True))
        }
        node, cursors, taken = ROOT, self._cursors, 0
        for token in tokens:
            child = children.get((node, token), -2)
            if child < 0:
                break
            node, cursors, taken = child, self._grown.cursors[child], taken + 1
        weights, text = self._weights, self._corpus.tokens
        best = max(cursors, key=lambda cursor: weights[cursor[1]], default=None)
        rest = len(tokens) - taken
        if best is not None and (taken or best[1] % STRIDE >= 1) and best[1] < EDIT_START * STRIDE:
            # the place is known again
            self._anchor, self._run, self._since = best[0], best[1] % STRIDE, 0
            if rest and best[0] < len(text) and text[best[0]] == tokens[taken]:
                self._anchor, rest = best[0] + 1, rest - 1
        self._since += rest

    def _tree(self, grown: Grown, count: int) -> DraftTree:
        """The first `count` nodes, the most likely chain moved to the front."""
        if not count:
            return EMPTY
        parents = grown.parents
        chain, node = [0], 0
        for child in range(1, count):
            if parents[child] == node:
                chain.append(child)
                node = child
        on_chain = set(chain)
        order = chain + [node for node in range(count) if node not in on_chain]
        place = {node: index for index, node in enumerate(order)}
        place[ROOT] = ROOT
        return DraftTree(
            [grown.tokens[node] for node in order],
            [place[parents[node]] for node in order],
            [grown.scores[node] for node in order],
            [self._corpus.origin(grown.positions[node]) for node in order],
        )
