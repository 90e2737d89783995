"""Finds where an output departs from the text that it edits, and how strongly the model preferred to do so."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from copyspec.drafters.copying.alignment import BAND, Alignment, make_alignment

if TYPE_CHECKING:
    import torch


MAX_MARGIN = 1e3
"""Upper bound of a margin: a token that a processor forbids has a score of -inf."""

WINDOW = 1024
"""Source tokens that the output is aligned with where it departs from the source: an alignment with all the rest of a
long source takes up to 0.1 s, at each divergence. The window doubles whenever the output could be near its end."""


@dataclass(frozen=True, slots=True)
class Divergence:
    """A stretch of the edit source that the output does not follow."""

    start: int  # index into the source; the source's length: after its end
    end: int  # index at which the output follows the source again
    margin: float
    """The score of the first differing token less that of the source's token, in nats of the target."""


@dataclass(eq=False, slots=True)
class DivergenceTracker:
    """Follows one greedy output along its edit source. Each token costs one comparison while they agree."""

    _source: list[int]
    _eos: frozenset[int]
    _place: int = 0  # index in the source of the token expected next
    _lost: Alignment | None = None  # aligns the output with the source since they parted
    _left: int = 0
    _margin: float = 0.0
    _since: list[int] = field(default_factory=list)  # the output since they parted
    _window: int = 0  # source tokens aligned with it
    _ahead: frozenset[int] = frozenset()  # tokens of the source in the window from that point on
    _found: list[Divergence] = field(default_factory=list)

    def follow(self, tokens: Sequence[int], scores: Callable[[int], torch.Tensor]) -> None:
        """Add output tokens; `scores(index)` returns those that the token at `index` was picked from, [V]."""
        source, place = self._source, self._place
        if self._lost is None and source[place : place + len(tokens)] == tokens:
            self._place += len(tokens)
            return
        for index, token in enumerate(tokens):
            if self._lost is None:
                if self._place < len(source) and token == source[self._place]:
                    self._place += 1
                    continue
                if self._place == len(source) and token in self._eos:
                    continue
                own = [source[self._place]] if self._place < len(source) else sorted(self._eos)
                scored = scores(index)
                picked, *others = scored[[token, *(other for other in own if 0 <= other < len(scored))]].tolist()
                self._left, self._margin = self._place, min(picked - max(others, default=-MAX_MARGIN), MAX_MARGIN)
                self._since, self._window = [], 0
            self._since.append(token)
            # n tokens can be aligned with the first 2n of the source, as later positions cost more than its start, and
            # the alignment looks up to 2 * BAND further.
            is_near_end = 2 * (len(self._since) + BAND) > self._window < len(source) - self._left
            if self._lost is None or is_near_end:
                self._window = max(WINDOW, 2 * self._window)
                ahead = source[self._left : self._left + self._window]
                self._lost, self._ahead = make_alignment(ahead), frozenset(ahead)
                self._lost.extend(self._since[:-1])
            self._lost.extend([token])
            if token in self._ahead:
                # The output is back where its last token is the source's, at the best-aligned place.
                place = self._left + self._lost.best()
                if place > self._left and source[place - 1] == token:
                    self._found.append(Divergence(self._left, place - 1, self._margin))
                    self._place, self._lost = place, None

    def found(self) -> tuple[Divergence, ...]:
        """Return all divergences, once the output has ended."""
        if self._lost is None:
            return tuple(self._found)
        return (*self._found, Divergence(self._left, len(self._source), self._margin))
