"""The followed text: the one that the output reproduces in order, with edits.

The caller names it (`edit_source`), it is an encoder's input, or it is found by where copies come from.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from copyspec.drafters.copying.alignment import Alignment, make_alignment
from copyspec.drafters.copying.corpus import LONGEST, CopyCorpus
from copyspec.drafters.copying.growth import Cursor
from copyspec.drafters.copying.situations import (
    ALIGNED,
    ALIGNED_1,
    ALIGNED_3,
    EDIT_RESUMED,
    FOLLOWED,
    FOLLOWED_1,
    FOLLOWED_3,
    FOLLOWED_RESUMED,
    STRIDE,
    VERSION,
)
from copyspec.sources import EVEN_ODDS

MIN_RUN_IN_ORDER = 4  # tokens copied in a row from the expected position, after which it counts as certain
MIN_RUN_ELSEWHERE = 8  # tokens copied in a row from another position, after which the output is taken to be there
MAX_GAP = 48  # output tokens after the end of a copy for which the text is still followed

INPUT_FREE_EDITS, INPUT_EDIT_SHARE = 1, 0.5
"""An encoder's input is followed up to this many edits, plus this share of the output tokens: translations and
summaries edit nearly every token, corrections one in ten to one in three."""
INSTRUCTION = 12  # tokens of an instruction that may precede the edited text in an encoder's input

MIN_COPIED, MIN_COPIED_SHARE = 12, 0.4
"""A text that was copied from its start is followed past changes after this many tokens copied in order, if they are at
least this share of the output since. Summaries copy a phrase here and there, corrections copy nearly everything."""
MIN_COPIED_FROM_MIDDLE, MIN_COPIED_FROM_MIDDLE_SHARE = 24, 0.7
"""The same for copies that began in the middle of a text, as quotations in answers do, which then end."""
START_CREDIT = 12  # tokens counted as copied if the copy began at a likely start of a text in the prompt
START_CREDIT_QUESTION = 10  # the same where the block is likely a question
START_CREDIT_ODDS = EVEN_ODDS  # least odds bucket of such a start
FOUND_FREE_EDITS = 3  # edits allowed since the last certain position, in addition to one per token


@dataclass(slots=True)
class Copied:
    """The last copy of the output, and how many tokens came after it."""

    anchor: int = 0  # corpus position after its last copied token; 0: nothing was copied yet
    run: int = 0  # number of tokens copied, at most LONGEST
    since: int = 0  # output tokens after it
    cursor: Cursor | None = None  # the heaviest cursor at the last accepted node; None: there was none


@dataclass(eq=False)
class Followed(ABC):
    """A span of the corpus that the output follows, and the output's position in it."""

    by_excess: ClassVar[tuple[int, int, int, int]] = (ALIGNED, ALIGNED_1, ALIGNED_3, ALIGNED_3)
    """Family of a match, by its edit cost above the minimum."""
    resumed: ClassVar[int] = EDIT_RESUMED
    free_prefix: ClassVar[int] = 0
    """First positions at any of which the output may begin without cost."""

    _corpus: CopyCorpus
    start: int = 0
    stop: int = 0
    alignment: Alignment | None = None  # with the output; None: the text is yet to be found
    is_active: bool = True
    """Whether the output follows it at present."""
    duplicate_spans: Sequence[tuple[int, int]] = ()
    """Spans of the corpus with the same text: copies from them are no evidence of another position."""

    @abstractmethod
    def follow(self, tokens: Sequence[int], copied: Copied) -> None:
        """Append `tokens` to the output; the last `copied.since` tokens of the output were not copied."""


class EditedText(Followed):
    """The text that the caller named as `edit_source`."""

    def follow(self, tokens: Sequence[int], copied: Copied) -> None:
        assert self.alignment is not None
        cursor = copied.cursor
        certain = MIN_RUN_IN_ORDER if cursor is not None and cursor[1] // STRIDE in (ALIGNED, VERSION) else LONGEST
        is_inside = self.start <= copied.anchor <= self.stop and copied.since <= len(tokens)
        if cursor is not None and is_inside and copied.run >= certain:
            # The last copy's end is the output's certain position: only the tokens after it are aligned.
            self.alignment.reset_at(copied.anchor - self.start)
            tokens = tokens[len(tokens) - copied.since :]
        self.alignment.extend(tokens)


