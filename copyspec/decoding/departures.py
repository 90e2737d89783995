"""Where an output leaves the text that it edits, and by how much the model preferred that to going on with the text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from copyspec.drafters.copying.alignment import Alignment

if TYPE_CHECKING:
    import torch


MOST = 1e3
"""No margin is larger: tokens that a processor forbids have no score at all."""


@dataclass(frozen=True, slots=True)
class Departure:
    """One stretch of the edit source that the output does not follow."""

    start: int  # tokens of the source; its length: behind its end
    end: int  # where the output follows it again
    margin: float
    """The score of the first token that differs, less that of the source's own token: nats of the target."""


class Departures:
    """Follows one greedy output along its edit source. While they agree it costs a comparison a token."""

    def __init__(self, source: Sequence[int], eos_token_ids: frozenset[int]) -> None:
        self._source, self._eos = list(source), eos_token_ids
        self._place = 0  # in the source, of the token that the output has if it goes on with it
        self._lost: Alignment | None = None  # of the output since it left the source, and the source from there on
        self._left, self._margin = 0, 0.0
        self._behind: frozenset[int] = frozenset()  # tokens of the source from there on
        self._found: list[Departure] = []

    def follow(self, tokens: Sequence[int], scores: Callable[[int], torch.Tensor]) -> None:
        """The next output tokens; `scores` of an index among them: those it was picked from, [V]."""
        source, place = self._source, self._place
        if self._lost is None and source[place : place + len(tokens)] == tokens:
            self._place += len(tokens)
            return
        for index, token in enumerate(tokens):
            if self._lost is not None:
                self._find(token)
            elif self._place < len(source) and token == source[self._place]:
                self._place += 1
            elif self._place < len(source) or token not in self._eos:
                self._leave(token, scores(index))

    def found(self) -> tuple[Departure, ...]:
        """All of them, when the output has ended."""
        if self._lost is None:
            return tuple(self._found)
        return (*self._found, Departure(self._left, len(self._source), self._margin))

    def _leave(self, token: int, scores: torch.Tensor) -> None:
        own = [self._source[self._place]] if self._place < len(self._source) else sorted(self._eos)
        known = [each for each in own if 0 <= each < len(scores)]
        picked, *others = scores[[token, *known]].tolist()
        self._left, self._margin = self._place, min(picked - max(others, default=-MOST), MOST)
        rest = self._source[self._place :]
        self._lost, self._behind = Alignment(rest), frozenset(rest)
        self._find(token)

    def _find(self, token: int) -> None:
        """Whether the output has come back: its last token is the source's, at the place that fits best."""
        assert self._lost is not None
        self._lost.extend([token])
        if token not in self._behind:
            return
        place = self._left + self._lost.best()
        if place > self._left and self._source[place - 1] == token:
            self._found.append(Departure(self._left, place - 1, self._margin))
            self._place, self._lost = place, None
