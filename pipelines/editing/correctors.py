"""Correctors: what turns texts into corrected texts. A model behind an instruction is one, any function is another.

Nothing here loads a model, or what models need: many files have no text to correct.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Protocol, runtime_checkable

from copyspec.engine.results import Change, Result

from ..documents import Refusal
from ..edits.earlier import PLACES
from ..instructions import check_template
from .presets import preset_of


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a corrector made of one text."""

    text: str | None  # None: nothing that could be used, and `refusal` says why
    refusal: Refusal | None = None
    result: Result | None = None  # the model's own; None where no model was asked in this run
    lost: str = ""  # characters of the text that the model cannot write
    changes: Sequence[Change] | None = None  # how clearly the model preferred each; None: nobody knows


@runtime_checkable
class Corrector(Protocol):
    """Turns texts into corrected texts, many at a time and in whatever order they are finished."""

    @property
    def identity(self) -> Mapping[str, object]:
        """What the corrections depend on, ready for JSON: a journal of another corrector is refused."""
        ...

    @property
    def by_sentence(self) -> bool:
        """Whether it wants sentences, not paragraphs."""
        ...

    @property
    def limit(self) -> int | None:
        """What `length` of a text may be at most; None: no limit."""
        ...

    def length(self, text: str) -> int:
        """The length of a text as `limit` counts it."""
        ...

    def correct(self, texts: Iterable[str | None]) -> Iterator[tuple[int, Outcome]]:
        """(index of the text, what became of it). None among the texts: none is there now, others may follow."""
        ...


def calibration_of(corrector: Corrector) -> str | None:
    """Whose margins its changes need (`guards.judging.CALIBRATED`); None: nobody has measured them."""
    found: str | None = getattr(corrector, "calibration", None)
    return found


class FunctionCorrector:
    """A function from a text to the corrected text."""

    def __init__(self, function: Callable[[str], str], *, name: str | None = None) -> None:
        """`name` stands for the function in a journal."""
        self._function = function
        self.identity: Mapping[str, object] = {"function": name or getattr(function, "__qualname__", repr(function))}
        self.by_sentence = False
        self.limit: int | None = None

    def length(self, text: str) -> int:
        return len(text)

    def correct(self, texts: Iterable[str | None]) -> Iterator[tuple[int, Outcome]]:
        for index, text in enumerate(text for text in texts if text is not None):
            yield index, Outcome(self._function(text))


class LateCorrector:
    """A corrector that is made when there is something to correct, or somebody asks what it is like."""

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

    def length(self, text: str) -> int:
        return self.inner.length(text)

    def correct(self, texts: Iterable[str | None]) -> Iterator[tuple[int, Outcome]]:
        waiting = iter(texts)
        for first in waiting:
            yield from self.inner.correct(chain((first,), waiting))


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """How a model is asked for corrections."""

    instruction: str | None = None  # `{text}` is where the text goes; None: what the model is known to want
    system: str | None = None  # a system message, for models with a chat template
    max_new_tokens: int | None = None  # None: by the length of the text
    batch_size: int = 8
    by_sentence: bool | None = None  # None: encoder-decoder models and copyspec's own get sentences, others paragraphs
    segment_tokens: int | None = None  # longer texts are split; None: what fits into the model's context
    drafts: bool = True  # False decodes plainly; the output is the same
    draft_models: tuple[str, ...] = ()  # smaller models that draft too, as `draft_model` of `generate`; correctors
    # among them (`models.corrects`) write their own correction of each text once, which is copied from
    preset: str | None = None  # a name of `presets`: how a known kind of corrector is asked
    earlier: int = PLACES  # places corrected last in the run that drafts are copied from too

    def __post_init__(self) -> None:
        if self.instruction is not None:
            check_template(self.instruction, "text")
        if self.preset is not None:
            preset_of(self.preset)
        for name in ("max_new_tokens", "batch_size", "segment_tokens"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name}={value!r} must be at least 1")
        if self.earlier < 0:
            raise ValueError(f"earlier={self.earlier!r} must be a number of places, 0 for none")
