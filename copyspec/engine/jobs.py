"""Jobs: prompts and references as decoding requests, and what decoding answers as results."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from copyspec.decoding.requests import Finish, Request, RowStats, StepOutput
from copyspec.drafters.language_model import RowContext
from copyspec.engine import generation_config
from copyspec.engine.call_options import DEFAULT_MAX_NEW_TOKENS, EDIT_GROWTH, CallOptions
from copyspec.engine.chat import ChatError, Message, with_system
from copyspec.engine.prompts import Prompt
from copyspec.engine.reference_texts import Reference
from copyspec.engine.results import Result, Stats
from copyspec.engine.spans import CopiedOutput, NamedSource
from copyspec.engine.stops import CriterionStop, StopStrings, text_of
from copyspec.engine.text import Codec, Encoded, Lead
from copyspec.sources import Source, SourceKind
from copyspec.verification.margins import Margin
from copyspec.verification.registry import decides_apart

if TYPE_CHECKING:
    from transformers import GenerationConfig

    from copyspec.decoding.requests import StopCondition
    from copyspec.drafters.base import Drafter
    from copyspec.engine.draft_models import MakePredictor
    from copyspec.targets.base import Target

logger = logging.getLogger(__name__)

UNKNOWN = -1
"""Stands in a source for a token that the model does not have. No match and no copy crosses it (`Corpus`)."""


class PromptTooLongError(ValueError):
    """The prompt does not fit into the model's context."""


@dataclass(frozen=True, slots=True)
class Inputs:
    """What one prompt comes with."""

    prompt: Prompt
    edit: Reference | None
    references: Sequence[Reference]


@dataclass(slots=True)
class Job:
    """One sample of one prompt: its request, and what has come of it so far."""

    index: int  # of the prompt
    request: Request
    sources: Sequence[NamedSource]
    codec: Codec
    options: CallOptions
    stop_strings: StopStrings | None
    tokens: list[int] = field(default_factory=list)
    result: Result | None = None
    _origins: list[object] = field(default_factory=list)
    _margins: list[Margin] = field(default_factory=list)

    def add(self, output: StepOutput) -> None:
        """Takes a step's tokens; makes the result with the last one."""
        self.tokens.extend(output.tokens)
        self._origins.extend(output.origins)
        self._margins.extend(output.margins)
        if output.finish is not None:
            self.result = self._finish(output.finish, output.stats or RowStats())
            if self.options.output_cache is not None:
                self.options.output_cache.add(self.codec.decode(self.request.prompt), self.result.text)

    def _finish(self, finish: Finish, stats: RowStats) -> Result:
        text, detail = self._text(finish), finish.detail
        # The model's own end of sequence needs no reason.
        reason = None if isinstance(detail, int) and detail not in self.options.stop_token_ids else detail
        copied = CopiedOutput(tuple(self.tokens), tuple(self._origins), self.sources, text)  # type: ignore[arg-type]
        return Result(
            text=text,
            token_ids=tuple(self.tokens),
            finish_reason=finish.reason,
            stop_reason=reason,
            prompt_tokens=len(self.request.prompt),
            stats=Stats.of_row(stats),
            seed=self.options.sampling.seed,
            rule=self.options.verification.rule,
            lossy=self.options.verification.is_lossy,
            margins=tuple(self._margins),
            _spans=partial(copied.find_spans, self.codec.decode),
        )

    def _text(self, finish: Finish) -> str:
        ended_by_token = finish.reason == "stop" and isinstance(finish.detail, int)
        kept = self.options.include_stop and finish.detail in self.options.stop_token_ids
        text = text_of(self.tokens[:-1] if ended_by_token and not kept else self.tokens, self.codec.decode)
        match = self.stop_strings.match if self.stop_strings is not None else None
        if match is None or finish.detail != match.string:
            return text
        return text[: match.end if self.options.include_stop else match.start]


