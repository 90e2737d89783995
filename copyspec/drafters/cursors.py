"""Cursors: every place of a row's text that may be copied from next, with what is known of it."""

from __future__ import annotations

from collections.abc import Sequence

from copyspec.drafters.alignment import Alignment
from copyspec.drafters.corpus import BORDER, EDIT, REFERENCE, WRITTEN, Corpus
from copyspec.drafters.growth import Cursor
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
from copyspec.drafters.suffix import LONGEST, matches

NEAR = 32  # positions after the place copied from last that count as near it
LONG_RUN = 4  # tokens copied in a row, outside edited text, after which a copy is expected to resume
RESUME_WITHIN = 6  # tokens after a copy broke off within which it may resume
RESUME_EDIT_WITHIN = 48  # the same in edited text, which is followed to its end
BY_EXCESS = (ALIGNED, ALIGNED_1, ALIGNED_3, ALIGNED_3)  # family of a match by edit cost above the least
FAR_AWAY = 1 << 30  # edit cost above the least of a position outside the alignment's band


class Tracker:
    """Where the output stands in the row's sources: suffix matches, edit alignment, copies that broke off."""

    def __init__(self, corpus: Corpus) -> None:
        self._corpus = corpus
        edits = corpus.starts(EDIT)
        self._edit_start = edits[0] if edits else 0
        self._edit_stop = self._edit_start
        self._alignment: Alignment | None = None
        if edits:
            self._edit_stop = corpus.tokens.index(BORDER, self._edit_start)
            self._alignment = Alignment(corpus.tokens[self._edit_start : self._edit_stop])
        self._anchor = self._edit_start  # where the last copy stood when it broke off; 0: none yet
        self._run = 0  # how many tokens it had copied, at most LONGEST
        self._since = 0  # output tokens since then

    def cursors(self) -> list[Cursor]:
        """All places to copy from next; a place appears once."""
        corpus, anchor = self._corpus, self._anchor
        output_start, kinds = corpus.output_start, corpus.kinds
        first, excess = self._alignment.excess() if self._alignment is not None else (0, [])
        first += self._edit_start
        cursors: list[Cursor] = []
        for position, length in matches(corpus):
            kind = kinds[position] if position < output_start else WRITTEN
            if kind == EDIT:
                index = position - first
                over = excess[index] if 0 <= index < len(excess) else FAR_AWAY
                family = (
                    ALIGNED if over == 0 else ALIGNED_1 if over == 1 else ALIGNED_3 if over <= 3 else FAR_BY_KIND[EDIT]
                )
            elif anchor > 0 and 0 <= position - anchor <= NEAR:
                family = NEAR_BY_KIND[kind]
            else:
                family = FAR_BY_KIND[kind]
            cursors.append((position, family * STRIDE + length))
        if len(corpus.tokens) == output_start:
            self._add_starts(cursors)
        elif self._since and anchor > 0:
            self._add_resumed(cursors)
        return cursors

    def follow(self, tokens: Sequence[int], taken: int, cursors: Sequence[Cursor], weights: Sequence[float]) -> None:
        """The output grows by `tokens`; the last tree held `taken` of them, and `cursors` stood where it was left."""
        text = self._corpus.tokens
        best = max(cursors, key=lambda cursor: weights[cursor[1]], default=None)
        rest = len(tokens) - taken
        if best is not None and (taken or best[1] % STRIDE) and best[1] < EDIT_START * STRIDE:
            position, self._run, self._since = best[0], best[1] % STRIDE, 0
            if rest and position < len(text) and text[position] == tokens[taken]:
                position, rest = position + 1, rest - 1
            self._anchor = position
        self._since += rest
        if self._alignment is not None:
            for token in tokens:
                self._alignment.push(token)
            if self._run >= LONGEST and self._edit_start <= self._anchor <= self._edit_stop and not self._since:
                self._alignment.reach(self._anchor - self._edit_start)

    def _add_starts(self, cursors: list[Cursor]) -> None:
        """Before the first token of output nothing need match."""
        corpus = self._corpus
        seen = {position for position, _ in cursors}
        if self._alignment is not None and self._edit_start not in seen:
            cursors.append((self._edit_start, EDIT_START * STRIDE))
        for start in corpus.starts(REFERENCE):
            if start not in seen:
                cursors.append((start, REFERENCE_START * STRIDE))

    def _add_resumed(self, cursors: list[Cursor]) -> None:
        """Where nothing matches, a copy that broke off may resume: past a substitution, insertion or deletion."""
        corpus, anchor, since = self._corpus, self._anchor, self._since
        kind = corpus.kinds[anchor] if anchor < corpus.output_start else WRITTEN
        if kind == EDIT:
            if since > RESUME_EDIT_WITHIN:
                return
        elif since > RESUME_WITHIN or self._run < LONG_RUN:
            return
        seen = {position for position, _ in cursors}
        family = RESUMED_BY_KIND[kind] * STRIDE
        end = len(corpus.tokens) if kind == WRITTEN else corpus.output_start
        for shift in resumed_shifts(since):
            position = anchor + shift
            if position < end and position not in seen and (kind == WRITTEN or corpus.kinds[position] == kind):
                cursors.append((position, family + resumed(since, shift)))
