"""Jobs: turn prompts and references into decoding requests, and decoding steps into results."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from transformers import EosTokenCriteria, MaxLengthCriteria, MaxTimeCriteria, StopStringCriteria

from copyspec.common.checks import plain_value
from copyspec.decoding.divergence import Divergence
from copyspec.decoding.requests import Finish, Request, StepOutput, StopCondition
from copyspec.decoding.stats import Stats
from copyspec.drafters.copying.versions import VersionComparisons
from copyspec.drafters.predictors.base import PredictorFactory, RowContext
from copyspec.engine.asking.call_options import CallOptions
from copyspec.engine.asking.inputs import InputEncoder, Prompt
from copyspec.engine.drafting.datastores import Datastores
from copyspec.engine.logits import generation_config, unsupported_settings
from copyspec.engine.logits.constraints import Constraints
from copyspec.engine.logits.language import Language
from copyspec.engine.logits.row_processors import check_processors, of_row
from copyspec.engine.logits.tool_choice import NO_CALLS, Calling, begun, calling
from copyspec.engine.results import Change, Result, Span
from copyspec.engine.results.logprobs import LogprobRecorder, TokenLogprob
from copyspec.engine.results.recording import TraceRecorder, drafter_name
from copyspec.engine.results.spans import CopiedOutput, NamedSource
from copyspec.sources import Source, SourceKind
from copyspec.targets.selftest.probes import ignores_zero_types
from copyspec.text.codec import Codec, Encoded, Lead
from copyspec.text.prompt_blocks import PromptBlock, prompt_blocks
from copyspec.text.replies.marks import split, without_first
from copyspec.text.replies.reader import Parts, Reply
from copyspec.text.stops import CriterionStop, StopStrings
from copyspec.tree import Origin
from copyspec.verification.margins import Margin
from copyspec.verification.picking import warpers
from copyspec.views.pass_trace import Trace

if TYPE_CHECKING:
    from transformers import LogitsProcessor, PreTrainedModel

    from copyspec.drafters.base import Drafter
    from copyspec.drafters.custom import DrafterFactory, OwnDrafter
    from copyspec.engine.drafting.draft_models import DraftModels, MakePredictor
    from copyspec.targets.base import Target
    from copyspec.targets.rows.prefixes import PrefixCache

logger = logging.getLogger(__name__)

_CUTTING = frozenset((MaxTimeCriteria.__name__, MaxLengthCriteria.__name__))
"""The stopping criteria that cut an output before its own end."""


class Replying(NamedTuple):
    """How the output of one prompt is read."""

    reply: Reply | None
    calls: Calling
    before: Sequence[int]
    """The end of the prompt that it is decoded with (`Codec.context`)."""


@dataclass(frozen=True, slots=True)
class Copyable:
    """What the rows of one prompt copy from."""

    sources: Sequence[NamedSource]
    blocks: Sequence[PromptBlock]
    comparisons: VersionComparisons  # of all rows of the call


@dataclass(slots=True)
class Job:
    """One sample of one prompt: its request and its output so far."""

    index: int  # of the prompt
    request: Request
    sources: Sequence[NamedSource]
    codec: Codec
    options: CallOptions
    stop_strings: StopStrings | None
    blocks: Sequence[PromptBlock] = ()  # of the prompt; in the request they follow `sources`
    tokens: list[int] = field(default_factory=list)
    result: Result | None = None
    logprob_recorder: LogprobRecorder | None = None
    before: Sequence[int] = ()
    """The end of the prompt, which the text continues; empty if it starts anew."""
    leaves_space: bool = False
    """Whether a leading space is dropped from the text, because the chat template leaves it to the answer."""
    skipped: int = 0
    """Characters that were dropped from the text; known once there is some."""
    reply: Reply | None = None
    """How the output is split into thought, answer and calls; None: it is not."""
    logprobs: list[TokenLogprob] = field(default_factory=list)
    _origins: list[Origin | None] = field(default_factory=list)
    _margins: list[Margin] = field(default_factory=list)

    def add(self, output: StepOutput) -> None:
        """Add one step's tokens; the last step creates the result."""
        if self.logprob_recorder is not None:
            self.logprobs.extend(
                self.logprob_recorder.take(len(self.tokens), output.tokens, is_last=output.finish is not None)
            )
        self.tokens.extend(output.tokens)
        self._origins.extend(map(self.source_origin, output.origins) if self.blocks else output.origins)
        self._margins.extend(output.margins)
        if output.finish is not None:
            self.result = self._finish(output.finish, output.stats or Stats(), output.divergences)
            if self.options.output_cache is not None:
                self.options.output_cache.add(self.codec.decode(self.request.prompt), self.result.text)

    def source_origin(self, origin: Origin | None) -> Origin | None:
        """Map an origin onto `sources`: a copy from a prompt block counts as a copy from the prompt."""
        if origin is None or origin.source < len(self.sources):
            return origin
        place = self.blocks[origin.source - len(self.sources)].place(origin.offset)
        return None if place is None else Origin(len(self.sources) - 1, place)

    def final_spans(self, count: int) -> tuple[Span, ...]:
        """Spans of the first `count` tokens that no later token can change."""
        tokens = tuple(self.tokens[:count])
        whole = self.codec.text_of(tokens, self.before)
        text = self.without_leading_space(whole)
        copied = self._copied(tokens, self._origins[:count], text, len(whole) - len(text))
        return copied.find_spans(self.codec.decode, only_settled=True)

    def _copied(
        self, tokens: tuple[int, ...], origins: Sequence[Origin | None], text: str, skipped: int
    ) -> CopiedOutput:
        return CopiedOutput(tokens, origins, self.sources, text, skipped, self.codec.takes_back, self.before)

    def without_leading_space(self, text: str) -> str:
        """The text of the output so far as the result shows it, without a dropped leading space."""
        return text.removeprefix(" ") if self.leaves_space else text

    def _finish(self, finish: Finish, stats: Stats, divergences: Sequence[Divergence]) -> Result:
        whole, detail = self._text(finish), finish.detail
        text = self.without_leading_space(whole)
        # Ending at the model's own end-of-sequence token gives no stop reason.
        reason = None if isinstance(detail, int) and detail not in self.options.stop_ids else detail
        strings = self.stop_strings
        is_string = strings is not None and (strings.match is not None or strings.is_token)
        is_cut = detail in _CUTTING and not is_string  # a stop string may be such a name
        self.skipped = len(whole) - len(text)
        tokens = tuple(self.tokens)
        copied = self._copied(tokens, tuple(self._origins), text, self.skipped)
        decode, reply = self.codec.decode, self.reply
        return Result(
            text=text,
            token_ids=tokens,
            finish_reason="length" if is_cut else finish.reason,
            stop_reason=reason,
            prompt_tokens=len(self.request.prompt),
            stats=stats,
            seed=self.options.sampling.seed,
            rule=self.options.rule.name if self.options.rule is not None else None,
            margins=tuple(self._margins),
            logprobs=tuple(self.logprobs),
            changes=self._changes(divergences),
            _spans=lambda: copied.find_spans(decode),  # functions, which `dataclasses.asdict` copies as they are
            _sources=lambda: copied.source_texts(decode),
            _trace=self._trace(),
            _parts=None if reply is None else lambda: self._parts(reply, finish, len(text)),
        )

    def _parts(self, reply: Reply, finish: Finish, length: int) -> Parts:
        """The parts of the output, whose text has this length."""
        marked = without_first(self.codec.marked(self._shown_tokens(finish), self.before), self.skipped)
        parts = reply.read(split(marked, length)[0])
        return replace(parts, num_reasoning_tokens=reply.count_reasoning(self.tokens, self.codec.marked_detokenizer()))

    def _trace(self) -> Callable[[], Trace] | None:
        recorder = self.request.recorder
        if not isinstance(recorder, TraceRecorder):
            return None
        decode, count = self.codec.decode, len(self.request.prompt)
        return lambda: recorder.trace(decode, prompt_tokens=count)

    def _changes(self, divergences: Sequence[Divergence]) -> tuple[Change, ...]:
        """Divergences from the edit source (always the first source), as character ranges of its text."""
        source = self.sources[0] if divergences else None
        if source is None or source.offsets is None:
            return ()
        offsets = source.offsets()
        ends = offsets[-1][1] if offsets else 0
        starts = [*(max(0, start) for start, _ in offsets), ends]
        return tuple(
            Change(starts[divergence.start], starts[divergence.end], divergence.margin) for divergence in divergences
        )

    def _shown_tokens(self, finish: Finish) -> list[int]:
        """The tokens of the text, without the one that ended the output."""
        is_special = self.stop_strings is not None and self.stop_strings.is_token
        ended_by_token = finish.reason == "stop" and (isinstance(finish.detail, int) or is_special)
        is_shown = self.options.include_stop and finish.detail in self.options.stop_ids
        return self.tokens[:-1] if ended_by_token and not is_shown else self.tokens

    def _text(self, finish: Finish) -> str:
        text = self.codec.text_of(self._shown_tokens(finish), self.before)
        match = self.stop_strings.match if self.stop_strings is not None else None
        if match is None or finish.detail != match.string:
            return text
        return text[: match.end if self.options.include_stop else match.start]


