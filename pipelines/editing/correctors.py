"""Correctors, which turn texts into corrected texts: a model with an instruction, or any function.

This module imports nothing that models need, since many files have no text to correct.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Protocol, runtime_checkable

from copyspec.common.checks import check_type, shown
from copyspec.common.lockless import cached_property
from copyspec.engine.results import Change, Result

from ..documents import Refusal
from ..language_model import Fluency


@dataclass(frozen=True, slots=True)
class Outcome:
    """The correction of one text."""

    text: str | None  # None: the output could not be used; `refusal` gives the reason
    refusal: Refusal | None = None
    result: Result | None = None  # of the model; None if no model was asked in this run
    lost: str = ""  # characters of the text that the model cannot write
    changes: Sequence[Change] | None = None  # with the margin by which the model preferred each; None: unknown


@runtime_checkable
class Corrector(Protocol):
    """Corrects many texts at a time, and returns them in the order in which they are finished."""

    @property
    def identity(self) -> Mapping[str, object]:
        """Everything the corrections depend on, as JSON values. A journal with another identity is not resumed."""

    @property
    def by_sentence(self) -> bool:
        """Whether it takes single sentences instead of paragraphs."""

    @property
    def limit(self) -> int | None:
        """Maximum `length` of a text; None: no limit."""

    def length(self, text: str) -> int:
        """The length of a text, in the unit of `limit`."""

    def correct(self, texts: Iterable[str | None]) -> Iterator[tuple[int, Outcome]]:
        """Yield (index of the text, outcome), one for each text. A None in `texts`, which has no index, means that no
        text is available until one of those taken has its outcome."""


def calibration_of(corrector: Corrector) -> str | None:
    """The model whose margins apply to its changes (a key of `guards.judging.CALIBRATED`); None: not measured."""
    calibration: str | None = getattr(corrector, "calibration", None)
    return calibration


def fluency_of(corrector: Corrector) -> Fluency | None:
    """The language model that the corrector was made from; None: unknown."""
    fluency: Fluency | None = getattr(corrector, "fluency", None)
    return fluency


def languages_of(corrector: Corrector) -> Sequence[str]:
    """Codes of the languages that it was made for; none: unknown, or any."""
    languages: Sequence[str] = getattr(corrector, "languages", ())
    return languages


class FunctionCorrector:
    """Wraps a function from a text to its correction."""

    def __init__(self, function: Callable[[str], str], *, name: str | None = None) -> None:
        """`name`: the function's name in a journal. Raises TypeError if `function` cannot be called."""
        check_type(callable(function), "function", function, "a function from a text to its correction")
        self._function = function
        self.identity: Mapping[str, object] = {"function": name or getattr(function, "__qualname__", repr(function))}
        self.by_sentence = False
        self.limit: int | None = None

    def length(self, text: str) -> int:
        return len(text)

    def correct(self, texts: Iterable[str | None]) -> Iterator[tuple[int, Outcome]]:
        for index, text in enumerate(text for text in texts if text is not None):
            corrected = self._function(text)
            if not isinstance(corrected, str):
                name = self.identity["function"]
                raise TypeError(f"{name} returned {shown(corrected)}; it must return the corrected text, a str")
            yield index, Outcome(corrected)


class LateCorrector:
    """Creates its corrector on first use, so that a model is loaded only if there is something to correct."""

    def __init__(self, make: Callable[[], Corrector]) -> None:
        self._make = make

    @cached_property
    def inner(self) -> Corrector:
        return self._make()

    @property
    def identity(self) -> Mapping[str, object]:
        return self.inner.identity

    @property
    def by_sentence(self) -> bool:
        return self.inner.by_sentence

    @property
    def limit(self) -> int | None:
        return self.inner.limit

    @property
    def calibration(self) -> str | None:
        return calibration_of(self.inner)

    @property
    def languages(self) -> Sequence[str]:
        return languages_of(self.inner)

    @property
    def fluency(self) -> Fluency | None:
        return fluency_of(self.inner)

    def length(self, text: str) -> int:
        return self.inner.length(text)

    def correct(self, texts: Iterable[str | None]) -> Iterator[tuple[int, Outcome]]:
        waiting = iter(texts)
        for first in waiting:
            yield from self.inner.correct(chain((first,), waiting))
