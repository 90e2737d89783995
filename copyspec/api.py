"""The public functions (`generate`, `agenerate`, `compare`, `load`, `configure`, ...) and the choice of the model
behind them."""

from __future__ import annotations

import logging
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Iterator, Mapping
from dataclasses import fields
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypedDict, overload

from copyspec.common import forks
from copyspec.common.checks import check_count, check_flag, shown
from copyspec.engine import aio
from copyspec.engine.aio import AsyncChunks
from copyspec.engine.asking.call_options import check_options
from copyspec.engine.asking.inputs import ManyPrompts, OnePrompt, parse_prompts, references
from copyspec.engine.asking.keywords import GenerateOptions
from copyspec.engine.asking.unknown import reject_unknown
from copyspec.engine.comparison import compare_jobs
from copyspec.engine.engine import Engine
from copyspec.engine.logits import language
from copyspec.engine.results import Chunk, Comparison, Result
from copyspec.engine.running.call import Call
from copyspec.models.aliases import ALIASES
from copyspec.models.errors import expanded, first_line, load_errors
from copyspec.models.loading import (
    BUNDLED,
    DEFAULT,
    MODEL_VARIABLE,
    ModelChoice,
    about_default,
    checked_choice,
    choose_default,
    identity,
    load_model,
    resolve_name,
)
from copyspec.models.resolve import is_adapter
from copyspec.options import StaticOptions
from copyspec.targets.base import UnsupportedModelError

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase
    from typing_extensions import Unpack


__all__ = ["agenerate", "compare", "configure", "generate", "load", "references", "unload"]

logger = logging.getLogger(__name__)

# Two models can be compared without reloading either; more would fill a GPU.
MAX_LOADED = 2


class LoadOptions(TypedDict, total=False):
    """Options that say how a model is loaded."""

    tokenizer: str | PreTrainedTokenizerBase | None
    """None: the model's own tokenizer."""
    device: str | torch.device | None
    """None: a CUDA device if there is one. "auto": spread over all devices (needs accelerate)."""
    dtype: str | torch.dtype
    """"auto", the default: as the checkpoint was saved, but float32 for copyspec's own models on x86 CPUs without
    AVX-512."""
    revision: str | None
    on_unsupported: Literal["error", "plain"]
    """For architectures that cannot verify drafts: "error" (the default) raises, "plain" decodes without drafts."""
    static: StaticOptions | None
    """Static shapes, CUDA graphs, compiled forward passes and exact mode: docs/gpu.md."""
    adapter: str | os.PathLike[str] | None
    """The folder of a LoRA adapter (`peft`), merged into `model` once, in float32. If no model is given or configured,
    or if the folder is given as `model`, its base is the one that it names."""
    model_kwargs: Mapping[str, object] | None
    """Options passed on to `from_pretrained`. Accepted: attn_implementation, device_map, max_memory, offload_folder,
    offload_buffers, quantization_config, cache_dir, token, local_files_only."""
    trust_remote_code: bool
    """True runs Python code and loads pickles from the model's folder or repository with the rights of this process.
    Use it only for code you have read, at a fixed `revision`. False (the default) never runs any."""


class ModelKeywords(LoadOptions, total=False):
    """The model that answers, and how it is loaded."""

    model: str | os.PathLike[str] | PreTrainedModel | Engine | None
    """A hub id, a folder, a GGUF file, a name that `copyspec models` lists ("smollm2"; "default" is the model in the
    package), a loaded model or an engine. None: the model set by `configure`, else $COPYSPEC_MODEL, else smollm2 if it
    was fetched or its package is installed, else the model in the package."""


class CallKeywords(GenerateOptions, ModelKeywords, total=False):
    """All keyword options of `generate`, `agenerate` and `compare`."""


