"""Grammar correction of texts, decoded by copying from the text being corrected."""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypedDict, overload

from copyspec.common.checks import check_type
from copyspec.engine.asking.unknown import reject_unknown
from copyspec.engine.results import Result

from ..documents import Edit, Part, Refusal
from ..edits.diff import apply
from ..formats.text import segments_of
from ..instructions import INSTRUCTION, check_template, fill
from ..options import GuardOptions, ModelOptions
from .correctors import Corrector, LateCorrector
from .model_corrector import ModelCorrector
from .runner import Done, Runner, RunOptions, Work
from .segmentation import Splitter

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ..models import ModelLike
    from .files import FileOptions, FileReport

logger = logging.getLogger(__name__)


def correction_prompt(text: str, instruction: str = INSTRUCTION) -> str:
    """The prompt that asks for a correction of `text`. Raises ValueError if the instruction has no `{text}`."""
    return fill(check_template(instruction, "text"), text=text)


@dataclass(frozen=True, slots=True)
class Correction:
    """One corrected text."""

    source: str
    text: str
    """The source with the edits applied. Everything else is unchanged, white space and special characters included."""
    edits: tuple[Edit, ...] = ()
    """Ascending, in characters of `source`."""
    refused: tuple[Refusal, ...] = ()
    """Stretches that were to be corrected but stayed as they were, each with the reason."""
    dropped: tuple[Refusal, ...] = ()
    """Edits that a guard left out, each with the reason."""
    results: tuple[Result, ...] = ()
    """The model's results with their counters and spans, one per paragraph or sentence that it was asked about. A text
    that had just been corrected has none."""

    @property
    def result(self) -> Result | None:
        """The first of `results`; None if the model was not asked."""
        return self.results[0] if self.results else None

    @property
    def fits(self) -> bool:
        """False if some of the text is longer than the model's context and cannot be split."""
        return not any(refusal.reason == "length" for refusal in self.refused)

    @property
    def is_complete(self) -> bool:
        """False if some of the text stayed as it was because it did not fit, or because its output was cut."""
        return not any(refusal.reason in ("length", "cut") for refusal in self.refused)

    @property
    def changed(self) -> bool:
        return self.text != self.source


class PipelineOptions(TypedDict, total=False):
    """Options of `GECPipeline` besides its model. Unknown ones are errors."""

    instruction: str | None
    """A template with `{text}`. None: the known instruction of the model."""
    preset: str | None
    """How a known kind of corrector is prompted: "coedit", "t5-gec" or "chat"."""
    draft_models: Sequence[str]
    """Smaller models that draft too. One that corrects by itself ("smollm2-correct", "default", an encoder-decoder)
    writes a full correction of each text once, from which drafts are copied while that pays."""
    system: str | None
    """A system message, for models with a chat template."""
    max_new_tokens: int | None
    """None: chosen by the length of the text."""
    batch_size: int
    """Number of texts decoded at once."""
    by_sentence: bool | None
    """Correct single sentences. None: encoder-decoder models and the bundled one get sentences, others paragraphs."""
    segment_tokens: int | None
    """Longer texts are split. None: at what fits into the model's context."""
    drafts: bool
    """False decodes plainly. The output is the same."""
    earlier: int
    """Number of latest corrected places that drafts are copied from too; 0: none."""
    guards: GuardOptions | None
    split: Splitter
    """Splits paragraphs into sentences: `segmentation.splitter`, or a function from a text to spans."""
    pack: int
    """Number of texts that are sorted by length before decoding; 0: decode in the given order."""


class GECPipeline:
    """Corrects texts and files. The model's output equals plain decoding, several times faster."""

    def __init__(self, model: ModelLike | Corrector = None, **options: Unpack[PipelineOptions]) -> None:
        """`model`: as for `copyspec.generate`, or a corrector of your own. Raises TypeError for an unknown option and
        ValueError for an invalid one."""
        reject_unknown(options, PipelineOptions.__annotations__)
        settings = {name: value for name, value in options.items() if name != "guards" or value is not None}
        running = {name: settings.pop(name) for name in ("guards", "split", "pack") if name in settings}
        run_options = RunOptions(**running)  # type: ignore[arg-type]
        if isinstance(model, (LateCorrector, Corrector)):  # the second check, up to Python 3.11, would load its model
            if settings:
                names = ", ".join(sorted(settings))
                raise ValueError(f"{names} cannot be given beside a corrector, which decides that itself")
            self.corrector: Corrector = model
        else:
            model_options = ModelOptions(**settings)  # type: ignore[arg-type]  # checked before a model is loaded
            self.corrector = ModelCorrector(model, model_options)
        self.runner = Runner(self.corrector, run_options)

    @overload
    def __call__(self, texts: str) -> Correction: ...  # type: ignore[overload-overlap]  # a str is never its characters
    @overload
    def __call__(self, texts: Iterable[str]) -> list[Correction]: ...
    def __call__(self, texts: str | Iterable[str]) -> Correction | list[Correction]:
        """Return the correction of one text, or a list of corrections in the order of the texts.

        A text may hold any number of paragraphs; the lines of a paragraph are joined. `Correction.refused` says what
        stayed as it was and why, and so does one line of the log.
        """
        if isinstance(texts, str):
            return self._corrections([texts])[0]
        check_type(isinstance(texts, Iterable), "texts", texts, "a str or an iterable of them")
        return self._corrections([_checked(i, text) for i, text in enumerate(texts)])

    def stream(self, texts: Iterable[str]) -> Iterator[Correction]:
        """Yield corrections of any number of texts, in order and in bounded memory, while texts are still read."""
        if isinstance(texts, str):
            raise TypeError(f"stream takes an iterable of texts, got one str: {texts[:40]!r}; put it into a list")
        check_type(isinstance(texts, Iterable), "texts", texts, "an iterable of str")
        works = (_work(_checked(i, text)) for i, text in enumerate(texts))
        return (_correction(done) for done in self.runner.run(works))

    def files(
        self, paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]], options: FileOptions | None = None
    ) -> Iterator[FileReport]:
        """Correct files one by one, and yield a report for each. An error in one file does not stop the others.

        Without `options` nothing is written: the reports say what would change.
        """
        from .files import FileOptions, correct_files

        listed = [paths] if isinstance(paths, (str, os.PathLike)) else paths
        return correct_files(self.runner, listed, options or FileOptions())

    def _corrections(self, texts: list[str]) -> list[Correction]:
        corrections = list(self.stream(texts))
        if reasons := Counter(refusal.reason for correction in corrections for refusal in correction.refused):
            counts = ", ".join(f"{count} {reason}" for reason, count in sorted(reasons.items()))
            number = f"{len(texts)} text{'s' * (len(texts) != 1)}"
            logger.warning("parts of %s were left unchanged: %s", number, counts)
        return corrections


def _checked(index: int, text: object) -> str:
    if not isinstance(text, str):
        raise TypeError(f"texts[{index}] must be a str; got {type(text).__name__}: {text!r}")
    return text


def _work(text: str) -> Work[None]:
    segments, refused = segments_of(text)
    return Work(None, Part(text, segments, refused))


def _correction(done: Done[None]) -> Correction:
    assert done.part is not None
    source = done.part.text
    return Correction(
        source=source,
        text=apply(source, done.edits),
        edits=tuple(done.edits),
        refused=done.refusals,
        dropped=tuple(refusal for piece in done.pieces for refusal in piece.checked.dropped),
        results=tuple(piece.result for piece in done.pieces if piece.result is not None),
    )
