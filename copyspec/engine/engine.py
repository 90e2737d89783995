"""The engine: one loaded model and its tokenizer, text in and text out."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING, Literal, NoReturn, overload

from copyspec.budget import CostModel
from copyspec.checks import check_flag, check_whole
from copyspec.decoding.loop import DecodeSettings, decode
from copyspec.decoding.requests import Request, StepOutput
from copyspec.decoding.sequence import RewindableSequence
from copyspec.engine import generation_config
from copyspec.engine.call import Call
from copyspec.engine.call_options import CallOptions, check_options
from copyspec.engine.draft_models import DraftModels, LoadedModel
from copyspec.engine.feed import Input, generate_each
from copyspec.engine.inputs import gather
from copyspec.engine.jobs import Job, JobMaker
from copyspec.engine.pass_lock import PassLock, lock_of
from copyspec.engine.results import Chunk, Result
from copyspec.engine.scheduler import CallScheduler
from copyspec.engine.threads import Passes, Threads
from copyspec.forks import check_forked
from copyspec.static_options import StaticOptions
from copyspec.targets import wrap
from copyspec.targets.limits import encoder_length, trained_length
from copyspec.targets.prefixes import PrefixCache
from copyspec.text.codec import Codec

if TYPE_CHECKING:
    import asyncio

    from transformers import PreTrainedModel, PreTrainedTokenizerBase
    from typing_extensions import Unpack

    from copyspec.engine.keywords import GenerateOptions
    from copyspec.engine.tickets import Ticket
    from copyspec.models.loading import ModelChoice
    from copyspec.text.prompts import ManyPrompts, OnePrompt

logger = logging.getLogger(__name__)

_UNLOADED = ("model", "_target", "_jobs", "_threads")
"""What an engine has no more after `unload`."""


class Engine:
    """A model that can be asked from any thread or task.

    Callers share passes of the model: what several ask for at the same time is decoded in one batch, of `batch_size`
    rows, for which they take turns. A slow reader of a stream, or one that went away, blocks nobody.
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
        """`on_unsupported="plain"`: decode architectures that cannot verify drafts without drafts; the default
        raises UnsupportedModelError. The model is used as it is: in its dtype, on its device.
        `static`: CUDA graphs, compiled passes and exact mode (docs/gpu.md).
        `load_draft`: loads what `draft_model=` names, for several engines; None: for this one alone."""
        self.name = name or getattr(model, "name_or_path", "") or type(model).__name__
        self.model = model
        self.codec = Codec(tokenizer)
        self._lock = lock = lock_of(model)
        self.is_unloaded = False
        self._on_unsupported, self._static = on_unsupported, static
        self._costs = CostModel()
        self._drafting = drafting = DraftModels(model, self.codec, load_draft)
        self._pass_lock = PassLock(lambda: [lock, *drafting.locks])
        self._threads = Threads(model, self._costs)
        self._given_threads: int | None = None
        self.scheduler = CallScheduler(self.name)
        self.prefix_cache = PrefixCache()
        """What calls with `prefix_cache=True` keep: `max_bytes` of it at most, `clear` forgets it."""
        self._make_parts()

    def _make_parts(self) -> None:
        """What is made of the model's and the tokenizer's sizes and tokens: as they are now."""
        model = self.model
        self._vocabulary = _vocabulary(model)
        self._target = wrap(model, on_unsupported=self._on_unsupported, static=self._static)
        limit = encoder_length(model.config)
        self._jobs = JobMaker(
            self._target,
            self.codec,
            lambda: generation_config.read(model),
            limit,
            self._drafting,
            self.prefix_cache,
        )
        self._jobs.config(CallOptions())  # says what is wrong with it

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        return self.codec.tokenizer

    @property
    def max_length(self) -> int | None:
        """Tokens of the longest prompt that the model reads; None where there is no end.

        A decoder's prompt and output share it. Longer prompts raise PromptTooLongError."""
        self._check_loaded()
        return encoder_length(self.model.config) if self._target.is_encoder_decoder else self._target.max_length

    @property
    def split_length(self) -> int | None:
        """Where longer texts are split: `max_length`, or the length that a model without an end was trained for."""
        return self.max_length or trained_length(self.model.config)

    @property
    def threads(self) -> int:
        """Threads of torch that the next pass of a model on a CPU takes: as many as are measured to be best, or the
        number that was set here. `threads=` of a call goes before."""
        return self._given_threads or self._threads.count()

    @threads.setter
    def threads(self, count: int | None) -> None:
        if count is not None:
            check_whole("threads", count, low=1, why="None: as many as are measured to be best")
        self._given_threads = count

    @property
    def turn(self) -> AbstractContextManager[object]:
        """Entered around every pass of the model, by those who pass something through it themselves."""
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
        self, prompt: object, references: object = None, *, stream: bool = False, **options: Unpack[GenerateOptions]
    ) -> Result | list[Result] | Iterator[Chunk]:
        """As `copyspec.generate`, with this model."""
        check_flag("stream", stream)
        call = self.start(prompt, references, check_options(options))
        return call.chunks() if stream else call.answer()

    def stream(self, prompt: object, references: object = None, **options: Unpack[GenerateOptions]) -> Iterator[Chunk]:
        """The output in pieces, as the model's passes bring them. Closing the iterator ends the generation.

        Wrong arguments raise here, not with the first piece.
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
        """Puts prompts into the engine's queue, where calls share passes of the model: as `generate`, to be waited for
        with `Call.results`, `chunks`, or, where `loop` is the running event loop, `aresults` or `achunks`."""
        return self.start(prompt, references, check_options(options), loop)

    def start(
        self, prompt: object, references: object, options: CallOptions, loop: asyncio.AbstractEventLoop | None = None
    ) -> Call:
        """As `submit`, with options that are checked already."""
        with self.scheduler.arriving():
            options = self.followed(options)
            jobs, single = self.jobs(prompt, references, options)
            ticket = self._enqueue([job.request for job in jobs], options, loop)
        return Call(self.scheduler, ticket, jobs, single=single, timeout=options.timeout)

    def generate_each(
        self,
        inputs: Iterable[Input | None],
        *,
        ordered: bool = True,
        skip_too_long: bool = False,
        **options: Unpack[GenerateOptions],
    ) -> Iterator[tuple[int, Result | None]]:
        """(index of the input, its result) for any number of inputs, in the memory of a batch.

        Inputs are taken as rows become free, and what is wrong with one raises when it is taken. Results come in the
        order of the inputs; with `ordered=False` as they finish. `skip_too_long`: the result of a prompt that does
        not fit into the model's context is None, instead of PromptTooLongError. A None among the inputs says that
        there is nothing to add at this moment. Closing the iterator ends the generation.
        """
        checked = self.followed(check_options(options))
        # Loaded now: inputs are taken while this thread has the model.
        self._drafting.predictors(checked.draft_models)
        if checked.contrast is not None:
            self._drafting.amateur(checked.contrast)
        return generate_each(self, inputs, checked, ordered=ordered, skip_too_long=skip_too_long)

    def queued(self, requests: Iterable[Request | None], options: CallOptions) -> Iterator[list[StepOutput]]:
        """As `steps`, in passes that other callers share. Closing it ends these rows."""
        return self.scheduler.steps(self._enqueue(requests, options), options.timeout)

    def followed(self, options: CallOptions) -> CallOptions:
        """The options, with what the generation_config samples with where they do not say."""
        self._check_loaded()
        return self._current_jobs().followed(options)

    def jobs(
        self, prompt: object, references: object, options: CallOptions, earlier: Sequence[Sequence[int]] = ()
    ) -> tuple[list[Job], bool]:
        """One job per prompt and sample, and whether there was one prompt alone; `earlier` as in `Input`."""
        self._check_loaded()
        prompts, single = gather(prompt, references, options, earlier)
        return self._current_jobs().make(prompts, options), single

    def steps(
        self, requests: Iterable[Request | None], options: CallOptions, *, keep_margins: bool = False
    ) -> Generator[list[StepOutput], None, None]:
        """Decodes step by step, taking turns with other threads: as `decode`. Closing it frees the caches.

        `requests` is asked for more while this thread has the model.
        """
        settings = DecodeSettings(draft=options.draft, batch_size=options.batch_size, keep_margins=keep_margins)
        self._check_loaded()
        passes = self._passes(options)
        steps = decode(self._target, requests, settings, self._costs)
        advance = partial(next, steps, None)
        try:
            while (outputs := passes.run(advance)) is not None:
                yield outputs
        finally:
            self._pass_lock.run(steps.close)

    def _enqueue(
        self, requests: Iterable[Request | None], options: CallOptions, loop: asyncio.AbstractEventLoop | None = None
    ) -> Ticket:
        return self.scheduler.submit(self.steps, requests, options, version=self._target, loop=loop)

    def rewindable(self, make_job: Callable[[], Job], options: CallOptions) -> RewindableSequence:
        """One output that its caller decodes step by step and may take back, taking turns with other threads.

        `make_job` gives equal jobs each time, as `jobs` makes them."""
        self._check_loaded()
        passes = self._passes(options)
        return RewindableSequence(self._target, lambda: make_job().request, options.draft, self._costs, passes)

    def unload(self) -> None:
        """Lets go of the model, which is freed when running streams have ended. New calls raise RuntimeError."""
        self.is_unloaded = True
        with self._lock:
            for name in _UNLOADED:
                self.__dict__.pop(name, None)
            self._drafting.unload()
        self.prefix_cache.clear()

    def _passes(self, options: CallOptions) -> Passes:
        """How the passes of one call run."""
        if self._target.device.type != "cpu":
            return Passes(self._pass_lock, None)
        given = options.threads or self._given_threads
        if given is None and not options.draft.adaptive:
            given = self._threads.count()  # one for the whole call, or no run would repeat
        return Passes(self._pass_lock, self._threads, given)

    def _current_jobs(self) -> JobMaker:
        """What makes jobs; made anew where tokens or a template were added to the tokenizer, or the model was resized
        for them. Calls that run already go on with what they began with."""
        if not self.codec.is_current or self._vocabulary != _vocabulary(self.model):
            codec = Codec(self.tokenizer)
            self._drafting.rematch(codec)
            with self._lock:
                self.codec = codec
                self._make_parts()
        return self._jobs

    def _check_loaded(self) -> None:
        check_forked(self._lock, f"decoding with {self.name!r}")
        if self.is_unloaded:
            raise RuntimeError(f"the engine of {self.name!r} was unloaded; load the model again with copyspec.load")

    def __getattr__(self, name: str) -> NoReturn:
        """What `unload` took away, perhaps while another thread was about to ask for it."""
        if name in _UNLOADED and self.__dict__.get("is_unloaded"):
            self._check_loaded()
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)

    def __repr__(self) -> str:
        return f"Engine({self.name!r})"


def _vocabulary(model: PreTrainedModel) -> tuple[object, ...]:
    """The sizes of the vocabulary that the model reads and writes: `resize_token_embeddings` changes them."""
    config = model.config.get_text_config(decoder=True)
    return getattr(config, "decoder_vocab_size", None), config.vocab_size