class Registry:
    """Loaded engines in least-recently-used order. Thread-safe: each model is loaded once."""

    def __init__(self, max_loaded: int = MAX_LOADED) -> None:
        self.max_loaded = max_loaded
        self._engines: OrderedDict[tuple[object, ...], Engine] = OrderedDict()
        self._lock = forks.fork_safe(threading.RLock())  # protects `_engines`
        self._loading: dict[tuple[object, ...], threading.Lock] = {}  # by key, also protected by it

    def engine(self, choice: ModelChoice, keep: tuple[object, ...] = ()) -> Engine:
        """The engine of `choice`, loaded if necessary. Loaded engines are returned while others load.

        `keep`: the key of an engine that a load does not replace, as the loaded model drafts for it.
        """
        key = choice.key()
        while True:
            with self._lock:
                engine = self._engines.pop(key, None)
                if engine is not None and not engine.is_unloaded:
                    self._engines[key] = engine  # move to the most recently used end
                    return engine
                loading = self._loading.setdefault(key, forks.fork_safe(threading.Lock()))
            forks.check_forked(loading, "loading a model")
            self._load(choice, key, loading, keep)

    def _load(
        self, choice: ModelChoice, key: tuple[object, ...], loading: threading.Lock, keep: tuple[object, ...]
    ) -> None:
        """Load the engine of `choice`, unless another thread has done so in the meantime. Other models load beside it:
        making an engine waits for the passes of its model, whose own code may load another one."""
        with loading:
            with self._lock:
                if key in self._engines:
                    return
            engine = _load_engine(choice, partial(self.engine, keep=key))
            with self._lock:
                self._loading.pop(key, None)
                self._engines[key] = engine
                others = [other for other in self._engines if other not in (key, keep)]  # least recently used first
                for other in others[: max(0, len(self._engines) - self.max_loaded)]:
                    del self._engines[other]  # not unloaded: a caller may use it; it is freed with the last reference

    def names(self) -> list[str]:
        """Names of the loaded models, least recently used first."""
        with self._lock:
            return [engine.name for engine in self._engines.values()]

    def forget(self, model: object = None) -> int:
        """Unload the engines of `model` (its name, path, object or engine; None: all) and return how many."""
        with self._lock:
            gone = [
                key
                for key, engine in self._engines.items()
                if model is None or engine is model or engine.name == model or key[0] == identity(model)
            ]
            engines = [self._engines.pop(key) for key in gone]
        if model is None:
            language.forget()
        for engine in engines:  # without the lock: this waits for a pass, whose own code may load or find a model
            engine.unload()
        return len(engines)


def _load_engine(choice: ModelChoice, load_draft: Callable[[ModelChoice], Engine] | None = None) -> Engine:
    """Load the model and its tokenizer. Raises LoadError, or UnsupportedModelError for its architecture.

    load_draft: loads the models that this one drafts with.
    """
    model, tokenizer = load_model(choice)
    make = partial(
        Engine,
        model,
        tokenizer,
        on_unsupported=choice.on_unsupported,
        static=choice.static,
        load_draft=load_draft,
    )
    name = choice.model
    if not isinstance(name, str):
        return make()
    with load_errors(lambda error: f"model {name!r} cannot be used: {first_line(error)}", but=UnsupportedModelError):
        return make(name=name)


class _State:
    """Module state: the model set by `configure`, and the models that are loaded."""

    def __init__(self) -> None:
        self.registry = Registry()
        self.configured: ModelChoice | Engine | None = None
        self.named_default = False
        self.defaults: dict[bool, str] = {}
        """Default model found on this machine, keyed by `corrects`; cached once found."""


_STATE = _State()


@overload
def generate(
    prompt: OnePrompt,
    references: object = None,
    *,
    stream: Literal[False] = False,
    **options: Unpack[CallKeywords],
) -> Result: ...
@overload
def generate(
    prompt: ManyPrompts,
    references: object = None,
    *,
    stream: Literal[False] = False,
    **options: Unpack[CallKeywords],
) -> list[Result]: ...
@overload
def generate(
    prompt: object, references: object = None, *, stream: Literal[True], **options: Unpack[CallKeywords]
) -> Iterator[Chunk]: ...
def generate(
    prompt: object = None, references: object = None, *, stream: bool = False, **options: Unpack[CallKeywords]
) -> Result | list[Result] | Iterator[Chunk]:
    """Generate the model's output for `prompt`: identical to plain decoding, and faster where it repeats known text.

        >>> import copyspec
        >>> print(copyspec.generate("Correct the grammar: He have a car.", max_new_tokens=40))

    prompt: a str, a chat (`[{"role": "user", "content": ...}]`), a list of token ids, or a list of those. Text is
        always tokenized as text: strings of special tokens inside it never become control tokens. A str is read as it
        is, except by the models that copyspec names; `chat=True` or `system=...` applies the chat template.
    references: texts to copy from that are NOT shown to the model: a str, an object with `.page_content`,
        `{"text": ...}`, token ids, a list of those for all prompts, or one list per prompt. They change the
        output only under a `rule` that lets drafts decide. The prompt and the output so far are always copied from.
    stream: True returns an iterator of `Chunk`s; closing it stops the generation.
    options: see `GenerateOptions` (edit_source, max_new_tokens, temperature, stop, seed, ...) and `ModelKeywords`
        (model, tokenizer, device, dtype, ...). Without `temperature`, decoding is greedy, or as the model's
        generation_config says.

    Returns a `Result` for one prompt and a list of them for a list. Raises TypeError or ValueError for invalid
    arguments, PromptTooLongError (a ValueError) if the prompt leaves no space in the model's context, LoadError if the
    model cannot be loaded, UnsupportedModelError if its architecture cannot verify drafts, and TimeoutError after
    `timeout`.
    """
    if stream is not False:
        check_flag("stream", stream)
    # Before the prompt, which has a default so that input_ids= is an unknown option, with a hint.
    checked = check_options(options, _NOT_OF_CALLS)
    call = _engine(options).start(prompt, references, checked)
    if stream:
        return call.chunks()
    results = call.results()
    return results[0] if call.is_single else results


