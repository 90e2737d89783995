"""A corrector that asks a model, with an instruction."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from copyspec import Input, Result, load
from copyspec.lockless import cached_property

from ..documents import Refusal
from ..edits.earlier import EarlierCorrections
from ..guards.judging import CALIBRATED
from ..instructions import check_template, fill
from ..models import corrected_languages, corrects, corrects_by_itself, name_of, own_alias, wants_chat
from .correctors import Fluency, ModelOptions, Outcome
from .hypotheses import Hypotheses
from .presets import check_fits, preset_of
from .versions import written_versions

if TYPE_CHECKING:
    from copyspec import Engine
    from copyspec.engine.keywords import GenerateOptions

INSTRUCTION = "Correct the grammar: {text}"
"""The instruction the bundled model was trained on; instruction-tuned models understand it too."""

ENCODER_INSTRUCTION = "grammar: {text}"
"""The prefix that most T5 correctors on the hub were trained with; used if the model's configuration names none."""

OUTPUT_GROWTH = 1.5
"""Maximum output tokens per token of the text. A correction that grows more would be refused for its changes, and a
model in a loop is stopped here instead of at the end of its context."""
OUTPUT_ROOM = 64  # extra tokens for short texts, in which one more word is a large share
CHAT_ROOM = 256  # extra tokens for what chat models write around a text

SHARED_TOKENS = 16
"""Minimum length, in tokens, of an instruction whose keys and values are computed once for all texts, with its chat
template. Copying them takes as long as reading one or two tokens on a CPU."""
HALF_SHARED_TOKENS = 64  # the same in half precision, where it changes bits

_PROBE = "".join(map(chr, range(33, 127))) + " äßéłñ αж “”‘’–—… €£ \N{CHECK MARK} 你好 \N{GRINNING FACE}"
_WEIGHTS_READ = 8  # values of each weight that the fingerprint covers


