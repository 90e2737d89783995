"""What both LangChain models share: the engine that answers, the options of every call, and streams."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import aclosing
from pathlib import PurePath
from types import NoneType
from typing import TYPE_CHECKING, Any, TypeAlias
from uuid import uuid4
from weakref import WeakKeyDictionary

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, SecretStr, model_validator

import copyspec
from copyspec.common.checks import plain_value
from copyspec.engine.asking.call_options import OPTIONS
from copyspec.engine.asking.unknown import reject_unknown
from copyspec.models.loading import BUNDLED, DEFAULT, LoadError, choose_default

from . import capture
from .documents import Private

if TYPE_CHECKING:
    from langchain_core.language_models import LangSmithParams, LanguageModelInput
    from langchain_core.runnables import RunnableConfig
    from typing_extensions import Self

    from copyspec import Engine

DEFAULT_NAME = "copyspec-default"
"""The bundled model's name in traces and metadata, instead of a path on this machine."""

PRIVATE = ("references", "prediction", "edit_source", "output_cache", "datastore")
"""Options with texts to copy from. They are kept out of traces, since they may be confidential, and out of cache keys,
since they do not change the output under the default rule; under others, answers are not cached (`cache_params`)."""

_ELSEWHERE = {"max_new_tokens": "max_tokens", "stop_sequences": "stop", "model_name": "model", "model_id": "model"}


Stop: TypeAlias = list[str] | None
"""As LangChain's methods take it. Their managers of callbacks are of two types, which the base classes name."""

CONFIG = ConfigDict(extra="forbid", arbitrary_types_allowed=True, protected_namespaces=())
"""Makes misspelt options errors. Pydantic reads it from the last base class, so each model class sets it."""