@overload
def agenerate(
    prompt: OnePrompt,
    references: object = None,
    *,
    stream: Literal[False] = False,
    **options: Unpack[CallKeywords],
) -> Coroutine[Any, Any, Result]: ...
@overload
def agenerate(
    prompt: ManyPrompts,
    references: object = None,
    *,
    stream: Literal[False] = False,
    **options: Unpack[CallKeywords],
) -> Coroutine[Any, Any, list[Result]]: ...
@overload
def agenerate(
    prompt: object, references: object = None, *, stream: Literal[True], **options: Unpack[CallKeywords]
) -> AsyncChunks: ...
def agenerate(
    prompt: object = None, references: object = None, *, stream: bool = False, **options: Unpack[CallKeywords]
) -> Coroutine[Any, Any, Result | list[Result]] | AsyncChunks:
    """`generate` for asyncio. Calls awaited at the same time share forward passes; cancelling the task stops decoding
    within one step.

    With `stream=True` it returns an asynchronous iterator: `async for chunk in agenerate(..., stream=True)`.
    """

    async def submitted() -> Call:
        check_flag("stream", stream)
        checked = check_options(options, _NOT_OF_CALLS)
        return await aio.submit(lambda: _engine(options), prompt, references, checked)

    async def whole() -> Result | list[Result]:
        call = await submitted()
        results = await call.aresults()
        return results[0] if call.is_single else results

    return AsyncChunks(submitted) if stream is True else whole()


@overload
def compare(
    prompt: OnePrompt, references: object = None, *, prompt_lookup: bool = False, **options: Unpack[CallKeywords]
) -> Comparison: ...
@overload
def compare(
    prompt: ManyPrompts, references: object = None, *, prompt_lookup: bool = False, **options: Unpack[CallKeywords]
) -> list[Comparison]: ...
def compare(
    prompt: object = None, references: object = None, *, prompt_lookup: bool = False, **options: Unpack[CallKeywords]
) -> Comparison | list[Comparison]:
    """Decode each prompt plainly and with copying, and report equality, times and the first difference with its scores.

    prompt_lookup: True adds a run that drafts like transformers' prompt lookup (n-grams of at most 2, 10 tokens),
        verified by the same loop: `Comparison.runs`. `Comparison.to_html()` shows all of them side by side.

    In float32 the outputs are equal. In half precision a forward pass over several tokens may round differently from
    passes over one, so near-ties can flip: `Comparison.difference` shows where, and how close the two scores were.
    """
    check_flag("prompt_lookup", prompt_lookup)
    checked = check_options(options, _NOT_OF_CALLS)
    _, single = parse_prompts(prompt)
    comparisons = compare_jobs(_engine(options), prompt, references, checked, with_lookup=prompt_lookup)
    return comparisons[0] if single else comparisons


def load(model: str | os.PathLike[str] | PreTrainedModel | None = None, **options: Unpack[LoadOptions]) -> Engine:
    """Load a model and return its engine; later calls with the same choice of model share it.

    Two models stay loaded, and the least recently used one is dropped first; `configure(max_loaded=...)` changes that.
    """
    reject_unknown(options, LoadOptions.__annotations__)
    return _engine({"model": model, **options})


