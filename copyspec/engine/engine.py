"""The engine: one loaded model with its tokenizer; it takes text and returns text."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Literal, NoReturn, TypeVar, overload

import torch

from copyspec.common import forks
from copyspec.common.checks import brief, check_flag, check_whole
from copyspec.decoding.loop import DecodeSettings, decode
from copyspec.decoding.meter import costs_on
from copyspec.decoding.requests import Request, StepOutput
from copyspec.decoding.rewindable import RewindableSequence
from copyspec.engine.asking.call_options import MAX_THREADS, CallOptions, check_options
from copyspec.engine.asking.inputs import Input, ManyPrompts, OnePrompt, gather
from copyspec.engine.drafting.draft_models import DraftModels, LoadedModel
from copyspec.engine.results import Chunk, Result
from copyspec.engine.running.call import Call, Ticket
from copyspec.engine.running.feed import generate_each
from copyspec.engine.running.jobs import Job, JobMaker
from copyspec.engine.running.scheduler import CallScheduler
from copyspec.engine.running.threads import Passes, Threads
from copyspec.options import StaticOptions
from copyspec.targets import wrap
from copyspec.targets.base import UnsupportedModelError
from copyspec.targets.hooks.attention import restore_after_interrupt
from copyspec.targets.model.limits import trained_length
from copyspec.targets.model.locks import lock_of
from copyspec.targets.rows.prefixes import PrefixCache
from copyspec.targets.static.static_target import StaticTarget
from copyspec.text.chat import check_variables
from copyspec.text.codec import PROBE, Codec

if TYPE_CHECKING:
    import asyncio

    from transformers import PreTrainedModel, PreTrainedTokenizerBase
    from typing_extensions import Unpack

    from copyspec.engine.asking.keywords import GenerateOptions
    from copyspec.models.loading import ModelChoice

logger = logging.getLogger(__name__)

T = TypeVar("T")

_UNLOADED = ("model", "_target", "_job_maker", "_threads")
"""Attributes that `unload` removes."""

CASTING = frozenset(("cpu", "cuda", "mps", "xpu"))
"""Device types for which torch.autocast is followed from the caller's thread to the one that runs the passes."""