class ModelCorrector:
    """A model that corrects texts by an instruction. The text is also what its output is expected to follow."""

    def __init__(self, engine: Engine, options: ModelOptions | None = None) -> None:
        self.engine = engine
        self.options = options = options or ModelOptions()
        self.is_encoder_decoder = bool(engine.model.config.is_encoder_decoder)
        preset = None if options.preset is None else preset_of(options.preset)
        if options.preset is not None:
            has_template = bool(engine.tokenizer.chat_template)
            kind = self.is_encoder_decoder
            check_fits(options.preset, engine.name, is_encoder_decoder=kind, has_template=has_template)
        known = preset.instruction if preset is not None else instruction_for(engine)
        self.instruction = check_template(options.instruction or known, "text")
        self.chat = not self.is_encoder_decoder and wants_chat(engine)
        if options.system is not None and not engine.tokenizer.chat_template:
            raise ValueError(f"system={options.system!r} needs a chat template, and {engine.name!r} has none")
        usual = preset.by_sentence if preset is not None else self.is_encoder_decoder or corrects(engine)
        self.by_sentence = usual if options.by_sentence is None else options.by_sentence
        alias = own_alias(engine)
        # See `calibration_of` and `languages_of`.
        self.calibration = alias.name if alias is not None and alias.name in CALIBRATED else None
        self.languages = corrected_languages(engine)
        drafting = options.draft_models if options.drafts else ()
        small = [name for name in drafting if corrects_by_itself(name)]
        self._draft_models = tuple(name for name in drafting if name not in small)
        correctors = [ModelCorrector(load(name, device=str(engine.model.device))) for name in small]
        self._hypotheses = Hypotheses(correctors, options.batch_size) if correctors else None
        self._is_lossless = engine.codec.decode(engine.codec.encode(_PROBE).ids).strip() == _PROBE
        frame = self._framed("x")
        differ = (at for at, (one, other) in enumerate(zip(frame, self._framed("7"), strict=False)) if one != other)
        self._shared_tokens = next(differ, 0)
        self.limit = self._limit(len(frame))

    @property
    def identity(self) -> Mapping[str, object]:
        return {
            "model": name_of(self.engine),
            "weights": fingerprint(self.engine),
            "dtype": str(self.engine.model.dtype),
            "instruction": self.instruction,
            "system": self.options.system,
            "max_new_tokens": self.options.max_new_tokens,
            "segment_tokens": self.limit,
            "by_sentence": self.by_sentence,
        }

    def length(self, text: str) -> int:
        """Number of tokens, or an upper bound for short texts: a text never has more tokens than bytes."""
        size = len(text.encode())
        return size if self.limit is not None and size <= self.limit else len(self.engine.codec.encode(text).ids)

    def versions(self, texts: Iterable[str]) -> list[tuple[str, ...]]:
        """The correction of each text, and versions with second choices (`versions.written_versions`)."""
        return written_versions(self, texts)

    def begun(self, text: str, output: str) -> str | list[dict[str, str]]:
        """The prompt for a text whose correction starts with `output`."""
        instruction = fill(self.instruction, text=text)
        if not self.engine.tokenizer.chat_template:
            return instruction + output
        return [{"role": "user", "content": instruction}, {"role": "assistant", "content": output}]

    def continued(self, inputs: Iterable[Input]) -> Iterator[tuple[int, str]]:
        """Yield the continuations of prompts made by `begun`."""
        for index, result in self.engine.generate_each(inputs, ordered=False, skip_too_long=True, **self._options()):
            if result is not None:
                yield index, result.content

    def _options(self) -> GenerateOptions:
        options: GenerateOptions = {
            "chat": True if self.chat else "auto",
            "batch_size": self.options.batch_size,
            "temperature": 0.0,
        }
        if self.options.system is not None:
            options["system"] = self.options.system
        # In half precision a shared beginning has other bits than one that a row reads itself. Single rows, which are
        # promised plain decoding's bits (docs/concepts.md), share nothing; batches have them on some processors only.
        is_half = self.engine.model.dtype.itemsize < 4
        least = HALF_SHARED_TOKENS if is_half else SHARED_TOKENS
        if self._shared_tokens >= least and not (is_half and self.options.batch_size == 1):
            options["prefix_cache"] = self._shared_tokens
        return options

    def correct(self, texts: Iterable[str | None]) -> Iterator[tuple[int, Outcome]]:
        yield from self.scored(texts, None)

    def scored(self, texts: Iterable[str | None], logprobs: int | None) -> Iterator[tuple[int, Outcome]]:
        """As `correct`; results carry the `logprobs` most likely tokens at each position."""
        asked: dict[int, str] = {}
        options = self._options()
        if logprobs is not None:
            options["logprobs"] = logprobs
        if self._draft_models:
            options["draft_model"] = self._draft_models
        if not self.options.drafts:
            options["drafter"] = "none"
        encode = self.engine.codec.encode
        earlier = EarlierCorrections(lambda text: encode(text).ids, most=self.options.earlier * self.options.drafts)
        inputs = self._inputs(texts, asked, earlier)
        for index, result in self.engine.generate_each(inputs, ordered=False, skip_too_long=True, **options):
            text = asked.pop(index)
            if self._hypotheses is not None:
                self._hypotheses.done(index, text, result)
            outcome = self._outcome(text, result)
            if outcome.text is not None:
                earlier.add(text, outcome.text)
            yield index, outcome

    @cached_property
    def fluency(self) -> Fluency | None:
        """The model without its adapter, if copyspec merged it (see `fluency_of`)."""
        alias = own_alias(self.engine)
        if alias is None or alias.adapter is None:
            return None
        from copyspec.models.adapters import read_adapter

        from .fluency import BaseModel

        return BaseModel(self.engine, read_adapter(alias.adapter)).likelihoods

    def _inputs(
        self, texts: Iterable[str | None], asked: dict[int, str], earlier: EarlierCorrections
    ) -> Iterator[Input | None]:
        index = 0
        ahead: Iterator[tuple[str, tuple[str, ...]] | None]
        if self._hypotheses is not None:
            ahead = self._hypotheses.ahead(texts)
        else:
            ahead = (None if text is None else (text, ()) for text in texts)
        for each in ahead:
            if each is None:
                yield None
                continue
            text, hypotheses = each
            asked[index] = text
            if self._hypotheses is not None:
                self._hypotheses.begun(index, hypotheses)
            index += 1
            yield Input(
                fill(self.instruction, text=text),
                edit_source=text,
                references=hypotheses or None,
                max_new_tokens=self._max_new_tokens(text),
                earlier=earlier.ids(),
            )

    def _max_new_tokens(self, text: str) -> int:
        if self.options.max_new_tokens is not None:
            return self.options.max_new_tokens
        return output_limit(len(self.engine.codec.encode(text).ids), self.chat)

    def _outcome(self, text: str, result: Result | None) -> Outcome:
        if result is None:
            return Outcome(None, Refusal("length", f"longer than the model's context: {_shortened(text)}"))
        if result.finish_reason != "stop":
            return Outcome(None, Refusal("cut", f"{why_cut(result)}: {_shortened(text)}"), result)
        return Outcome(result.content, result=result, lost=self._lost(text), changes=result.changes or None)

    def _lost(self, text: str) -> str:
        """Characters that the tokenizer cannot represent; some vocabularies lack symbols."""
        if self._is_lossless:
            return ""
        kept = set(self.engine.codec.decode(self.engine.codec.encode(text).ids))
        return "".join(sorted({char for char in text if not char.isspace() and not char.isalnum()} - kept))

    def _limit(self, frame: int) -> int | None:
        """Maximum tokens of a text, so that its prompt and output fit into the context; at most `segment_tokens`.
        `frame`: tokens of a prompt without the text."""
        context = self.engine.split_length
        limits = [self.options.segment_tokens] if self.options.segment_tokens else []
        if context is not None and self.is_encoder_decoder:
            # Encoder and decoder hold one text each. Relative positions (T5) allow any length, but not beyond training.
            limits.append(min(context - frame, int((context - OUTPUT_ROOM) / OUTPUT_GROWTH)))
        elif context is not None:
            room = CHAT_ROOM if self.chat else OUTPUT_ROOM
            limits.append(int((context - frame - min(room, context // 4)) / (1 + OUTPUT_GROWTH)))
        return max(1, min(limits)) if limits else None

    def _framed(self, text: str) -> list[int]:
        """The tokens of the prompt for a text."""
        prompt = fill(self.instruction, text=text)
        if self.chat or self.options.system is not None:
            messages = [{"role": "user", "content": prompt}]
            if self.options.system is not None:
                messages.insert(0, {"role": "system", "content": self.options.system})
            return list(self.engine.codec.encode_chat(messages).ids)
        return list(self.engine.codec.encode(prompt, wrap=True).ids)


def instruction_for(engine: Engine) -> str:
    """The default instruction for a model: an encoder-decoder's own prefix if its configuration names one."""
    config = engine.model.config
    if not config.is_encoder_decoder:
        return INSTRUCTION
    prefix = getattr(config, "prefix", None)
    tasks = getattr(config, "task_specific_params", None)
    if prefix is None and isinstance(tasks, dict) and len(tasks) == 1:  # one of several may be another task
        (task,) = tasks.values()
        prefix = task.get("prefix") if isinstance(task, dict) else None
    return prefix + "{text}" if isinstance(prefix, str) else ENCODER_INSTRUCTION


def fingerprint(engine: Engine) -> str:
    """Hash that identifies a model, wherever it is: its configuration and a few values of every weight."""
    digest = hashlib.blake2b(digest_size=8)
    config = engine.model.config.to_dict()
    for name in ("_name_or_path", "transformers_version"):  # they change while the model stays the same
        config.pop(name, None)
    digest.update(json.dumps(config, sort_keys=True, default=str).encode())
    for name, weight in engine.model.named_parameters():
        read = weight.detach().flatten()[:: max(1, weight.numel() // _WEIGHTS_READ)][:_WEIGHTS_READ]
        digest.update(f"{name} {tuple(weight.shape)} {read.float().tolist()}".encode())
    return digest.hexdigest()


def output_limit(tokens: int, chat: bool) -> int:
    """Maximum output tokens for a text of `tokens`, the end token included."""
    return int(OUTPUT_GROWTH * tokens) + (CHAT_ROOM if chat else OUTPUT_ROOM)


def why_cut(result: Result) -> str:
    """Why an output has no end, for people."""
    tokens = f"{len(result.token_ids)} token{'s' * (len(result.token_ids) != 1)}"
    if result.stop_reason == "MaxTimeCriteria":
        return f"cut after {tokens} by max_time in the model's generation_config"
    return f"no end within {tokens}"


def _shortened(text: str, most: int = 60) -> str:
    return repr(text if len(text) <= most else text[: most - 3] + "...")