class JobMaker:
    """Makes jobs for one model and tokenizer."""

    def __init__(
        self,
        target: Target,
        codec: Codec,
        config: GenerationConfig,
        encoder_limit: int | None,
        draft_models: Callable[[Sequence[object]], Sequence[MakePredictor]] = lambda chosen: (),
    ) -> None:
        """`encoder_limit`: tokens that the encoder reads at most, None without an encoder or a limit;
        `draft_models`: what makes rows' predictors of what `draft_model` names."""
        self._draft_models = draft_models
        self._target = target
        self._codec = codec
        self._config = config
        self._encoder_limit = encoder_limit
        self._eos = generation_config.eos_token_ids(config)
        self._stop = generation_config.stop_strings(config)
        self._noted: set[str] = set()

    def make(self, inputs: Sequence[Inputs], options: CallOptions) -> list[Job]:
        """A job per prompt and sample. Raises ValueError where a prompt or an option does not fit the model."""
        self._check_tokens("logit_bias", options.sampling.logit_bias)
        self._check_tokens("stop_token_ids", options.stop_token_ids)
        self._note_special(options.stop)
        options = replace(options, stop=tuple(dict.fromkeys((*options.stop, *self._stop))))
        copies: dict[tuple[str, Lead], Encoded] = {}
        return [job for index, each in enumerate(inputs) for job in self._make(index, each, options, copies)]

    def _make(
        self, index: int, inputs: Inputs, options: CallOptions, copies: dict[tuple[str, Lead], Encoded]
    ) -> list[Job]:
        encoded = self._encode_prompt(index, inputs.prompt, options)
        prompt = encoded.ids
        given = inputs.prompt.ids is not None
        self._check_tokens(f"prompt {index}", prompt, "were the ids" if given else "was the model")
        start = self._target.start(prompt)
        self._check_length(index, prompt, start)
        cache = options.output_cache if options.drafts else None
        earlier = cache.references(self._codec.decode(prompt)) if cache is not None else []
        sources = self._sources(inputs, prompt, copies, earlier, with_references=options.drafts)
        # Counted without drafts too: the limit is part of the output.
        edit_tokens = len(sources[0].tokens) if sources and sources[0].kind == "edit" else 0
        if options.drafts:
            sources.append(NamedSource("prompt", "prompt", None, prompt, encoded.offsets))
        limit = options.max_new_tokens or max(DEFAULT_MAX_NEW_TOKENS, EDIT_GROWTH * edit_tokens)
        if self._target.max_length is not None:
            limit = min(limit, self._target.max_length - len(start) + 1)
        output = generation_config.Output(prompt, len(start), limit, self._target.device)
        return [self._job(index, sample, output, sources, options) for sample in range(options.n)]

    def _job(
        self,
        index: int,
        sample: int,
        output: generation_config.Output,
        named: Sequence[NamedSource],
        options: CallOptions,
    ) -> Job:
        eos = frozenset() if options.ignore_eos else self._eos
        eos |= options.stop_token_ids
        strings = StopStrings(options.stop, self._codec.decode) if options.stop else None
        stops: list[StopCondition] = [strings] if strings is not None else []
        start = self._target.start(output.prompt)
        stops += [
            CriterionStop(criterion, start, output.max_new_tokens, self._target.device)
            for criterion in options.stopping_criteria
        ]
        sources = [Source(source.tokens, _kind(source)) for source in named]
        penalise = options.repetition_penalty is None
        sampling = replace(options.sampling, sample=sample)
        rule = options.verification.make(sampling)
        row = RowContext(output.prompt, sampling, len(start), self._target.vocab_size)
        request = Request(
            prompt=output.prompt,
            max_new_tokens=output.max_new_tokens,
            sampling=sampling,
            eos_token_ids=eos,
            sources=sources,
            drafter=self._drafter(sources, eos, row, options) if options.drafts else None,
            stops=stops,
            processors=[
                *generation_config.processors(self._config, output, penalise=penalise),
                *options.logits_processor,
            ],
            rule=rule if decides_apart(rule, sampling) else None,
        )
        return Job(index, request, named, self._codec, options, strings)

    def _drafter(
        self, sources: Sequence[Source], eos: frozenset[int], row: RowContext, options: CallOptions
    ) -> Callable[[], Drafter] | None:
        if not self._target.supports_drafts:
            return None
        from copyspec import drafters

        known = [token for token in eos if token < self._target.vocab_size]
        return partial(
            drafters.create,
            sources,
            known,
            continues_prompt=not self._target.is_encoder_decoder,
            predictors=[partial(make, row) for make in self._draft_models(options.draft_models)],
            copies=options.copies,
        )

    def _encode_prompt(self, index: int, prompt: Prompt, options: CallOptions) -> Encoded:
        if prompt.ids is not None:
            if options.system is not None:
                raise ChatError(f"system={options.system!r} needs a str or a chat; prompt {index} is token ids")
            return Encoded(prompt.ids)
        if prompt.chat is None and options.system is None and options.chat is not True:
            assert prompt.text is not None
            encoded = self._codec.encode(prompt.text, wrap=True)
            if not encoded.ids:
                raise ValueError(f"prompt {index} has no tokens: {prompt.text!r}; the model needs at least one")
            return encoded
        if prompt.chat is not None and options.chat is False:
            raise ChatError(f"prompt {index} is a chat, but chat=False is given; leave it out, or give a str")
        messages: list[Message] = prompt.chat or [{"role": "user", "content": prompt.text}]
        return self._codec.encode_chat(with_system(messages, options.system))

    def _sources(
        self,
        inputs: Inputs,
        prompt: Sequence[int],
        copies: dict[tuple[str, Lead], Encoded],
        earlier: Sequence[Reference],
        *,
        with_references: bool,
    ) -> list[NamedSource]:
        """The edit source and the references, empty ones left out, those of the output cache last.

        `copies`: what was encoded for earlier prompts.
        """
        given = [(inputs.edit, "edit")] if inputs.edit is not None else []
        if with_references:
            given += [(reference, "reference") for reference in inputs.references]
            given += [(reference, "reference") for reference in earlier]
        if not given:
            return []
        lead = self._codec.lead(prompt, starts_text=self._target.is_encoder_decoder)
        sources: list[NamedSource] = []
        for reference, kind in given:
            if reference.text is None:
                encoded = Encoded(list(reference.ids or ()))
            else:
                key = (reference.text, lead)
                encoded = copies[key] = copies.get(key) or self._codec.encode_copy(*key)
            if encoded.ids:
                ids = self._known(encoded.ids)
                sources.append(NamedSource(reference.name, kind, reference.index, ids, encoded.offsets))
        return sources

    def _known(self, ids: list[int]) -> list[int]:
        """`ids` with UNKNOWN for those that the model does not have: offsets stay aligned."""
        size = self._target.vocab_size
        return ids if max(ids) < size else [token if token < size else UNKNOWN for token in ids]

    def _note_special(self, stop: Sequence[str]) -> None:
        for string in stop:
            token = self._codec.special_id(string)
            if token is not None and string not in self._noted:
                self._noted.add(string)
                logger.warning(
                    "stop=%r is a special token, which is not part of the text; stop_token_ids=[%d] ends with it",
                    string,
                    token,
                )

    def _check_tokens(self, where: str, ids: Iterable[int], what: str = "were the ids") -> None:
        worst = max(ids, default=0)
        if worst >= self._target.vocab_size:
            raise ValueError(
                f"{where} holds token id {worst}, but the model's vocabulary ends at "
                f"{self._target.vocab_size - 1}; {what} made for another tokenizer?"
            )

    def _check_length(self, index: int, prompt: Sequence[int], start: Sequence[int]) -> None:
        limits = [(len(prompt), self._encoder_limit), (len(start), self._target.max_length)]
        for length, limit in limits:
            if limit is not None and length > limit:
                raise PromptTooLongError(
                    f"prompt {index} has {length} tokens, but the model's context is {limit}; shorten it, or give "
                    "long texts to copy from as references, which the model does not read"
                )


def gather(
    prompts: Sequence[Prompt],
    edits: Sequence[Reference | None],
    references: Sequence[Sequence[Reference]],
    shared: Sequence[Reference],
) -> list[Inputs]:
    """What each prompt comes with; `shared` references are those of all prompts."""
    return [Inputs(prompt, edit, [*shared, *own]) for prompt, edit, own in zip(prompts, edits, references, strict=True)]


def encoder_limit(config: Mapping[str, object]) -> int | None:
    """Tokens that an encoder with absolute positions reads, from the model's config as a dict."""
    if not config.get("is_encoder_decoder"):
        return None
    limit = config.get("max_position_embeddings")
    return limit if isinstance(limit, int) else None


def _kind(source: NamedSource) -> SourceKind:
    if source.kind == "edit":
        return "edit"
    return "reference" if source.kind == "reference" else "prompt"