class Engine:
    """A loaded model that any thread or asyncio task may call.

    Concurrent callers share forward passes: their requests are decoded in one batch of `batch_size` rows, and callers
    take turns for free rows. A slow or vanished reader of a stream blocks nobody.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        name: str | None = None,
        on_unsupported: Literal["error", "plain"] = "error",
        static: StaticOptions | None = None,
        load_draft: Callable[[ModelChoice], LoadedModel] | None = None,
    ) -> None:
        """The model is used as it is, in its dtype and on its device.

        on_unsupported: "plain" decodes architectures that cannot verify drafts without drafts; "error" raises
            UnsupportedModelError.
        static: CUDA graphs, compiled forward passes and exact mode (docs/gpu.md).
        load_draft: loads the model that `draft_model=` names, shared between engines; None loads it for this engine
            alone.
        """
        self.name = name or getattr(model, "name_or_path", "") or type(model).__name__
        self.model = model
        self.codec = codec_of(tokenizer)
        self._lock = lock = lock_of(model)
        self.is_unloaded = False
        self._on_unsupported, self._static = on_unsupported, static
        self._costs = costs_on(model.device.type, exact=static is not None and static.exact)
        self._drafting = drafting = DraftModels(model, self.codec, load_draft)
        self._locks = lambda: [lock, *drafting.locks]
        self._threads = Threads(model, self._costs)
        self._given_threads: int | None = None
        self.scheduler = CallScheduler(self.name, lock._is_owned)  # type: ignore[attr-defined]
        self.prefix_cache = PrefixCache()
        """Cache of keys and values kept by calls with `prefix_cache=True`: at most `max_bytes`; `clear` empties it."""
        self._vocabulary: tuple[object, ...] = ()  # changes with the vocabulary of model and tokenizer
        self._current_job_maker()

    def _make_parts(self) -> None:
        """Build everything that depends on the current vocabulary of model and tokenizer."""
        model = self.model
        self._target = wrap(model, on_unsupported=self._on_unsupported, static=self._static)
        self._job_maker = JobMaker(self._target, self.codec, model, self._drafting, self.prefix_cache)
        self._job_maker.settings(CallOptions())  # raises if the generation_config is invalid

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        return self.codec.tokenizer

    @property
    def max_length(self) -> int | None:
        """Tokens of the longest prompt that the model can read; None if unlimited.

        A decoder's prompt and output share this length. Longer prompts raise PromptTooLongError.
        """
        self._check_loaded()
        return self._target.encoder_length if self._target.is_encoder_decoder else self._target.max_length

    @property
    def chat_template_kwargs(self) -> Mapping[str, object]:
        """Variables of the chat template for all chats, {"enable_thinking": False} for example; those of a call come on
        top. Set them before the engine is shared."""
        return self.codec.chat_template_kwargs

    @chat_template_kwargs.setter
    def chat_template_kwargs(self, variables: Mapping[str, object]) -> None:
        self.codec.chat_template_kwargs = check_variables("chat_template_kwargs", variables)

    @property
    def layers_by(self) -> str:
        """Who has computed the model's decoder layers in passes of few tokens so far: "compiled", "fused", or "by
        transformers", with the reason."""
        self._check_loaded()
        return self._target.layers_by

    @property
    def split_length(self) -> int | None:
        """Length in tokens at which longer texts are split: `max_length`, or the trained length of a model without a
        limit."""
        return self.max_length or trained_length(self.model.config)

    @property
    def threads(self) -> int:
        """Torch threads of the next forward pass on a CPU: the number set here, else the one measured to be fastest.
        `threads=` of a call overrides both."""
        return self._given_threads or self._threads.count()

    @threads.setter
    def threads(self, count: int | None) -> None:
        if count is not None:
            check_whole("threads", count, low=1, high=MAX_THREADS, why="None: as many as are measured to be best")
        self._given_threads = count

    @property
    def forward_lock(self) -> AbstractContextManager[object]:
        """The model's lock, to be held around every forward pass by code that runs the model itself."""
        return self._lock

    @overload
    def generate(
        self,
        prompt: OnePrompt,
        references: object = None,
        *,
        stream: Literal[False] = False,
        **options: Unpack[GenerateOptions],
    ) -> Result: ...
    @overload
    def generate(
        self,
        prompt: ManyPrompts,
        references: object = None,
        *,
        stream: Literal[False] = False,
        **options: Unpack[GenerateOptions],
    ) -> list[Result]: ...
    @overload
    def generate(
        self, prompt: object, references: object = None, *, stream: Literal[True], **options: Unpack[GenerateOptions]
    ) -> Iterator[Chunk]: ...
    def generate(
        self,
        prompt: object = None,
        references: object = None,
        *,
        stream: bool = False,
        **options: Unpack[GenerateOptions],
    ) -> Result | list[Result] | Iterator[Chunk]:
        """`copyspec.generate` with this model."""
        check_flag("stream", stream)
        call = self.start(prompt, references, check_options(options))
        if stream:
            return call.chunks()
        results = call.results()
        return results[0] if call.is_single else results

    def stream(self, prompt: object, references: object = None, **options: Unpack[GenerateOptions]) -> Iterator[Chunk]:
        """Stream the output in pieces, one per forward pass. Closing the iterator ends the generation.

        Invalid arguments raise here, not with the first piece.
        """
        return self.start(prompt, references, check_options(options)).chunks()

    def submit(
        self,
        prompt: object,
        references: object = None,
        *,
        loop: asyncio.AbstractEventLoop | None = None,
        **options: Unpack[GenerateOptions],
    ) -> Call:
        """Put prompts into the engine's queue, where calls share forward passes. Arguments are those of `generate`.

        Wait with `Call.results` or `chunks`, or with `aresults` or `achunks` if `loop` is the running event loop.
        Decoding starts when somebody waits for this call, or for one that shares its batch. `timeout` counts the
        preparation, and then from the beginning of the wait. Raises QueueFullError if `scheduler.max_waiting` requests
        wait already.
        """
        return self.start(prompt, references, check_options(options), loop)

    def start(
        self, prompt: object, references: object, options: CallOptions, loop: asyncio.AbstractEventLoop | None = None
    ) -> Call:
        """`submit` with options that are already checked."""
        began = monotonic()
        with self.scheduler.arriving():
            maker = self._current_job_maker()
            options = maker.with_model_defaults(options)
            prompts, single = gather(prompt, references, options)
            jobs = maker.make(prompts, options)
            ticket = self._queue([job.request for job in jobs], options, loop)
        ticket.preparation_seconds = monotonic() - began
        return Call(self.scheduler, ticket, jobs, single, options.timeout)

    def generate_each(
        self,
        inputs: Iterable[Input | None],
        *,
        ordered: bool = True,
        skip_too_long: bool = False,
        **options: Unpack[GenerateOptions],
    ) -> Iterator[tuple[int, Result | None]]:
        """Yield (index of the input, its result) for any number of inputs, in bounded memory.

        Inputs are taken as rows become free, and an invalid input raises when it is taken. Results come in the order of
        the inputs: those that wait for an earlier one are held, up to 16 batches, after which no inputs are taken until
        it ends. With `ordered=False` they come as they finish, which holds none. With `skip_too_long` a prompt that
        exceeds the model's context yields None instead of raising PromptTooLongError. A None among the
        inputs means that no input is available yet. Closing the iterator ends the generation.
        """
        checked = self.with_model_defaults(check_options(options))
        if checked.lists:
            raise ValueError(
                f"{checked.lists[0]} must be one value for all inputs, got a list; give an Input its own max_new_tokens"
            )
        # Load draft models now, so that one that cannot draft raises here, not with the first input.
        self._drafting.predictors(checked.draft_models)
        if checked.rule is not None and checked.rule.model is not None:
            self._drafting.second(checked.rule.model)
        return generate_each(self, inputs, checked, ordered=ordered, skip_too_long=skip_too_long)

    def queued(self, requests: Iterable[Request | None], options: CallOptions) -> Iterator[list[StepOutput]]:
        """`steps` through the scheduler, sharing forward passes with other callers. Closing the iterator ends these
        rows."""
        return self.scheduler.steps(self._queue(requests, options), options.timeout)

    def _queue(
        self,
        requests: Iterable[Request | None],
        options: CallOptions,
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> Ticket:
        weight = next(self.model.parameters())
        device = weight.device.type
        # torch.autocast is a state of the caller's thread, but another caller's or a worker may run the passes.
        casts = device in CASTING and torch.is_autocast_enabled(device)
        autocast = torch.get_autocast_dtype(device) if casts else None
        version = (self._target, weight.dtype, weight.device, autocast)  # a moved model starts a batch of its own
        decode = partial(self.steps, autocast=(device, autocast))
        return self.scheduler.submit(decode, requests, options, version=version, loop=loop)

    def with_model_defaults(self, options: CallOptions) -> CallOptions:
        """The options, with unset sampling options taken from the model's generation_config."""
        return self._current_job_maker().with_model_defaults(options)

    def jobs(
        self, prompt: object, references: object, options: CallOptions, earlier: Sequence[Sequence[int]] = ()
    ) -> tuple[list[Job], bool]:
        """Make one job per prompt and sample; the bool says whether a single prompt was given. `earlier` as in
        `Input`."""
        maker = self._current_job_maker()
        prompts, single = gather(prompt, references, options, earlier)
        return maker.make(prompts, options), single

    def steps(
        self,
        requests: Iterable[Request | None],
        options: CallOptions,
        *,
        keep_margins: bool = False,
        autocast: tuple[str, torch.dtype | None] | None = None,
    ) -> Generator[list[StepOutput], None, None]:
        """Decode step by step like `decode`, taking turns with other threads. Closing the generator frees the caches.

        `requests` is iterated while this thread holds the model's lock. `autocast`: the device type and the dtype that
        torch.autocast casts to in all passes (no dtype: it is off); None: as in the thread that iterates.
        """
        settings = DecodeSettings(draft=options.draft, batch_size=options.batch_size, keep_margins=keep_margins)
        self._check_loaded()
        model, passes = self.model, self._passes(options)
        steps = decode(self._target, requests, settings, self._costs)
        advance = plain = partial(next, steps, None)
        try:
            while True:
                if autocast is not None and (device := autocast[0]) in CASTING:
                    current = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
                    advance = plain if current == autocast[1] else partial(_in_autocast, *autocast, plain)
                if (outputs := passes.run(advance)) is None:
                    return
                yield outputs
        except GeneratorExit:
            raise
        except BaseException:
            # An interrupt may have come while what a pass changes was being given back.
            Passes(self._locks).run(partial(restore_after_interrupt, model))
            raise
        finally:
            Passes(self._locks).run(steps.close)

    def rewindable(self, make_job: Callable[[], Job], options: CallOptions) -> RewindableSequence:
        """One output that the caller decodes step by step and may roll back, taking turns with other threads.

        `make_job` must return an equal job each time, made by `jobs`: options that sample need a seed, given or from
        `CallOptions.seeded`.
        """
        self._check_loaded()
        passes = self._passes(options)
        mend = partial(restore_after_interrupt, self.model)
        return RewindableSequence(self._target, lambda: make_job().request, options.draft, self._costs, passes, mend)

    def lend(self, copy: torch.nn.Module) -> Callable[[Callable[[], T]], T]:
        """Let a copy of the model that shares its weights multiply them as passes do, from packed copies. Returns a
        function that runs a pass of the copy on the number of threads that pays."""
        if (linears := getattr(self._target, "linears", None)) is not None:
            linears.lend(copy)
        is_on_cpu = self._target.device.type == "cpu"
        return lambda call: (Passes(tuple, self._threads, self.threads) if is_on_cpu else Passes(tuple)).run(call)

    def unload(self) -> None:
        """Release the model; it is freed when running streams have ended. New calls raise RuntimeError."""
        self.is_unloaded = True
        with self._lock:
            target = self.__dict__.get("_target")
            if isinstance(target, StaticTarget):
                target.pools.close()
            del target
            for name in _UNLOADED:
                self.__dict__.pop(name, None)
            self._drafting.unload()
        self.prefix_cache.clear()

    def _passes(self, options: CallOptions) -> Passes:
        """The runner for the forward passes of one call: its lock and thread count."""
        if self._target.device.type != "cpu":
            return Passes(self._locks)
        threads = options.threads or self._given_threads
        if threads is None and not options.draft.adaptive:
            threads = self._threads.count()  # fixed for a call: other counts round differently
        return Passes(self._locks, self._threads, threads)

    def _current_job_maker(self) -> JobMaker:
        """The current JobMaker, rebuilt if tokens or a template were added to the tokenizer or the model was resized.
        Calls that are already running keep the old one. Raises RuntimeError if the engine was unloaded."""
        self._check_loaded()
        # `resize_token_embeddings`, new tokens and a new template change these, which are read in a few microseconds.
        config, tokenizer = self.model.config.get_text_config(decoder=True), self.codec.tokenizer
        sizes = getattr(config, "decoder_vocab_size", None), config.vocab_size, len(tokenizer)
        template = tokenizer.chat_template
        template = dict(template) if isinstance(template, Mapping) else template  # as it is now
        vocabulary = (*sizes, tuple(tokenizer.all_special_ids), template)
        if vocabulary != self._vocabulary:
            # The first time it is new.
            codec = Codec(tokenizer, self.chat_template_kwargs) if self._vocabulary else self.codec
            self._drafting.rematch(codec)
            with self._lock:
                self.codec = codec
                self._make_parts()
                self._vocabulary = vocabulary  # last, so that the next call tries again after an error
        return self._job_maker

    def _check_loaded(self) -> None:
        if forks.held_at_fork:
            forks.check_forked(self._lock, f"decoding with {self.name!r}")
        if self.is_unloaded:
            raise RuntimeError(f"the engine of {self.name!r} was unloaded; load the model again with copyspec.load")

    def __getattr__(self, name: str) -> NoReturn:
        """Raise a clear error for attributes removed by `unload`, perhaps in another thread."""
        if name in _UNLOADED and self.__dict__.get("is_unloaded"):
            self._check_loaded()
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)

    def __getstate__(self) -> NoReturn:
        raise TypeError(
            f"{self!r} cannot be copied or pickled: it holds a model in use and its locks. Threads may share it; in "
            "another process, load the model there with copyspec.load"
        )

    def __repr__(self) -> str:
        return f"Engine({self.name!r})"


def _in_autocast(
    device: str, dtype: torch.dtype | None, step: Callable[[], list[StepOutput] | None]
) -> list[StepOutput] | None:
    with torch.autocast(device, dtype, enabled=dtype is not None):
        return step()


def codec_of(tokenizer: PreTrainedTokenizerBase) -> Codec:
    """The codec of a tokenizer. Raises UnsupportedModelError for one that lacks what those of transformers have."""
    try:
        codec = Codec(tokenizer)
        try:
            codec.decode(codec.encode(PROBE).ids)
        except (AttributeError, NotImplementedError):
            raise
        except Exception:  # tokenizers raises plain Exception for a letter that it does not know
            pass
    except (AttributeError, NotImplementedError, TypeError) as error:
        kind = type(tokenizer)
        raise UnsupportedModelError(
            f"the tokenizer is a {kind.__module__}.{kind.__qualname__}, which cannot be used: {brief(str(error))}; "
            "give tokenizer= one of transformers' own, such as a PreTrainedTokenizerFast"
        ) from error
    return codec
