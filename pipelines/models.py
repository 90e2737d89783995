"""The model that a pipeline asks: an engine in this process, and how instructions are given to it."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING, Any, Literal, cast

import copyspec
from copyspec.client.asking import Asking
from copyspec.client.remote import Remote
from copyspec.common.checks import check_type
from copyspec.common.lockless import cached_property
from copyspec.engine.asking.call_options import check_options
from copyspec.engine.asking.inputs import Input, PromptTooLongError
from copyspec.engine.results import Chunk, NoAnswer, Result
from copyspec.models.aliases import ALIASES
from copyspec.models.loading import BUNDLED, BUNDLED_LANGUAGES, DEFAULT, resolve_name
from copyspec.models.own import is_bundled, own_alias, own_name
from copyspec.models.pretrained import Pretrained

from .edits.earlier import EarlierCorrections
from .instructions import INSTRUCTION, fill

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from copyspec import Engine
    from copyspec.engine.asking.keywords import GenerateOptions

    from .language_model import Fluency, LanguageModel

    ModelLike = str | os.PathLike[str] | PreTrainedModel | Engine | Remote | None

ENCODER_INSTRUCTION = "grammar: {text}"
"""The prefix that most T5 correctors on the hub were trained with; used if the model's configuration names none."""

SHARED_TOKENS = 16
"""Minimum length, in tokens, of an instruction whose keys and values are computed once for all texts, with its chat
template. Copying them takes as long as reading one or two tokens on a CPU."""
HALF_SHARED_TOKENS = 64  # the same in half precision, where it changes bits

_PROBE = "".join(map(chr, range(33, 127))) + " äßéłñ αж “”‘’–—… €£ \N{CHECK MARK} 你好 \N{GRINNING FACE}"
_WEIGHTS_READ = 8  # values of each weight that the fingerprint covers


def model_of(model: ModelLike | LanguageModel, *, corrects: bool = False) -> LanguageModel:
    """What a pipeline asks. None is the configured or bundled model; with `corrects` the best available one for
    correcting and quoting."""
    if hasattr(model, "answers"):
        return cast("LanguageModel", model)
    return LocalModel(correction_engine_of(model) if corrects else engine_of(model))


def engine_in(model: LanguageModel) -> Engine:
    """The engine of a model in this process. Raises TypeError for another one."""
    check_type(isinstance(model, LocalModel), "model", model, "a model in this process")
    return cast("LocalModel", model).engine


def engine_of(model: ModelLike) -> Engine:
    """The engine for `model`, as in `copyspec.generate`; None is the configured or bundled one. Raises TypeError for a
    server, which does not decode token by token for others."""
    if isinstance(model, Remote):
        raise TypeError(f"{model!r} only gives whole answers, and this needs a model in this process: name one")
    return model if isinstance(model, copyspec.Engine) else copyspec.load(model)


def engine_and_options(
    model: ModelLike, options: Mapping[str, object], others: Iterable[str] = ()
) -> tuple[Engine, dict[str, Any]]:
    """The engine for `model`, loaded as the options of `copyspec.load` among `options` say, and the options left, which
    are those of calls. Raises TypeError or ValueError, before a model is loaded, for an unknown or invalid one. Those
    named in `others` are left to the caller."""
    from copyspec.api import LoadOptions

    loading = {name: value for name, value in options.items() if name in LoadOptions.__annotations__}
    call_options = {name: value for name, value in options.items() if name not in loading}
    check_options(call_options, (*LoadOptions.__annotations__, *others))
    return copyspec.load(model, **loading), call_options  # type: ignore[arg-type]  # load says what is wrong with them


def correction_engine_of(model: ModelLike) -> Engine:
    """The engine for `model`; None is the configured one, or the best available model for correcting and quoting."""
    from copyspec.api import load_corrector

    return engine_of(model) if isinstance(model, (copyspec.Engine, Remote)) else load_corrector(model)