class JobMaker:
    """Makes the jobs of one model and tokenizer."""

    def __init__(
        self,
        target: Target,
        codec: Codec,
        model: PreTrainedModel,
        drafting: DraftModels,
        prefixes: PrefixCache,
    ) -> None:
        """`model`: the target's, whose generation_config every call reads. `drafting`: the models that `draft_model`
        and `rule` name. `prefixes`: the cache of calls with `prefix_cache`."""
        self._prefixes = prefixes
        self._drafting = drafting
        self._encoder = InputEncoder(target, codec)
        self._datastores = Datastores(codec)
        self._constraints = Constraints(codec, target.vocab_size, starts_text=target.is_encoder_decoder)
        self._language = Language(codec, target.vocab_size)
        self._target = target
        self._codec = codec
        self._model = model
        self._noted: set[str] = set()
        unsupported_settings.log_once(unsupported_settings.of_model(model), self._noted)
        self._settings: generation_config.Settings | None = None  # of the last config

    def make(self, prompts: Sequence[Prompt], options: CallOptions) -> list[Job]:
        """Make one job per prompt and sample. Raises ValueError if a prompt or an option does not fit the model.

        If the options sample without a seed, every job draws its own: call `CallOptions.seeded` first to make the same
        jobs again.
        """
        target, settings = self._target, self.settings(options)
        self._encoder.check_tokens("logit_bias", options.sampling.logit_bias)
        self._encoder.check_tokens("stop_token_ids", options.stop_ids)
        if options.processors and len(prompts) * options.n > 1:
            check_processors(options.processors, "give it to one prompt at a time")
        shared, jobs = options if options.sampling.is_greedy else options.seeded(len(prompts)), list[Job]()
        comparisons = VersionComparisons()
        texts = dict[tuple[str, Lead], Encoded]()  # of the references, which prompts may share
        pad = None if target.is_encoder_decoder else settings.pad  # without a mask, encoders read padding in `generate`
        for index, raw in enumerate(prompts):
            if raw.has_types and not ignores_zero_types(self._model):
                raise TypeError(
                    f"prompt {index} is an encoding with token_type_ids, to which {type(self._model).__name__} adds "
                    "something even where they are 0, and copyspec gives a model text only: leave them out"
                )
            options = shared.of_prompt(index, len(prompts)) if shared.lists else shared
            encoded = self._encoder.prompt(index, raw, options, pad)
            calls = NO_CALLS
            if encoded.reply is not None or options.tool_choice is not None:
                calls = calling(encoded.reply, options)
                encoded = begun(encoded, calls, self._codec)
            prompt, start = encoded.ids, target.start(encoded.ids)
            cache = options.output_cache if options.drafts else None
            earlier = cache.references(self._codec.decode(prompt)) if cache is not None else []
            sources = self._encoder.sources(raw, prompt, earlier, texts, with_references=options.drafts)
            # Needed without drafts too: the default token limit depends on it.
            edit_tokens = len(sources[0].tokens) if sources and sources[0].kind == "edit" else 0
            if options.drafts:
                sources.append(NamedSource("prompt", "prompt", None, prompt, encoded.offsets, raw.text))
            limit = options.limit or generation_config.limit(settings.config, len(start), options, edit_tokens)
            if target.max_length is not None:
                limit = min(limit, target.max_length - len(start) + 1)
            row, rows = index * options.n, len(prompts) * options.n
            output = generation_config.Output(settings, row, rows, prompt, len(start), limit, target.device)
            finds = options.drafts and options.copies and len(sources) == 1 and not target.is_encoder_decoder
            copyable = Copyable(sources, prompt_blocks(self._codec, prompt) if finds else [], comparisons)
            is_whole = raw.ids is None and self._codec.decodes_alone
            before = () if is_whole or target.is_encoder_decoder else self._codec.context(prompt)
            replying = Replying(encoded.reply, calls, before)
            for sample in range(options.n):
                jobs.append(self._job(index, sample, output, copyable, options, replying))
                # A constraint holds for the whole text.
                is_free = not target.is_encoder_decoder and not options.is_constrained
                jobs[-1].leaves_space = encoded.leaves_space and is_free
                jobs[-1].reply = encoded.reply
        return jobs

    def settings(self, options: CallOptions) -> generation_config.Settings:
        """The model's current generation_config with the call's changes.

        Every call comes through here, so two things are left out where they are not needed: `read`, which merges the
        call's changes, without such changes; and the checks of `Settings.of`, if all values are those of the last call.
        Values are compared because the user may change the config itself, or set another one, at any time.
        """
        own, settings = self._model.generation_config, self._settings
        is_own = options.generation_config is None and options.min_new_tokens is None and not options.stop_ids
        is_own = is_own and options.repetition_penalty is None
        is_known = settings is not None and is_own and own is settings.config
        config = own if is_known else generation_config.read(self._model, options)
        if options.generation_config is not None:
            generation_config.check_applied(config, own, options)
            if self._target.is_encoder_decoder:
                generation_config.check_start(config, self._target.start(())[0])
        # Tensors and arrays have no single truth value to compare by.
        values = {
            name: plain_value(value) if hasattr(value, "tolist") else value for name, value in vars(config).items()
        }
        if settings is None or values != settings.values:
            size = self._target.vocab_size
            settings = self._settings = generation_config.Settings.of(config, values, size)
            unsupported_settings.log_once(unsupported_settings.ignored(config, options.n), self._noted)
        elif settings.config is not config:  # equal when it was read, but the model's may have changed since
            settings = self._settings = replace(settings, config=config)
        return settings

    def with_model_defaults(self, options: CallOptions) -> CallOptions:
        """The options, with the sampling settings of the generation_config where the call gives none, as in `generate`;
        they are logged once."""
        config = self.settings(options).config
        changes: dict[str, Any] = {}
        if options.temperature is None and (config.do_sample or options.n > 1):
            own_one = config.temperature if config.do_sample else None
            changes["temperature"] = 1.0 if own_one is None else own_one
        own = {name: value for name in ("top_k", "top_p", "min_p") if (value := getattr(options, name)) is not None}
        if changes.get("temperature") or not options.sampling.is_greedy:
            if config.do_sample and "top_k" not in own:
                changes["top_k"] = generation_config.GENERATE_TOP_K
            for name in ("top_k", "top_p", "min_p"):
                value = getattr(config, name)
                if name not in own and value is not None:
                    changes[name] = value
            unsupported_settings.log_once(unsupported_settings.not_sampled(config), self._noted)
        elif options.temperature is None and (own or options.generation_config is not None):
            unsupported_settings.log_once(
                unsupported_settings.not_greedy(generation_config.given(options) | own), self._noted
            )
        if options.max_time is None and config.max_time is not None:
            changes["max_time"] = config.max_time
        result = replace(options, **changes) if changes else options
        if changes or options.limit is None:
            text = generation_config.sampling_summary(options, result, config)
            if text and text not in self._noted:
                self._noted.add(text)
                logger.info("%s", text)
        return result

    def _job(
        self,
        index: int,
        sample: int,
        output: generation_config.Output,
        copyable: Copyable,
        options: CallOptions,
        replying: Replying,
    ) -> Job:
        settings = output.settings
        replaced = {type(stop) for stop in options.criteria}  # they take the places of the config's, as in `generate`
        eos = frozenset() if options.ignore_eos or EosTokenCriteria in replaced else settings.eos_token_ids
        eos |= options.stop_ids
        stop = options.stop_strings or (() if StopStringCriteria in replaced else settings.stops)
        before = replying.before
        decoding: dict[str, Any] = {"before": before, "takes_back": self._codec.takes_back}
        strings = self._codec.stop_strings(stop, before) if stop else None
        stops: list[StopCondition] = [strings] if strings is not None else []
        criteria = [*options.criteria]
        if options.max_time is not None and MaxTimeCriteria not in replaced:
            criteria.append(MaxTimeCriteria(options.max_time))  # its clock starts now
        if criteria:
            start = self._target.start(output.prompt)
            stops += [CriterionStop(criterion, start, output.max_new_tokens, output.device) for criterion in criteria]
        sources = [Source(source.tokens, _KINDS.get(source.kind, "prompt")) for source in copyable.sources]
        sources += [block.source for block in copyable.blocks]
        sampling = options.sampling
        of_config = options.repetition_penalty is not None and generation_config.penalises(settings.config, options)
        if sample or of_config:
            penalty = 1.0 if of_config else sampling.repetition_penalty
            sampling = replace(sampling, sample=sample, repetition_penalty=penalty)
        processors: Sequence[LogitsProcessor] = [
            of_row(processor, output.row + sample, output.rows) for processor in options.processors
        ]
        if settings.has_processors:
            penalise = of_config or options.repetition_penalty is None
            defaults = generation_config.processors(output, penalise=penalise)
            processors = generation_config.merged(defaults, processors)
        recorder = None
        if options.logprobs is not None:
            changes = [] if sampling.is_greedy else warpers(sampling)
            recorder = LogprobRecorder(output.start, options.logprobs, changes, self._codec.decode, **decoding)
        constraint = None
        if options.is_constrained or replying.calls.by_grammar:
            constraint = self._constraints.make(options, eos, replying.reply, replying.calls)
        own, limits = options.own_drafters, list[Any]()
        if constraint is not None:
            own, limits = (*own, constraint.drafter), [constraint.processor(output.start)]
        drafts = options.drafts and self._target.supports_drafts
        row = RowContext(output.prompt, sampling, output.start, self._target.vocab_size)
        rescorer = None
        if (rule := options.rule) is not None and rule.model is not None:
            rescorer = partial(rule.rescorer, self._drafting.second(rule.model))
        request = Request(
            prompt=output.prompt,
            max_new_tokens=output.max_new_tokens,
            sampling=sampling,
            eos_token_ids=eos,
            sources=sources,
            drafter=self._drafter(sources, eos, row, options, own, copyable.comparisons) if drafts else None,
            stops=stops,
            processors=[
                *processors,
                *limits,
                *([cast("LogitsProcessor", recorder)] if recorder is not None else []),
            ],
            rule=options.acceptance_rule,
            prefixes=self._prefixes if options.prefix_cache else None,
            most_kept=None if isinstance(options.prefix_cache, bool) else options.prefix_cache,
            rescorer=rescorer,
            recorder=TraceRecorder(partial(drafter_name, sources=sources, eos=eos)) if options.trace else None,
        )
        return Job(
            index,
            request,
            copyable.sources,
            self._codec,
            options,
            strings,
            copyable.blocks,
            logprob_recorder=recorder,
            before=before,
        )

    def _drafter(
        self,
        sources: Sequence[Source],
        eos: frozenset[int],
        row: RowContext,
        options: CallOptions,
        own: Sequence[OwnDrafter],
        comparisons: VersionComparisons,
    ) -> Callable[[], Drafter]:
        from copyspec.drafters import CopyDrafter, create

        known = frozenset([token for token in eos if 0 <= token < self._target.vocab_size])
        predictors: list[MakePredictor] = []
        if options.draft_models:
            predictors += self._drafting.predictors(options.draft_models)
        elif options.finds_drafter and self._target.keeps_states:
            unasked = self._drafting.unasked
            predictors += self._drafting.find_unasked() if unasked is None else unasked
        if options.datastores:
            predictors += self._datastores.predictors(options.datastores)
        predictors += [cast("PredictorFactory", drafter).predictor for drafter in own if hasattr(drafter, "predictor")]
        factories = [drafter for drafter in own if not hasattr(drafter, "predictor")]
        copying: dict[str, Any] = {
            "continues_prompt": not self._target.is_encoder_decoder,
            "ngrams": self._language.ngrams if options.copies else None,
            "breaks": self._codec.breaks if options.copies else frozenset(),
            "comparisons": comparisons,
        }
        builtin: Callable[[], Drafter] = partial(CopyDrafter, sources, eos=known, **copying)
        if predictors:
            makers = [partial(make, row) for make in predictors]
            builtin = partial(create, sources, known, predictors=makers, copies=options.copies, **copying)
        if not factories:
            return builtin
        drafts = options.copies or predictors
        return partial(self._joined, sources, known, row, factories, builtin if drafts else None)

    def _joined(
        self,
        sources: Sequence[Source],
        eos: frozenset[int],
        row: RowContext,
        own: Sequence[DrafterFactory],
        builtin: Callable[[], Drafter] | None,
    ) -> Drafter:
        """The drafters of the caller and of a constraint, joined with the built-in one if that is wanted."""
        from copyspec.drafters.custom import DraftContext, JoinedDrafter, make_custom
        from copyspec.targets.hooks.modules import decoder_layers

        size, encode, decode = self._target.vocab_size, self._codec.encode, self._codec.decode
        # Tuples, because later calls take the same lists from caches. Blocks, which are last, hold forks: no token ids.
        shown = [Source(tuple(source.tokens), source.kind) for source in sources if source.kind != "block"]
        context = DraftContext(tuple(row.prompt), shown, eos, size, lambda text: encode(text).ids, decode)
        made, layers = [make_custom(factory, context) for factory in own], len(decoder_layers(self._model))
        return JoinedDrafter(made, size, builtin() if builtin is not None else None, sources=sources, layers=layers)


_KINDS: Mapping[str, SourceKind] = {"edit": "edit", "reference": "reference"}
"""The kinds of sources that drafters know, by the kind that spans show; all others have the prior of the prompt."""
