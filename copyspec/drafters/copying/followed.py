"""The text that an output follows in order: told by the caller, read by an encoder, or found by what is copied."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from copyspec.drafters.copying.alignment import Alignment
from copyspec.drafters.copying.context import CopyContext
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
from copyspec.drafters.copying.suffix import LONGEST
from copyspec.text.blocks import EVEN

KNOWN = 4  # tokens copied in a row from where the followed text was thought to stand, after which it does stand there
JUMP = 8  # tokens copied in a row elsewhere, after which that is where the output stands
WITHIN = 48  # tokens after a copy broke off within which it is followed

FEW_EDITS, EDITED_SHARE = 1, 0.5
"""An encoder's input is followed up to so many edits and, besides, one in two output tokens: of translations and
summaries nearly every token is one, of corrections every tenth to third."""
INSTRUCTION = 12  # tokens of an encoder's input that may stand before the text to edit

ESTABLISHED, ESTABLISHED_SHARE = 12, 0.4
"""Tokens copied in order, and their share of those written meanwhile, from which a text copied from its start is
followed past its changes. A summary copies a phrase here and there; a corrected text is nearly all copied."""
UNBEGUN, UNBEGUN_SHARE = 24, 0.7
"""The same of copies that began in the middle of a text: answers quote so, and then go their own way."""
CREDIT = 12  # tokens for which it counts that the copy began where the prompt says that a text starts
CREDIT_ODDS = EVEN  # bucket of such a start, at least
FOUND_EDITS = 3  # edits since the output last stood somewhere for certain, beside one for each token


@dataclass(slots=True)
class Copied:
    """What became of the copy that the last tree held, after some more tokens of output."""

    anchor: int = 0  # where it stood when it broke off; 0: nothing was copied yet
    run: int = 0  # how many tokens it had copied, at most LONGEST
    since: int = 0  # output tokens since then
    cursor: Cursor | None = None  # the heaviest one behind the last accepted draft; None: there was none


class Followed(ABC):
    """A stretch of the corpus that the output follows, and how far it has come in it."""

    by_excess: tuple[int, int, int, int] = (ALIGNED, ALIGNED_1, ALIGNED_3, ALIGNED_3)
    """Family of a match by its edit cost above the least."""
    resumed = EDIT_RESUMED

    def __init__(self, corpus: CopyContext) -> None:
        self._corpus = corpus
        self.start, self.stop = corpus.followed
        self.alignment: Alignment | None = None
        self.is_active = False
        """Whether the output follows it at present."""
        self.doubles: Sequence[tuple[int, int]] = ()
        """Stretches of the corpus with the same text; copies from them are no evidence of another place."""

    def near(self) -> Mapping[int, int]:
        """The positions where the output may stand, and how far their edit cost is above the least."""
        if self.alignment is None or not self.is_active:
            return {}
        return {self.start + place: excess for place, excess in self.alignment.near().items()}

    @abstractmethod
    def follow(self, tokens: Sequence[int], copied: Copied) -> None:
        """The output grows by `tokens`, the last `copied.since` of them behind what was copied."""

    def _stand(self, tokens: Sequence[int], copied: Copied) -> None:
        """The output stands where it was copied from last; only what came after it is left to align."""
        assert self.alignment is not None
        self.alignment.stand(copied.anchor - self.start)
        self.alignment.extend(tokens[len(tokens) - copied.since :])

    def _is_inside(self, tokens: Sequence[int], copied: Copied) -> bool:
        return self.start <= copied.anchor <= self.stop and copied.since <= len(tokens)


class EditedText(Followed):
    """The text that the caller says is edited."""

    def __init__(self, corpus: CopyContext) -> None:
        super().__init__(corpus)
        self.alignment = Alignment(corpus.tokens[self.start : self.stop])
        self.is_active = True

    def follow(self, tokens: Sequence[int], copied: Copied) -> None:
        assert self.alignment is not None
        cursor = copied.cursor
        certain = KNOWN if cursor is not None and cursor[1] // STRIDE in (ALIGNED, VERSION) else LONGEST
        if cursor is not None and self._is_inside(tokens, copied) and copied.run >= certain:
            self._stand(tokens, copied)
        else:
            self.alignment.extend(tokens)


class EncoderInput(Followed):
    """The text that an encoder reads, which may be one to edit or not: the cost of the alignment says so."""

    def __init__(self, corpus: CopyContext) -> None:
        super().__init__(corpus)
        self.alignment = Alignment(corpus.tokens[self.start : self.stop], free=INSTRUCTION)
        self.is_active = True

    def follow(self, tokens: Sequence[int], copied: Copied) -> None:
        alignment, corpus = self.alignment, self._corpus
        assert alignment is not None
        alignment.extend(tokens)
        place = copied.anchor - self.start
        is_sure = self._is_inside(tokens, copied) and copied.run >= LONGEST and not copied.since
        if is_sure and not alignment.in_band(place):
            alignment.stand(place)
        written = len(corpus.tokens) + len(tokens) - corpus.output_start
        self.is_active = alignment.least() <= FEW_EDITS + EDITED_SHARE * written


class FoundText(Followed):
    """The source that copies come from in order, once there are enough of them: of a row whose prompt has blocks.

    Beside references, which the caller says may be copied, none is looked for: their own record serves better there.
    """

    by_excess = (FOLLOWED, FOLLOWED_1, FOLLOWED_3, FOLLOWED_3)
    resumed = FOLLOWED_RESUMED

    def __init__(self, corpus: CopyContext) -> None:
        super().__init__(corpus)
        self._is_begun = False
        self._written = self._in_order = 0  # tokens since it was found, and those of them that were copied in order

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
            self._stand(tokens, copied)
        elif self.alignment is not None:
            self.alignment.extend(tokens)
        if self.alignment is not None:
            least, share = (ESTABLISHED, ESTABLISHED_SHARE) if self._is_begun else (UNBEGUN, UNBEGUN_SHARE)
            is_established = self._in_order >= max(least, share * self._written)
            is_near = copied.since <= WITHIN and self.alignment.least() <= FOUND_EDITS + copied.since
            self.is_active = is_established and is_near

    def _where(self, tokens: Sequence[int], copied: Copied) -> tuple[bool, bool]:
        """Whether the output now stands where it was copied from, and whether that is where it was thought to."""
        if copied.cursor is None or copied.since > len(tokens) or not 0 < copied.anchor < self._corpus.output_start:
            return False, False
        in_order = FOLLOWED <= copied.cursor[1] // STRIDE <= FOLLOWED_3
        if in_order:
            return copied.run >= (KNOWN if self.alignment is not None else 1), True
        return copied.run >= (JUMP if self.is_active else KNOWN), False

    def _find(self, start: int, stop: int, copied: Copied) -> None:
        self.start, self.stop = start, stop
        self.alignment = Alignment(self._corpus.tokens[start:stop])
        self.doubles = self._corpus.doubles(start)
        begun = [self._corpus.text_starts.get(copied.anchor - back, -1) for back in range(copied.run + 2)]
        self._is_begun = max(begun) >= CREDIT_ODDS
        self._written = self._in_order = CREDIT if self._is_begun else 0


def followed_text(corpus: CopyContext) -> Followed:
    """What the output of a row may follow."""
    if not corpus.followed[0]:
        return FoundText(corpus)
    return EncoderInput(corpus) if corpus.follows_input else EditedText(corpus)
