"""Corrections by a smaller corrector, as further texts that drafts for a larger model are copied from.

The smaller one writes the whole correction of a text once, by itself, and hands it over as text, with its second
choices in further ones: any tokenizer may be the larger one's. What that writes is its own, to the last token.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Protocol

from copyspec import Result

logger = logging.getLogger(__name__)

TRIALS = 4
"""Texts with a hypothesis, and as many without one, before the two are compared."""
LOOK_AGAIN = 16
"""One text of so many is decoded the other way, so that a change is seen."""
MEMORY = 0.85  # weight of earlier texts in the time of one


class _Writes(Protocol):
    """What of a corrector is used here."""

    def versions(self, texts: Iterable[str]) -> list[tuple[str, ...]]: ...


class Price:
    """Whether hypotheses pay: seconds for each character of a text with one, its making included, and without."""

    def __init__(self) -> None:
        self._with = self._without = self._making = 0.0
        self._tried = [0, 0]  # texts without and with one
        self._given = 0

    @property
    def pays(self) -> bool:
        """True until both ways have been tried."""
        if min(self._tried) < TRIALS:
            return True
        return self._with + self._making < self._without

    def choose(self) -> bool:
        """Whether the next text gets one."""
        self._given += 1
        if min(self._tried) < TRIALS:
            return self._given % 2 == 0
        return self.pays != (self._given % LOOK_AGAIN == 0)

    def made(self, seconds: float, characters: int) -> None:
        """What hypotheses for so many characters took."""
        self._making = _mean(self._making, seconds / max(1, characters))

    def decoded(self, seconds: float, characters: int, *, has: bool) -> None:
        """What the larger model took for a text with a hypothesis, or without one."""
        each = seconds / max(1, characters)
        self._tried[has] += 1
        if has:
            self._with = _mean(self._with, each)
        else:
            self._without = _mean(self._without, each)


def _mean(mean: float, new: float) -> float:
    return MEMORY * mean + (1 - MEMORY) * new if mean else new


class Hypotheses:
    """Asks smaller correctors ahead of the larger model, some texts at once."""

    def __init__(self, correctors: Iterable[_Writes], batch_size: int) -> None:
        self._correctors = tuple(correctors)
        self._batch_size = batch_size
        self.price = Price()
        self._had: dict[int, bool] = {}  # by text that is being decoded

    def ahead(self, texts: Iterable[str | None]) -> Iterator[tuple[str, tuple[str, ...]] | None]:
        """Each text with its hypotheses, none where they do not pay; None where there is none now."""
        waiting: list[str] = []
        for text in texts:
            if text is not None:
                waiting.append(text)
            if waiting and (text is None or len(waiting) >= self._batch_size):
                yield from self._written(waiting)
                waiting = []
            if text is None:
                yield None
        yield from self._written(waiting)

    def begun(self, index: int, hypotheses: tuple[str, ...]) -> None:
        """The text number `index` is now decoded with these."""
        self._had[index] = bool(hypotheses)

    def done(self, index: int, text: str, result: Result | None) -> None:
        """What became of it."""
        has, rows = self._had.pop(index, False), min(self._batch_size, len(self._had) + 1)
        if result is not None:  # the time of a pass is that of all rows
            self.price.decoded(result.stats.seconds / rows, len(text), has=has)

    def _written(self, texts: list[str]) -> Iterator[tuple[str, tuple[str, ...]]]:
        chosen = [self.price.choose() for _ in texts]
        asked = [text for text, wanted in zip(texts, chosen, strict=True) if wanted]
        started = time.perf_counter()
        each = [corrector.versions(asked) for corrector in self._correctors if asked]
        found = [tuple(chain(*row)) for row in zip(*each, strict=True)] if each else []
        if asked:
            self.price.made(time.perf_counter() - started, sum(map(len, asked)))
        written = iter(found)
        for text, wanted in zip(texts, chosen, strict=True):
            yield text, next(written) if wanted else ()