class EncoderInput(Followed):
    """An encoder's input. The output may edit it or not, which the edit distance tells."""

    free_prefix = INSTRUCTION

    def follow(self, tokens: Sequence[int], copied: Copied) -> None:
        alignment, corpus = self.alignment, self._corpus
        assert alignment is not None
        alignment.extend(tokens)
        place = copied.anchor - self.start
        is_sure = self.start <= copied.anchor <= self.stop and copied.run >= LONGEST and not copied.since
        if is_sure and not alignment.in_band(place):
            alignment.reset_at(place)
        written = len(corpus.tokens) + len(tokens) - corpus.output_start
        self.is_active = alignment.least() <= INPUT_FREE_EDITS + INPUT_EDIT_SHARE * written


@dataclass(eq=False)
class FoundText(Followed):
    """A source that is found to be followed once enough tokens were copied from it in order.

    Only for rows with blocks in the prompt. With references none is searched for, as their own records do better.
    """

    by_excess = (FOLLOWED, FOLLOWED_1, FOLLOWED_3, FOLLOWED_3)
    resumed = FOLLOWED_RESUMED

    is_active: bool = False
    _is_begun: bool = False
    _written: int = 0  # output tokens since it was found
    _in_order: int = 0  # how many of them were copied in order

    def follow(self, tokens: Sequence[int], copied: Copied) -> None:
        if not self._corpus.text_starts:
            return
        new = max(0, len(tokens) - copied.since) if copied.cursor is not None else 0
        stands, in_order = self._where(tokens, copied)
        self._written += len(tokens)
        if in_order or not stands:
            self._in_order += new
        if stands:
            start, stop = self._corpus.around(copied.anchor)
            if self.alignment is None or start != self.start:
                self._find(start, stop, copied)
                self._written += len(tokens)
                self._in_order += new
            assert self.alignment is not None
            self.alignment.reset_at(copied.anchor - self.start)
            self.alignment.extend(tokens[len(tokens) - copied.since :])
        elif self.alignment is not None:
            self.alignment.extend(tokens)
        if self.alignment is not None:
            least, share = MIN_COPIED, MIN_COPIED_SHARE
            if not self._is_begun:
                least, share = MIN_COPIED_FROM_MIDDLE, MIN_COPIED_FROM_MIDDLE_SHARE
            self.is_active = (
                self._in_order >= max(least, share * self._written)
                and copied.since <= MAX_GAP
                and self.alignment.least() <= FOUND_FREE_EDITS + copied.since  # last: it is what takes time
            )

    def _where(self, tokens: Sequence[int], copied: Copied) -> tuple[bool, bool]:
        """Whether the last copy settles the output's position, and whether it is the expected one."""
        if copied.cursor is None or copied.since > len(tokens) or not 0 < copied.anchor < self._corpus.output_start:
            return False, False
        in_order = FOLLOWED <= copied.cursor[1] // STRIDE <= FOLLOWED_3
        if in_order:
            return copied.run >= (MIN_RUN_IN_ORDER if self.alignment is not None else 1), True
        return copied.run >= (MIN_RUN_ELSEWHERE if self.is_active else MIN_RUN_IN_ORDER), False

    def _find(self, start: int, stop: int, copied: Copied) -> None:
        self.start, self.stop = start, stop
        self.alignment = make_alignment(self._corpus.tokens[start:stop])
        self.duplicate_spans = self._corpus.duplicate_spans(start)
        begun = [self._corpus.text_starts.get(copied.anchor - back, -1) for back in range(copied.run + 2)]
        self._is_begun = max(begun) >= START_CREDIT_ODDS
        credit = START_CREDIT_QUESTION if self._corpus.is_question else START_CREDIT
        self._written = self._in_order = credit if self._is_begun else 0