def wants_chat(engine: Engine) -> bool:
    """Whether instructions are put through the model's chat template.

    They are if there is one, unless the tokenizer itself applies it to plain text, as the bundled one does: then spans
    can refer to characters of the prompt.
    """
    return bool(engine.tokenizer.chat_template) and not answers_plain_text(engine)


def chat_option(engine: Engine) -> Literal[True, "auto"]:
    """The option `chat` for an instruction. Never False, which would send it raw to a model that answers plain text."""
    return True if wants_chat(engine) else "auto"


def answers_plain_text(engine: Engine) -> bool:
    """Whether the tokenizer applies the chat template to plain text, so that the model answers instead of continuing
    it."""
    return engine.codec.frames


def _folder(engine: Engine) -> str:
    return str(getattr(engine.model.config, "_name_or_path", ""))


def corrects(engine: Engine) -> bool:
    """Whether it is one of copyspec's own models, trained to correct and to quote sentences."""
    alias = ALIASES.get(engine.name)
    return is_bundled(_folder(engine)) or (alias is not None and alias.corrects)


def corrected_languages(engine: Engine) -> Sequence[str]:
    """Codes of the languages that the model was trained to correct; none: unknown."""
    if is_bundled(_folder(engine)):
        return BUNDLED_LANGUAGES
    alias = own_alias(engine.name, _folder(engine))
    return () if alias is None else alias.languages


def name_of(engine: Engine) -> str:
    """The name by which people give the model; the bundled one is loaded by its path, which nobody types."""
    return DEFAULT if is_bundled(_folder(engine)) else engine.name


def corrects_by_itself(name: str) -> bool:
    """Whether the draft model of that name writes full corrections by itself: copyspec's own, or an
    encoder-decoder."""
    from copyspec.engine.drafting.draft_models import names_model

    if not names_model(name):
        return False
    model = resolve_name(name)
    alias = ALIASES.get(model)
    is_own = model == str(BUNDLED) or (alias is not None and alias.corrects)
    return is_own or bool(Pretrained(model).config().is_encoder_decoder)


