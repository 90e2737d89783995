"""Cursors: every place of a row's text that may be copied from next, with what is known of it."""

from __future__ import annotations

from collections.abc import Sequence

from copyspec.drafters.alignment import Alignment
from copyspec.drafters.corpus import EDIT, REFERENCE, WRITTEN, Corpus
from copyspec.drafters.growth import Cursor
from copyspec.drafters.situations import (
    ALIGNED,
    ALIGNED_1,
    ALIGNED_3,
    EDIT_START,
    FAR_BY_KIND,
    INPUT_LATER,
    INPUT_START,
    LENGTH,
    LONG_RUNS,
    NEAR_BY_KIND,
    REFERENCE_START,
    RESUMED_BY_KIND,
    STRIDE,
    resumed,
    resumed_shifts,
)
from copyspec.drafters.suffix import LONGEST, matches

NEAR = 32  # positions after the place copied from last that count as near it
KNOWN = 4  # tokens copied in a row from where the edited text was thought to stand, after which it does stand there
LONG_RUN = 4  # tokens copied in a row, outside edited text, after which a copy is expected to resume
RESUME_WITHIN = 6  # tokens after a copy broke off within which it may resume
RESUME_EDIT_WITHIN = 48  # the same in edited text, which is followed to its end
BY_EXCESS = (ALIGNED, ALIGNED_1, ALIGNED_3, ALIGNED_3)  # family of a match by edit cost above the least
FEW_EDITS, EDITED_SHARE = 1, 0.5
"""An encoder's input is followed up to so many edits and, besides, one in two output tokens: of translations and
summaries nearly every token is one, of corrections every tenth to third."""

INSTRUCTION = 12  # tokens of an encoder's input that may stand before the text to edit


class Tracker:
    """Where the output stands in the row's sources: suffix matches, edit alignment, copies that broke off."""

    def __init__(self, corpus: Corpus) -> None:
        self._corpus = corpus
        self._edit_start, self._edit_stop = corpus.followed
        self._alignment: Alignment | None = None
        if self._edit_start:
            free = INSTRUCTION if corpus.follows_input else 0
            self._alignment = Alignment(corpus.tokens[self._edit_start : self._edit_stop], free=free)
        self._follows = self._alignment is not None  # whether the output follows the text that it is aligned with
        self._anchor = self._edit_start  # where the last copy stood when it broke off; 0: none yet
        self._run = 0  # how many tokens it had copied, at most LONGEST
        self._since = 0  # output tokens since then

    def cursors(self) -> list[Cursor]:
        """All places to copy from next; a place appears once."""
        corpus, anchor = self._corpus, self._anchor
        output_start, kinds = corpus.output_start, corpus.kinds
        near = self._alignment.near() if self._alignment is not None and self._follows else {}
        cursors: list[Cursor] = []
        for position, length in matches(corpus):
            kind = kinds[position] if position < output_start else WRITTEN
            excess = near.get(position - self._edit_start)
            if excess is not None:
                family = BY_EXCESS[excess]
            elif anchor > 0 and 0 <= position - anchor <= NEAR:
                family = NEAR_BY_KIND[kind]
            else:
                family = FAR_BY_KIND[kind]
            if length == LONGEST:
                length += _beyond(corpus.tokens, position)
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
            position, self._run, self._since = best[0], LENGTH[best[1]], 0
            if rest and position < len(text) and text[position] == tokens[taken]:
                position, rest = position + 1, rest - 1
            self._anchor = position
        self._since += rest
        if self._alignment is not None:
            self._align(self._alignment, tokens, best)

    def _align(self, alignment: Alignment, tokens: Sequence[int], copied: Cursor | None) -> None:
        """The output grows by `tokens`, the first of them perhaps by what `copied` says. A copy of some tokens shows
        where the output stands in the edited text, and only what came after it is left to align."""
        place, since = self._anchor - self._edit_start, self._since
        inside = 0 <= place <= self._edit_stop - self._edit_start and since <= len(tokens)
        if self._corpus.follows_input:  # perhaps no text that is edited: its costs say so
            alignment.extend(tokens)
            if inside and self._run >= LONGEST and not since and not alignment.holds(place):
                alignment.stand(place)
            written = len(self._corpus.tokens) + len(tokens) - self._corpus.output_start
            self._follows = alignment.least() <= FEW_EDITS + EDITED_SHARE * written
        elif inside and copied is not None and self._run >= (KNOWN if copied[1] // STRIDE == ALIGNED else LONGEST):
            alignment.stand(place)
            alignment.extend(tokens[len(tokens) - since :])
        else:
            alignment.extend(tokens)

    def _add_starts(self, cursors: list[Cursor]) -> None:
        """Before the first token of output nothing need match."""
        corpus = self._corpus
        seen = {position for position, _ in cursors}
        if self._alignment is not None and self._edit_start not in seen:
            cursors.append((self._edit_start, INPUT_START if corpus.follows_input else EDIT_START * STRIDE))
        if corpus.follows_input:
            later = range(self._edit_start + 1, min(self._edit_start + INSTRUCTION + 1, self._edit_stop))
            cursors += [(position, INPUT_LATER) for position in later if position not in seen]
        for start in corpus.starts(REFERENCE):
            if start not in seen:
                cursors.append((start, REFERENCE_START * STRIDE))

    def _add_resumed(self, cursors: list[Cursor]) -> None:
        """Where nothing matches, a copy that broke off may resume: past a substitution, insertion or deletion."""
        corpus, anchor, since = self._corpus, self._anchor, self._since
        kind = corpus.kinds[anchor] if anchor < corpus.output_start else WRITTEN
        edited = kind == EDIT or (self._follows and self._edit_start <= anchor <= self._edit_stop)
        if edited:
            if since > RESUME_EDIT_WITHIN:
                return
        elif since > RESUME_WITHIN or self._run < LONG_RUN:
            return
        seen = {position for position, _ in cursors}
        family = RESUMED_BY_KIND[EDIT if edited else kind] * STRIDE
        end = len(corpus.tokens) if kind == WRITTEN else corpus.output_start
        for shift in resumed_shifts(since):
            position = anchor + shift
            if position < end and position not in seen and (kind == WRITTEN or corpus.kinds[position] == kind):
                cursors.append((position, family + resumed(since, shift)))


def _beyond(tokens: list[int], position: int) -> int:
    """How many of LONG_RUNS the match before `position`, known to be of LONGEST, reaches."""
    known, end = LONGEST, len(tokens)
    for reached, length in enumerate(LONG_RUNS):
        if position < length or tokens[position - length : position - known] != tokens[end - length : end - known]:
            return reached
        known = length
    return len(LONG_RUNS)