class EngineFields(BaseModel):
    """The base of `ChatCopySpec` and `CopySpecLLM`, before LangChain's own. Draft options do not change answers."""

    model_config = CONFIG

    model: object = Field(default=None, repr=False)
    """A hub id, a folder, a GGUF file, "smollm2", a transformers model or an engine, as for `copyspec.generate`; loaded
    on the first call. None: the model of `copyspec.configure`, of $COPYSPEC_MODEL, or the default."""
    tokenizer: object = Field(default=None, repr=False)
    device: object = None
    dtype: object = "auto"
    trust_remote_code: bool = False
    """True runs code of `model`'s folder or repository, with all rights of this process. It does not apply to a model
    named in a call."""
    temperature: float | None = 0.0
    """0, the default, is greedy; None: as the model's generation_config says."""
    max_tokens: int | None = None
    """Maximum length of the answer; None: 512."""
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    stop: list[str] | str | None = None
    """Strings that end an answer, overridden by a call's own `stop`. They are not part of the answer."""
    n: int = 1
    batch_size: int | None = None
    """Number of prompts decoded at once, over all callers of this engine."""
    timeout: float | None = None
    """Seconds a call may take before it raises TimeoutError."""
    streaming: bool = False
    """Stream inside `invoke` too, for callback handlers that need tokens."""
    model_kwargs: Mapping[str, object] = Field(default_factory=dict, repr=False)
    """Further options of `copyspec.generate`, such as `logit_bias` or `drafter`."""
    auto_references: bool = True
    """Copy from documents that retrievers of the same run found, and from the artifacts of tools."""
    max_retries: int | None = Field(default=None, repr=False)
    """Accepted for compatibility; a local model has no transient failures."""
    api_key: SecretStr | None = Field(default=None, repr=False)
    """Accepted for compatibility; a local model needs no key."""

    _engine: Engine | None = PrivateAttr(default=None)

    @model_validator(mode="before")
    @classmethod
    def _rename(cls, values: object) -> object:
        """Translate other libraries' names. Raises ValueError for an unknown name, suggesting a similar one."""
        if not isinstance(values, dict):
            return values
        renamed = {str(name): value for name, value in values.items()}
        for name, own in _ELSEWHERE.items():
            if (value := renamed.pop(name, None)) is None:
                continue
            if renamed.get(own) not in (None, value):
                raise ValueError(f"{name!r} and {own!r} are one option: give one of them")
            renamed[own] = value
        for name in ("model", "tokenizer"):  # as str, since traces and cache keys would not tell Paths apart
            if isinstance(value := renamed.get(name), os.PathLike):
                renamed[name] = os.fspath(value)
        for name in renamed:
            if name in (*OPTIONS, *PRIVATE) and name not in cls.model_fields:
                alternative = "" if name in PRIVATE else f" or model_kwargs={{{name!r}: ...}}"
                raise ValueError(f"{name!r} is an option of calls: give bind({name}=...){alternative}")
        try:
            reject_unknown(renamed, cls.model_fields)
        except TypeError as error:  # pydantic would not convert a TypeError
            raise ValueError(str(error)) from None
        return renamed

    @model_validator(mode="after")
    def _look_for_documents(self) -> Self:
        if self.auto_references:
            capture.install()
        return self

    def __repr_args__(self) -> Iterable[tuple[str | None, object]]:
        return [("model", self.shown_name()), *super().__repr_args__()]

    @property
    def engine(self) -> Engine:
        """The engine, loaded on first access. Raises copyspec.LoadError if that fails."""
        if self._engine is None or self._engine.is_unloaded:
            self._engine = self._load(self.model)
        return self._engine

    @property
    def model_name(self) -> str:
        """The model's name, where LangChain looks for it: `model` itself may be an engine."""
        return self.shown_name()

    def engine_for(self, model: object) -> tuple[Engine, str]:
        """The engine of one call, and its name; `model` is the call's own choice, or None."""
        if model is None or model == self.shown_name():
            return self.engine, self.shown_name()
        engine = self._load(model)
        return engine, model if isinstance(model, str) else engine_name(engine)

    def __getstate__(self) -> dict[Any, Any]:
        """What is pickled: a loaded engine is not, and another process loads the model by its name."""
        state = super().__getstate__()
        return {**state, "__pydantic_private__": {**(state["__pydantic_private__"] or {}), "_engine": None}}

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Self:
        """Copies share the model."""
        memo = {} if memo is None else memo
        memo |= {id(part): part for part in (self._engine, self.model, self.tokenizer) if part is not None}
        return super().__deepcopy__(memo)

    def _load(self, model: object) -> Engine:
        if isinstance(model, copyspec.Engine):
            return model
        settings = {"tokenizer": self.tokenizer, "device": self.device, "dtype": self.dtype}
        options = {name: value for name, value in settings.items() if value not in (None, "auto")}
        if self.trust_remote_code and model is self.model:
            options["trust_remote_code"] = True
        return copyspec.load(model, **options)  # type: ignore[arg-type]  # load says what is wrong with them

    def shown_name(self) -> str:
        """The model's name, without loading it."""
        if self.model is None and self._engine is None:
            try:
                name = choose_default()
            except LoadError:
                return DEFAULT_NAME
        elif isinstance(self.model, str):
            name = self.model
        else:
            named = self._engine or self.model
            name = str(getattr(named, "name", None) or getattr(named, "name_or_path", None) or type(named).__name__)
        return DEFAULT_NAME if name in (DEFAULT, str(BUNDLED)) else name

    def stream(
        self,
        input: LanguageModelInput,
        config: RunnableConfig | None = None,
        *,
        stop: list[str] | None = None,
        **kwargs: Any,
    ) -> Iterator[Any]:
        """Yield the answer in pieces. Closing the iterator ends the decoding within one step."""
        capture.stream_begins(config)
        yield from super().stream(input, config, stop=stop, **private(kwargs))  # type: ignore[misc]  # LangChain's

    async def astream(
        self,
        input: LanguageModelInput,
        config: RunnableConfig | None = None,
        *,
        stop: list[str] | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[Any]:
        """Like `stream`. Cancelling the task ends the decoding, too."""
        capture.stream_begins(config)
        async with aclosing(super().astream(input, config, stop=stop, **private(kwargs))) as pieces:  # type: ignore[misc]
            async for piece in pieces:
                yield piece

    def get_token_ids(self, text: str) -> list[int]:
        """Return the model's token ids of a text."""
        return self.engine.codec.encode(text).ids

    def _get_ls_params(self, stop: list[str] | None = None, **kwargs: Any) -> LangSmithParams:
        """The parameters that a trace shows first: provider, model and stop strings, overridden by the call's own."""
        params: LangSmithParams = super()._get_ls_params(stop=stop, **kwargs)  # type: ignore[misc]  # LangChain's
        params["ls_provider"] = "copyspec"
        if not isinstance(kwargs.get("model"), str):
            params["ls_model_name"] = self.shown_name()
        own = stop or self.stop
        if isinstance(own, (str, list, tuple)) and own:  # anything else raises an error in the call itself
            params["ls_stop"] = [own] if isinstance(own, str) else [str(string) for string in own]
        return params

    def call_options(self, stop: object, kwargs: Mapping[str, object]) -> dict[str, object]:
        """Options of one call for `Engine.jobs`: the model's own, overridden by the call's."""
        options: dict[str, object] = {name: getattr(self, name) for name in (*_SAMPLING, "batch_size", "stop")}
        own = {name: value for name, value in kwargs.items() if name not in _NOT_OPTIONS}
        for more in (self.model_kwargs, own):
            changes = {name: value for name, value in more.items() if value is not None}
            if "max_new_tokens" in changes and "max_tokens" not in changes:  # given both, the engine names them
                changes["max_tokens"] = changes.pop("max_new_tokens")
            options |= changes
        if stop is not None:
            options["stop"] = stop
        top = options.pop("top_logprobs", 0)
        if isinstance(options.get("logprobs"), bool):  # as for OpenAI's models
            options["logprobs"] = top if options["logprobs"] else None
        options |= {name: value.value for name, value in options.items() if isinstance(value, Private)}
        return {name: value for name, value in options.items() if value is not None}

    def traced_params(self) -> dict[str, object]:
        """The parameters shown in traces: everything that may change an answer."""
        name = self.shown_name()
        identity = name if isinstance(self.model, (str, type(None))) else f"{name} {_mark(self.model)}"
        if self.tokenizer is not None:
            named = self.tokenizer if isinstance(self.tokenizer, str) else _mark(self.tokenizer)
            identity = f"{identity}, tokenizer {named}"
        sampling = {name: getattr(self, name) for name in _SAMPLING if getattr(self, name) is not None}
        # Not named "stop": LangChain puts the call's own there, and two models would share cached answers.
        return {
            "model": identity,
            "dtype": str(self.dtype),
            "own_stop": self.stop,
            **sampling,
            **public(self.model_kwargs),
        }

    def cache_params(self, kwargs: Mapping[str, object]) -> dict[str, object]:
        """The options of one call in its cache key, beside `traced_params`. With a rule the answer may depend on
        drafts, whose texts are not in the key, so a number of its own keeps it from being another's."""
        options = {**public(self.model_kwargs), **public(kwargs)}
        drafted = {"drafted": uuid4().hex} if "rule" in options else {}
        return {"options": {name: _identified(options[name]) for name in sorted(options)}, **drafted}


_SAMPLING = ("temperature", "max_tokens", "top_p", "top_k", "min_p", "repetition_penalty", "seed", "n")
_NOT_OPTIONS = frozenset(("references", "model", "tools", "parallel_tool_calls", "timeout", "stream", "stop"))


_MARKS: WeakKeyDictionary[object, str] = WeakKeyDictionary()


def _mark(value: object) -> str:
    """A number for an object that no other gets, not even one in another process or at its address; a new one each time
    for an object without a hash or weak references."""
    try:
        return _MARKS.setdefault(value, uuid4().hex)
    except TypeError:
        return uuid4().hex


def _identified(value: object) -> object:
    """A value of a cache key, whose repr tells it from all others. That of a class or function does not, nor that of
    most objects."""
    value = plain_value(value)
    if isinstance(value, Mapping):
        return {name: _identified(item) for name, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_identified(item) for item in value]
    if isinstance(value, (str, bytes, int, float, PurePath, NoneType)):
        return value
    if isinstance(value, type) and hasattr(value, "model_json_schema"):
        return json.dumps(value.model_json_schema())
    return f"{value!r} {_mark(value)}"  # the repr, too: a configuration may be changed between two calls


def engine_name(engine: Engine) -> str:
    """The name of an engine in messages, metadata and traces."""
    return DEFAULT_NAME if engine.name == str(BUNDLED) else engine.name


def public(params: Mapping[str, object]) -> dict[str, object]:
    """The `params` that are given (None is not), without the texts to copy from."""
    return {name: value for name, value in params.items() if name not in PRIVATE and value is not None}


def private(params: Mapping[str, object]) -> dict[str, object]:
    """`params` with the texts to copy from hidden from tracers."""
    hidden = {name: Private(value) for name, value in params.items() if name in PRIVATE and value is not None}
    return {**params, **hidden}