class LocalModel:
    """A model in this process (a `LanguageModel`)."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.name = name_of(engine)
        self.own = own_name(engine.name, _folder(engine))
        self.corrects, self.languages = corrects(engine), corrected_languages(engine)
        self.is_encoder_decoder = bool(engine.model.config.is_encoder_decoder)
        self.is_chat = not self.is_encoder_decoder and wants_chat(engine)
        self.has_template = bool(engine.tokenizer.chat_template)
        self.instruction = instruction_for(engine)

    @property
    def identity(self) -> Mapping[str, object]:
        return {"model": self.name, "weights": fingerprint(self.engine), "dtype": str(self.engine.model.dtype)}

    @property
    def context(self) -> int | None:
        return self.engine.split_length

    @cached_property
    def fluency(self) -> Fluency | None:
        """The model without its adapter, if copyspec merged it."""
        alias = own_alias(self.engine.name, _folder(self.engine))
        if alias is None or alias.adapter is None:
            return None
        from copyspec.models.adapters import read_adapter

        from .editing.fluency import BaseModel

        return BaseModel(self.engine, read_adapter(alias.adapter)).likelihoods

    def tokens(self, text: str) -> int:
        return len(self.engine.codec.encode(text).ids)

    def count_tokens(self, text: str) -> int:
        return self.tokens(text)

    def frame(self, how: Asking) -> int:
        return len(self._framed(how, "x"))

    @cached_property
    def _is_lossless(self) -> bool:
        codec = self.engine.codec
        return codec.decode(codec.encode(_PROBE).ids).strip() == _PROBE

    def lost(self, text: str) -> str:
        """Characters that the tokenizer cannot represent; some vocabularies lack symbols."""
        if self._is_lossless:
            return ""
        known = set(self.engine.codec.decode(self.engine.codec.encode(text).ids))
        return "".join(sorted({char for char in text if not char.isspace() and not char.isalnum()} - known))

    def fits(self, prompt: str) -> bool:
        try:
            self.engine.jobs(prompt, None, check_options({"chat": chat_option(self.engine)}))
        except PromptTooLongError:
            return False
        return True

    def load_correctors(self, names: Sequence[str]) -> Mapping[str, LocalModel]:
        device = str(self.engine.model.device)
        return {name: LocalModel(copyspec.load(name, device=device)) for name in names if corrects_by_itself(name)}

    def answers(self, inputs: Iterable[Input | None], how: Asking) -> Iterator[tuple[int, Result | NoAnswer]]:
        encode = self.engine.codec.encode
        earlier = EarlierCorrections(lambda text: encode(text).ids, most=how.earlier * how.drafts)
        sources, numbers = dict[int, str | None](), count()

        def noted() -> Iterator[Input | None]:
            for input_ in inputs:
                if input_ is None:
                    yield None
                    continue
                sources[next(numbers)] = input_.edit_source
                yield replace(input_, earlier=earlier.ids()) if how.earlier else input_

        options = self._options(how)
        for index, result in self.engine.generate_each(noted(), ordered=False, skip_too_long=True, **options):
            source = sources.pop(index, None)
            if result is None:
                yield index, NoAnswer("length", "longer than the model's context")
                continue
            if source is not None and result.finish_reason == "stop":
                earlier.add(source, result.content)
            yield index, result

    def answer(self, prompt: str, references: Sequence[str], max_new_tokens: int | None = None) -> Result:
        return self.engine.generate(prompt, references=list(references), **self._options_of_one(max_new_tokens))

    def stream(
        self,
        prompt: str,
        references: Sequence[str],
        max_new_tokens: int | None = None,
        *,
        edit_source: str | None = None,
        system: str | None = None,
    ) -> Generator[Chunk, None, None]:
        options = self._options_of_one(max_new_tokens)
        options["edit_source"], options["system"] = edit_source, system
        chunks = self.engine.stream(prompt, list(references), **options)
        return chunks  # type: ignore[return-value]

    def _options_of_one(self, max_new_tokens: int | None) -> GenerateOptions:
        # Greedy even if the model's generation_config samples: answers must repeat.
        return {"chat": chat_option(self.engine), "max_new_tokens": max_new_tokens, "temperature": 0.0}

    def _options(self, how: Asking) -> GenerateOptions:
        options: GenerateOptions = {
            "chat": True if self.is_chat else "auto",
            "batch_size": how.batch_size,
            "temperature": 0.0,
        }
        if how.system is not None:
            options["system"] = how.system
        if how.logprobs is not None:
            options["logprobs"] = how.logprobs
        if how.draft_models:
            options["draft_model"] = how.draft_models
        if not how.drafts:
            options["drafter"] = "none"
        # In half precision a shared beginning has other bits than one that a row reads itself. Single rows, which are
        # promised plain decoding's bits (docs/concepts.md), share nothing; batches have them on some processors only.
        is_half = self.engine.model.dtype.itemsize < 4
        shared = 0 if how.instruction is None or (is_half and how.batch_size == 1) else self._shared(how)
        if shared >= (HALF_SHARED_TOKENS if is_half else SHARED_TOKENS):
            options["prefix_cache"] = shared
        return options

    def _shared(self, how: Asking) -> int:
        """Number of tokens with which all prompts begin."""
        pairs = zip(self._framed(how, "x"), self._framed(how, "7"), strict=False)
        return next((at for at, (one, other) in enumerate(pairs) if one != other), 0)

    def _framed(self, how: Asking, text: str) -> list[int]:
        """The tokens of the prompt for a text."""
        prompt = fill(how.instruction or "{text}", text=text)
        if self.is_chat or how.system is not None:
            messages = [{"role": "user", "content": prompt}]
            if how.system is not None:
                messages.insert(0, {"role": "system", "content": how.system})
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
