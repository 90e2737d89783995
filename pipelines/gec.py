"""Grammar correction: texts in, corrected texts out, decoded by copying from the text being corrected."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, overload

from copyspec import Result
from copyspec.engine.jobs import PromptTooLongError

from .models import check_template, engine_of, fill, fits, wants_chat

if TYPE_CHECKING:
    from .models import ModelLike

logger = logging.getLogger(__name__)

INSTRUCTION = "Correct the grammar: {text}"
"""What the bundled model was trained on; instruction-tuned models understand it too."""


def correction_prompt(text: str, instruction: str = INSTRUCTION) -> str:
    """The prompt that asks for a correction of `text`. Raises ValueError where the instruction has no `{text}`."""
    return fill(check_template(instruction, "text"), text=text)


@dataclass(frozen=True, slots=True)
class Correction:
    """One corrected text."""

    source: str
    text: str
    """White space around the source is kept as it was. Equal to the source where nothing was corrected, where
    there was nothing to correct, and where the model did not come to an end (`is_complete`)."""
    result: Result | None
    """The model's own result with its counters and spans; None for a text without words, and for one too long."""
    fits: bool = True
    """False: the text is longer than the model's context."""

    @property
    def is_complete(self) -> bool:
        """False: the text did not fit, or the output was cut at its limit; the source was kept."""
        return self.fits and (self.result is None or self.result.finish_reason == "stop")

    @property
    def changed(self) -> bool:
        return self.text != self.source


class GECPipeline:
    """Corrects texts with an instruction-following model; output equal to plain decoding, several times faster."""

    def __init__(
        self,
        model: ModelLike = None,
        *,
        instruction: str = INSTRUCTION,
        max_new_tokens: int | None = None,
        batch_size: int = 8,
    ) -> None:
        """`instruction` says with `{text}` where the text belongs. None for `max_new_tokens`: by the text's length."""
        self.engine = engine_of(model)
        self.instruction = check_template(instruction, "text")
        self.max_new_tokens = max_new_tokens
        self.batch_size = batch_size

    @overload
    def __call__(self, texts: str) -> Correction: ...  # type: ignore[overload-overlap]  # a str is never its characters
    @overload
    def __call__(self, texts: Iterable[str]) -> list[Correction]: ...
    def __call__(self, texts: str | Iterable[str]) -> Correction | list[Correction]:
        """A correction for one text, a list of them for several, in their order."""
        if isinstance(texts, str):
            return self._correct([texts])[0]
        listed = list(texts)
        for i, text in enumerate(listed):
            if not isinstance(text, str):
                raise TypeError(f"texts[{i}] must be a str; got {type(text).__name__}: {text!r}")
        return self._correct(listed)

    def _correct(self, texts: list[str]) -> list[Correction]:
        wordy = [text.strip() for text in texts if text.strip()]
        results = iter(self._results(wordy)) if wordy else iter(())
        return [_correction(text, next(results) if text.strip() else None, bool(text.strip())) for text in texts]

    def _results(self, texts: list[str]) -> list[Result | None]:
        """A result per text, None for those that do not fit into the model's context."""
        try:
            return [*self._generate(texts)]
        except PromptTooLongError:
            chat = wants_chat(self.engine)
            short = [fits(self.engine, correction_prompt(text, self.instruction), chat=chat) for text in texts]
        logger.warning(
            "%d of %d texts are longer than the model's context and stay as they are", short.count(False), len(texts)
        )
        kept = [text for text, does in zip(texts, short, strict=True) if does]
        results = iter(self._generate(kept)) if kept else iter(())
        return [next(results) if does else None for does in short]

    def _generate(self, texts: list[str]) -> list[Result]:
        return self.engine.generate(
            [correction_prompt(text, self.instruction) for text in texts],
            edit_source=texts,
            chat=wants_chat(self.engine),
            max_new_tokens=self.max_new_tokens,
            batch_size=self.batch_size,
        )


def _correction(source: str, result: Result | None, wordy: bool) -> Correction:
    if result is None:
        return Correction(source, source, None, fits=not wordy)
    if result.finish_reason != "stop" or not result.text.strip():
        return Correction(source, source, result)
    body = source.strip()
    start = source.index(body)
    return Correction(source, source[:start] + result.text.strip() + source[start + len(body) :], result)
