"""Lets smaller correctors write hypotheses: full corrections that drafts for a larger model are copied from.

The smaller corrector decodes each text once, and hands over its correction as text, together with versions that hold
its second choices. The tokenizers may therefore differ. The larger model's output does not change.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Protocol

from copyspec.engine.results import Result

logger = logging.getLogger(__name__)

TRIALS = 4
"""Number of texts with a hypothesis, and as many without, before the two are compared."""
LOOK_AGAIN = 16
"""One text in this many is decoded the other way, so that changes are noticed."""
MEMORY = 0.85  # weight of earlier texts in the mean times


class _Writes(Protocol):
    """The part of a corrector that is used here."""

    def versions(self, texts: Iterable[str]) -> list[tuple[str, ...]]: ...


class Price:
    """Decides whether hypotheses pay, by seconds per character with one (including its creation) and without."""

    def __init__(self) -> None:
        self._with = self._without = self._making = 0.0
        self._tried = [0, 0]  # number of texts decoded without and with one
        self._given = 0

    @property
    def pays(self) -> bool:
        """Whether a hypothesis saves time; True until both ways have been tried."""
        if min(self._tried) < TRIALS:
            return True
        return self._with + self._making < self._without

    def choose(self) -> bool:
        """Whether the next text gets a hypothesis."""
        self._given += 1
        if min(self._tried) < TRIALS:
            return self._given % 2 == 0
        return self.pays != (self._given % LOOK_AGAIN == 0)

    def made(self, seconds: float, characters: int) -> None:
        """Record the time to write hypotheses for this many characters."""
        self._making = _mean(self._making, seconds / max(1, characters))

    def decoded(self, seconds: float, characters: int, *, has: bool) -> None:
        """Record the larger model's time for one text; `has`: it had a hypothesis."""
        per_character = seconds / max(1, characters)
        self._tried[has] += 1
        if has:
            self._with = _mean(self._with, per_character)
        else:
            self._without = _mean(self._without, per_character)


def _mean(mean: float, new: float) -> float:
    return MEMORY * mean + (1 - MEMORY) * new if mean else new


class Hypotheses:
    """Runs the smaller correctors ahead of the larger model, on a batch of texts at once."""

    def __init__(self, correctors: Iterable[_Writes], batch_size: int) -> None:
        self._correctors = tuple(correctors)
        self._batch_size = batch_size
        self.price = Price()
        self._had: dict[int, bool] = {}  # by index of a text that is being decoded

    def with_hypotheses(self, texts: Iterable[str | None]) -> Iterator[tuple[str, tuple[str, ...]] | None]:
        """Yield each text with its hypotheses, () if they do not pay, or None while no text is available."""
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

    def on_start(self, index: int, hypotheses: tuple[str, ...]) -> None:
        """Record that decoding of text `index` has begun, with these hypotheses."""
        self._had[index] = bool(hypotheses)

    def on_done(self, index: int, text: str, result: Result | None) -> None:
        """Record that the text has been decoded."""
        has, rows = self._had.pop(index, False), min(self._batch_size, len(self._had) + 1)
        if result is not None:  # a pass takes the same time for all rows in it
            self.price.decoded(result.stats.seconds / rows, len(text), has=has)

    def _written(self, texts: list[str]) -> Iterator[tuple[str, tuple[str, ...]]]:
        chosen = [self.price.choose() for _ in texts]
        selected = [text for text, wanted in zip(texts, chosen, strict=True) if wanted]
        started = time.perf_counter()
        by_corrector = [corrector.versions(selected) for corrector in self._correctors if selected]
        versions = [tuple(chain(*row)) for row in zip(*by_corrector, strict=True)] if by_corrector else []
        if selected:
            self.price.made(time.perf_counter() - started, sum(map(len, selected)))
        written = iter(versions)
        for text, wanted in zip(texts, chosen, strict=True):
            yield text, next(written) if wanted else ()