def load_corrector(
    model: str | os.PathLike[str] | PreTrainedModel | None = None, **options: Unpack[LoadOptions]
) -> Engine:
    """`load` with another default: if no model is named or configured, the best one at correcting and quoting English
    text."""
    reject_unknown(options, LoadOptions.__annotations__)
    return _engine({"model": model, **options}, corrects=True)


def default_name(*, corrects: bool = False) -> str | None:
    """The name of the model that `load` takes if none is given (with `corrects`, `load_corrector`), without loading
    it; None if `configure` set one, as its name would tell neither its adapter nor its tokenizer."""
    if _STATE.configured is not None:
        return None
    chosen = choose_default(corrects=corrects)
    return DEFAULT if chosen == str(BUNDLED) else chosen


def unload(model: str | os.PathLike[str] | PreTrainedModel | Engine | None = None) -> None:
    """Release one loaded model, or all of them; the memory is freed when nothing else refers to them.

    Raises ValueError if `model` is not loaded.
    """
    if isinstance(model, (str, os.PathLike)):
        model = resolve_name(model)
    _STATE.defaults.clear()
    forgotten = _STATE.registry.forget(model)
    if isinstance(model, Engine):
        model.unload()
    elif model is not None and not forgotten:
        names = ", ".join(map(repr, _STATE.registry.names()))
        raise ValueError(f"no such model is loaded: {shown(model)}; loaded: {names or 'none'}")


def configure(*, max_loaded: int | None = None, **options: Unpack[ModelKeywords]) -> None:
    """Set the model for calls that name none. `configure()` restores the default.

    max_loaded: how many models stay loaded; one that drafts never replaces the model that it drafts for.
    """
    if max_loaded is not None:
        _STATE.registry.max_loaded = check_count("max_loaded", max_loaded)
        if not options:
            return
    reject_unknown(options, [*ModelKeywords.__annotations__, "max_loaded"])
    if options and options.get("model") is None:
        raise ValueError(f"configure needs model=... beside {', '.join(sorted(options))}")
    _STATE.configured = _choice(dict(options)) if options else None


_NOT_OF_CALLS = (*ModelKeywords.__annotations__, "references", "stream")
"""Keyword arguments that are not call options; `_engine` reads the model keywords."""


def _engine(options: Mapping[str, object], *, corrects: bool = False) -> Engine:
    """The engine of the model in `options`, loaded if need be; without one, of the configured or the default model."""
    loading = {name: value for name in ModelKeywords.__annotations__ if (value := options.get(name)) is not None}
    configured = _STATE.configured
    if "model" in loading:
        chosen = _choice(loading)
    elif isinstance(configured, Engine):
        chosen = _choice({**loading, "model": configured})
    elif configured is not None:
        standard = ModelChoice(configured.model)
        settings = {field.name: getattr(configured, field.name) for field in fields(configured)}
        settings = {
            name: value for name, value in settings.items() if name == "model" or value != getattr(standard, name)
        }
        chosen = _choice(settings | loading)
    elif "adapter" in loading and not os.environ.get(MODEL_VARIABLE) and _names_base(loading["adapter"]):
        adapter = loading.pop("adapter")
        chosen = _choice({**loading, "model": adapter})
    else:
        model = os.environ.get(MODEL_VARIABLE) or _STATE.defaults.get(corrects) or choose_default(corrects=corrects)
        if model in ALIASES and MODEL_VARIABLE not in os.environ:
            _STATE.defaults[corrects] = model
        # Invalid options raise before the default model is logged.
        chosen = _choice({**loading, "model": model}) if loading else ModelChoice(resolve_name(model))
        if not _STATE.named_default and not os.environ.get(MODEL_VARIABLE):
            _STATE.named_default = True
            logger.warning("%s", about_default(model, corrects=corrects))
    return chosen if isinstance(chosen, Engine) else _STATE.registry.engine(chosen)


def _names_base(adapter: object) -> bool:
    """Whether it is the folder of an adapter, whose configuration names its base."""
    return isinstance(adapter, (str, os.PathLike)) and is_adapter(expanded(os.fspath(adapter), "adapter"))


def _choice(options: dict[str, object]) -> ModelChoice | Engine:
    model = options.get("model")
    loading = {name: value for name, value in options.items() if name != "model" and value is not None}
    if not isinstance(model, Engine):
        return checked_choice(model, loading)
    if loading:
        raise ValueError(f"model is a loaded engine: {', '.join(sorted(loading))} cannot be changed any more")
    return model
