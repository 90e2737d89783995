"""A corrector that asks a model, with an instruction."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from copyspec.client.asking import Asking
from copyspec.engine.asking.inputs import Input
from copyspec.engine.results import NoAnswer, Result

from ..documents import Refusal
from ..guards.judging import CALIBRATED
from ..instructions import check_template, fill
from ..language_model import Fluency, LanguageModel
from ..models import model_of
from ..options import ModelOptions
from .correctors import Outcome
from .hypotheses import Hypotheses
from .presets import check_fits, preset_of
from .versions import written_versions

if TYPE_CHECKING:
    from ..models import ModelLike

OUTPUT_GROWTH = 1.5
"""Maximum output tokens per token of the text. A correction that grows more would be refused for its changes, and a
model in a loop is stopped here instead of at the end of its context."""
OUTPUT_ROOM = 64  # extra tokens for short texts, in which one more word is a large share
CHAT_ROOM = 256  # extra tokens for what chat models write around a text


class ModelCorrector:
    """A model that corrects texts by an instruction. The text is also the edit source of its drafts."""

    def __init__(self, model: ModelLike | LanguageModel, options: ModelOptions | None = None) -> None:
        self.model = loaded = model_of(model, corrects=True)
        self.options = options = options or ModelOptions()
        self.is_encoder_decoder, self.chat = loaded.is_encoder_decoder, loaded.is_chat
        preset = None if options.preset is None else preset_of(options.preset)
        if options.preset is not None:
            kind, has_template = self.is_encoder_decoder, loaded.has_template
            check_fits(options.preset, loaded.name, is_encoder_decoder=kind, has_template=has_template)
        known = preset.instruction if preset is not None else loaded.instruction
        self.instruction = check_template(options.instruction or known, "text")
        check_system(options.system, loaded)
        usual = preset.by_sentence if preset is not None else self.is_encoder_decoder or loaded.corrects
        self.by_sentence = usual if options.by_sentence is None else options.by_sentence
        # See `calibration_of` and `languages_of`.
        self.calibration = loaded.own if loaded.own in CALIBRATED else None
        self.languages = loaded.languages
        small = loaded.load_correctors(options.draft_models if options.drafts else ())
        self._how = Asking(
            instruction=self.instruction,
            system=options.system,
            batch_size=options.batch_size,
            drafts=options.drafts,
            draft_models=tuple(name for name in options.draft_models if options.drafts and name not in small),
            earlier=options.earlier,
            margins=True,
        )
        correctors = [ModelCorrector(small_model) for small_model in small.values()]
        self._hypotheses = Hypotheses(correctors, options.batch_size) if correctors else None
        self.limit = self._limit(loaded.frame(self._how))

    @property
    def identity(self) -> Mapping[str, object]:
        return {
            **self.model.identity,
            "instruction": self.instruction,
            "system": self.options.system,
            "max_new_tokens": self.options.max_new_tokens,
            "segment_tokens": self.limit,
            "by_sentence": self.by_sentence,
        }

    @property
    def fluency(self) -> Fluency | None:
        return self.model.fluency

    def length(self, text: str) -> int:
        """Number of tokens; for texts of at most `limit` bytes, that of bytes, as tokens are hardly ever more."""
        size = len(text.encode())
        return size if self.limit is not None and size <= self.limit else self.model.count_tokens(text)

    def versions(self, texts: Iterable[str]) -> list[tuple[str, ...]]:
        """The correction of each text, and versions with less likely words (`versions.written_versions`)."""
        return written_versions(self, texts)

    def prefilled_prompt(self, text: str, output: str) -> str | list[dict[str, str]]:
        """The prompt for a text whose correction starts with `output`."""
        instruction = fill(self.instruction, text=text)
        if not self.model.has_template:
            return instruction + output
        return [{"role": "user", "content": instruction}, {"role": "assistant", "content": output}]

    def continuations(self, inputs: Iterable[Input]) -> Iterator[tuple[int, str]]:
        """Yield the continuations of prompts made by `prefilled_prompt`."""
        for index, result in self.model.answers(inputs, replace(self._how, drafts=True, draft_models=(), earlier=0)):
            if isinstance(result, Result):
                yield index, result.content

    def correct(self, texts: Iterable[str | None]) -> Iterator[tuple[int, Outcome]]:
        yield from self.scored(texts, None)

    def scored(self, texts: Iterable[str | None], logprobs: int | None) -> Iterator[tuple[int, Outcome]]:
        """As `correct`; results carry the `logprobs` most likely tokens at each position."""
        pending: dict[int, str] = {}
        for index, result in self.model.answers(self._inputs(texts, pending), replace(self._how, logprobs=logprobs)):
            text = pending.pop(index)
            if self._hypotheses is not None:
                self._hypotheses.on_done(index, text, result if isinstance(result, Result) else None)
            yield index, self._outcome(text, result)

    def _inputs(self, texts: Iterable[str | None], pending: dict[int, str]) -> Iterator[Input | None]:
        index = 0
        pairs: Iterator[tuple[str, tuple[str, ...]] | None]
        if self._hypotheses is not None:
            pairs = self._hypotheses.with_hypotheses(texts)
        else:
            pairs = (None if text is None else (text, ()) for text in texts)
        for pair in pairs:
            if pair is None:
                yield None
                continue
            text, hypotheses = pair
            pending[index] = text
            if self._hypotheses is not None:
                self._hypotheses.on_start(index, hypotheses)
            index += 1
            yield Input(
                fill(self.instruction, text=text),
                edit_source=text,
                references=hypotheses or None,
                max_new_tokens=self._max_new_tokens(text),
            )

    def _max_new_tokens(self, text: str) -> int:
        if self.options.max_new_tokens is not None:
            return self.options.max_new_tokens
        return output_limit(self.model.tokens(text), self.chat)

    def _outcome(self, text: str, result: Result | NoAnswer) -> Outcome:
        if isinstance(result, NoAnswer):
            return Outcome(None, Refusal(result.reason, f"{result.detail}: {_shortened(text)}"))
        if result.finish_reason != "stop":
            return Outcome(None, Refusal("cut", f"{_why_cut(result)}: {_shortened(text)}"), result)
        lost = self.model.lost(text)
        return Outcome(result.content, result=result, lost=lost, changes=result.changes or None)

    def _limit(self, frame: int) -> int | None:
        """Maximum tokens of a text, so that its prompt and output fit into the context; at most `segment_tokens`.
        `frame`: tokens of a prompt without the text."""
        context = self.model.context
        limits = [self.options.segment_tokens] if self.options.segment_tokens else []
        if context is not None and self.is_encoder_decoder:
            # Encoder and decoder hold one text each. T5's positions allow any length, its training does not.
            limits.append(min(context - frame, int((context - OUTPUT_ROOM) / OUTPUT_GROWTH)))
        elif context is not None:
            room = CHAT_ROOM if self.chat else OUTPUT_ROOM
            limits.append(int((context - frame - min(room, context // 4)) / (1 + OUTPUT_GROWTH)))
        return max(1, min(limits)) if limits else None


def check_system(system: str | None, model: LanguageModel) -> None:
    """Raise ValueError for a system message that the model cannot be given."""
    if system is not None and not model.has_template:
        raise ValueError(f"system={system!r} needs a chat template, and {model.name!r} has none")


def output_limit(tokens: int, chat: bool) -> int:
    """Maximum output tokens for a text of `tokens`, the end token included."""
    return int(OUTPUT_GROWTH * tokens) + (CHAT_ROOM if chat else OUTPUT_ROOM)


def cut(result: Result) -> Refusal:
    """The refusal for a whole text whose output was cut."""
    return Refusal("cut", f"{_why_cut(result)}: raise max_new_tokens, or edit it in parts")


def _why_cut(result: Result) -> str:
    """Why an output has no end, for people."""
    count = result.stats.num_output_tokens or len(result.token_ids)
    tokens = f"{count} token{'s' * (count != 1)}"
    if result.stop_reason == "MaxTimeCriteria":
        return f"cut after {tokens} by max_time in the model's generation_config"
    return f"no end within {tokens}"


def _shortened(text: str, most: int = 60) -> str:
    return repr(text if len(text) <= most else text[: most - 3] + "...")
