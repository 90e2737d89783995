"""The only place that loads other people's files: configurations, models and tokenizers, by hub id or folder.

No code of a model is run by default. `trust_remote_code` is always passed to transformers, which would otherwise ask on
stdout and read the answer from stdin; files are checked first for anything that transformers does without asking
(`copyspec.models.files`).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from copyspec.common.building import building
from copyspec.common.checks import brief
from copyspec.common.forks import fork_safe
from copyspec.models.aliases import ALIASES, Alias, install_hint
from copyspec.models.bounds import LOADING, bounded, check_complete
from copyspec.models.errors import (
    MAX_NAME,
    CodeError,
    FileError,
    LoadError,
    expanded,
    first_line,
    is_path,
    load_errors,
    why_not,
)
from copyspec.models.files import (
    ADAPTER,
    BESIDE_TOKENIZER,
    CONFIG,
    GENERATION,
    MAX_TOKENIZER,
    SPECIAL_TOKENS,
    TEKKEN,
    TOKENIZER,
    TOKENIZER_CONFIG,
    VOCABULARIES,
    VOCABULARY_SETTINGS,
    WEIGHTS,
    WEIGHTS_INDEX,
    check_config,
    check_folder,
    check_size,
    check_sizes,
    check_special_tokens,
    check_tokenizer,
    code_of,
    is_file_name,
    open_weights,
    optional_json,
    pickled,
    tokenizer_names,
    weight_names,
)
from copyspec.models.progress import hidden_bars
from copyspec.models.resolve import is_adapter, is_here, place, resolve
from copyspec.models.tokenizer_files import check_pipeline, check_tekken

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

ATTENTION = ("eager", "sdpa", "flex_attention")
"""Attention implementations that a configuration may request; others are in other packages, or are downloaded code."""

PROBE = "He goes home."


@dataclass(frozen=True, slots=True)
class Pretrained:
    """A model by hub id, folder, GGUF file or alias. Its methods raise LoadError for anything wrong with the files."""

    name: str
    revision: str | None = None
    trust_remote_code: bool = False
    adapter: str | None = None
    """Folder of a LoRA adapter that is merged into the model."""
    hub: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """Options of the hub client: `token`, `cache_dir`, `local_files_only`."""
    is_tokenizer: bool = False
    """Whether the caller named it as the tokenizer: an adapter's folder is then read itself, if it holds one."""
    _place: str | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for what, name in (("model", self.name), ("adapter", self.adapter or "")):
            if len(name) > MAX_NAME:
                raise LoadError(
                    f"{what} {brief(name)} has {len(name):,} characters, and no path or hub id has more than "
                    f"{MAX_NAME:,}; give a hub id or a folder"
                )

    @property
    def place(self) -> str:
        """The folder or hub repository to load, found once: this may hash the weights. The first access converts the
        model if necessary."""
        # `functools.cached_property` would hold one lock for all models before Python 3.12.
        if self._place is None:
            object.__setattr__(self, "_place", self._resolved())
        assert self._place is not None
        return self._place

    def _resolved(self) -> str:
        if self.is_tokenizer and self.name not in ALIASES:
            folder = expanded(self.name, "tokenizer")
            if is_adapter(folder) and (folder / TOKENIZER_CONFIG).is_file():
                return os.fspath(folder)
        revised = {"revision": self.revision} if self.revision is not None else {}
        return resolve(self.name, self.adapter, {**self.hub, **revised})

    def config(self) -> PreTrainedConfig:
        """The model's configuration, without references to kernels."""
        from transformers import AutoConfig

        with self._one_line_errors():
            self._check_config(is_model=True)
            config: PreTrainedConfig = AutoConfig.from_pretrained(
                self.place, revision=self.revision, trust_remote_code=self.trust_remote_code, **self.hub
            )
            if not self.trust_remote_code:
                _forget_kernels(config)
        return config

    def model(
        self,
        kind: Any,
        config: PreTrainedConfig,
        *,
        dtype: str | torch.dtype = "auto",
        device_map: object = None,
        more: Mapping[str, Any] | None = None,
    ) -> PreTrainedModel:
        """Load the model; `kind` is one of transformers' `AutoModel...` classes. Weights must be safetensors; pickles
        are read only with `trust_remote_code`. `more`: checked options of `from_pretrained`. Raises LoadError if any
        weight is missing."""
        with self._one_line_errors():
            size = self._check_weights()
            with building(), bounded(size), hidden_bars():
                model, info = kind.from_pretrained(
                    self.place,
                    config=config,
                    revision=self.revision,
                    trust_remote_code=self.trust_remote_code,
                    use_safetensors=None if self.trust_remote_code else True,
                    dtype=dtype,
                    device_map=device_map,
                    **{**self.hub, **(more or {}), **LOADING},
                )
            check_complete(info)
        loaded: PreTrainedModel = model
        return loaded

    def tokenizer(self, missing: str | None = None) -> PreTrainedTokenizerBase:
        """Load the tokenizer. `missing`: the beginning of the error message."""
        from transformers import AutoTokenizer, PreTrainedTokenizerBase

        with self._one_line_errors(missing or f"no tokenizer for {self.name!r}; give tokenizer="):
            self._check_config()
            tokenizer = AutoTokenizer.from_pretrained(
                self.place,
                revision=self.revision,
                trust_remote_code=self.trust_remote_code,
                **self.hub,
                **self._check_tokenizer(),
            )
            if not isinstance(tokenizer, PreTrainedTokenizerBase):
                raise FileError(f"{TOKENIZER_CONFIG} makes a {type(tokenizer).__name__}, which is not a tokenizer")
            # An unusable tokenizer fails here instead of in the middle of a call. Without any file, transformers makes
            # some classes with a vocabulary of special tokens.
            probed = tokenizer(PROBE, add_special_tokens=False)["input_ids"]
            is_text = bool(str(tokenizer.decode(probed, skip_special_tokens=True)).strip())
            # Vocabularies of DNA or music lack English words, too.
            if not (is_text or len(set(tokenizer.get_vocab()) - set(tokenizer.all_special_tokens)) > 1):
                raise FileError(
                    f"it makes no tokens of {PROBE!r} but unknown ones; save the tokenizer's files, {TOKENIZER} for "
                    "example, in the model's folder"
                )
            if self.name in ALIASES:
                add_frame(tokenizer)
        return tokenizer

    def file(self, name: str) -> Path | None:
        """Path of one regular file of the model; None if there is none of this name."""
        with self._one_line_errors():
            return self._find(name)

    def _find(self, name: str, *, is_needed: bool = False) -> Path | None:
        """Path of one file, downloaded to the cache if it is on the hub. `is_needed`: raise OSError if the hub lacks it
        or cannot be reached."""
        if os.path.isdir(self.place):
            path = Path(self.place, name)
            if path.exists() and not path.is_file():  # reading a pipe may never end
                raise FileError(f"{name} is not a regular file")
            return path if path.exists() else None
        from transformers.utils.hub import cached_file

        file = cached_file(
            self.place,
            name,
            revision=self.revision,
            _raise_exceptions_for_missing_entries=is_needed,
            _raise_exceptions_for_connection_errors=is_needed or name == CONFIG,
            **self.hub,
        )
        return None if file is None else Path(file)

    def _check_config(self, *, is_model: bool = False) -> None:
        if os.path.isdir(self.place):
            check_folder(Path(self.place))
            check_sizes(Path(self.place))
            if is_model and not any(Path(self.place, name).exists() for name in (CONFIG, ADAPTER)):
                raise FileError(_no_model(Path(self.place)))
        elif os.path.lexists(self.place):
            raise FileError("it is a file; give the folder that holds it")
        elif is_path(self.place):
            raise FileError("there is no such folder")
        else:
            self._check_connection()
            if is_model:
                self._reach_hub()
        check_config(optional_json(self._find, CONFIG), trusted=self.trust_remote_code)
        optional_json(self._find, GENERATION)
        if not (self.trust_remote_code or self.is_tokenizer) and self._find(ADAPTER) is not None:
            raise FileError(
                f"{ADAPTER} makes it an adapter of another model; merge the two (PEFT's merge_and_unload) and save "
                "that in a folder of its own"
            )

    def _check_connection(self) -> None:
        """Raise ConnectionError at once if the hub is needed and cannot be reached. Its client would try six times, for
        half a minute, and has no option against that."""
        from huggingface_hub import constants, get_hf_file_metadata, hf_hub_url, try_to_load_from_cache
        from huggingface_hub.errors import HfHubHTTPError

        if constants.HF_HUB_OFFLINE or self.hub.get("local_files_only"):
            return
        try:
            if try_to_load_from_cache(self.place, CONFIG, self.hub.get("cache_dir"), self.revision) is None:
                get_hf_file_metadata(hf_hub_url(self.place, CONFIG, revision=self.revision), self.hub.get("token"))
        except (HfHubHTTPError, ValueError):
            return  # the hub answers, or the name is invalid: loading reports it
        except Exception as error:  # the errors of its network library
            raise ConnectionError(f"there is no connection to {constants.ENDPOINT} ({first_line(error)})") from error

    def _reach_hub(self) -> None:
        """Raise OSError if the hub has no such model or cannot be reached, before each file is tried in turn."""
        try:
            self._find(CONFIG, is_needed=True)
        except OSError as error:
            if "connect" in str(error).lower() or self._find(ADAPTER) is None:
                raise

    def _check_weights(self) -> int | None:
        """Size of the weights in bytes; None if unknown."""
        if self.trust_remote_code:
            return None
        names = weight_names(self._find)
        if not os.path.isdir(self.place):
            return None  # they may have to be downloaded or converted on the hub first
        if not names:
            there = pickled(Path(self.place))
            raise FileError(
                f"there is no {WEIGHTS}"
                + (f", and {there[0]} may run code when it is read: save it as safetensors" if there else "")
            )
        paths = {name: self._find(name) for name in names}
        missing = [name for name, path in paths.items() if path is None]
        if missing:
            raise FileError(f"there is no {missing[0]!r}, which {WEIGHTS_INDEX} or {CONFIG} names")
        size = 0
        for path in filter(None, paths.values()):
            with open_weights(path):  # its errors name the file
                size += path.stat().st_size
        return size

    def _check_tokenizer(self) -> dict[str, None]:
        """Options that override disallowed paths in the tokenizer's configuration."""
        import transformers

        settings = optional_json(self._find, TOKENIZER_CONFIG)
        check_tokenizer(settings, trusted=self.trust_remote_code)
        names = tokenizer_names(settings)
        if self.trust_remote_code:
            return {}
        for name in names:
            check_pipeline(optional_json(self._find, name, limit=MAX_TOKENIZER))
        check_tekken(optional_json(self._find, TEKKEN, limit=MAX_TOKENIZER))
        check_special_tokens(optional_json(self._find, SPECIAL_TOKENS))
        if not os.path.isdir(self.place):  # in a folder they are checked already
            for file_name, limit in {**BESIDE_TOKENIZER, **VOCABULARIES}.items():
                if (path := self._find(file_name)) is not None:
                    check_size(path, limit)
        for file, config in ((TOKENIZER_CONFIG, settings), (CONFIG, optional_json(self._find, CONFIG))):
            named = config.get("tokenizer_class")
            # transformers would accept any of its class names, including models that load themselves.
            kind = getattr(transformers, named, None) if isinstance(named, str) else named
            if kind is not None and not (isinstance(kind, type) and _is_tokenizer(kind)):
                raise FileError(f"{file} has tokenizer_class {named!r}, which is not a tokenizer")
        paths = (key for key, value in settings.items() if key.endswith("_file") and isinstance(value, str))
        disallowed = {*VOCABULARY_SETTINGS, *(key for key in paths if not is_file_name(str(settings[key])))}
        return {key: None for key in settings if key in disallowed}

    @contextmanager
    def _one_line_errors(self, missing: str | None = None) -> Iterator[None]:
        """Convert every error into a LoadError of one line."""

        def message(error: BaseException) -> str:
            return self._needs_code(str(error)) if isinstance(error, CodeError) else self._why_not(missing, error)

        with load_errors(message), _QUESTIONS.suppressed():
            yield

    def _needs_code(self, why: str) -> str:
        return (
            f"model {self.name!r} cannot be loaded without running code of its own: {why}. Take a model that needs "
            "none, or read that code, and where you trust it, load the model in Python with trust_remote_code=True"
        )

    def _named_code(self) -> str | None:
        for file in (CONFIG, TOKENIZER_CONFIG):
            try:
                named = code_of(file, optional_json(self._find, file))
            except Exception:  # report the original error instead
                continue
            if named is not None:
                return named
        return None

    def _why_not(self, missing: str | None, error: BaseException) -> str:
        code = self._named_code() if not self.trust_remote_code and "trust_remote_code" in str(error) else None
        if code is not None:
            return self._needs_code(code)
        alias = ALIASES.get(self.name)
        if alias is not None and (self.adapter is None or not is_here(alias)):
            return _why_not_alias(alias, error)
        if missing:
            return f"{missing} ({first_line(error)})"
        close = (
            []
            if alias is not None or os.path.lexists(os.path.expanduser(self.name))
            else get_close_matches(self.name, [*ALIASES, "default"], 1)
        )
        return why_not(self.name, error) + (f" (did you mean {close[0]!r}?)" if close else "")


def _why_not_alias(alias: Alias, error: BaseException) -> str:
    if not is_here(alias):
        return f"model {alias.name!r} is not here: {install_hint(alias)} ({first_line(error)})"
    again = f"; `copyspec models remove {alias.name}` has it made again" if place(alias).is_dir() else ""
    return f"model {alias.name!r} cannot be loaded from {os.fspath(place(alias))!r}: {first_line(error)}{again}"


def _no_model(folder: Path) -> str:
    """The message for a folder without a configuration."""
    message = f"there is no {CONFIG} in it: give the folder that save_pretrained wrote"
    if files := sorted(path.name for path in folder.glob("*.gguf")):
        return f"{message}, or the file {str(folder / files[0])!r}"
    inside = sorted(path.parent.name for path in folder.glob(f"*/{CONFIG}"))
    return f"{message}, or {str(folder / inside[0])!r}" if inside else message


def _is_tokenizer(kind: type) -> bool:
    from transformers import PreTrainedTokenizerBase

    return issubclass(kind, PreTrainedTokenizerBase)


def _forget_kernels(config: PreTrainedConfig) -> None:
    """Drop attention implementations that need other packages or downloads, and class replacements."""
    from transformers import PreTrainedConfig

    waiting = [config]
    while waiting:
        part = waiting.pop()
        waiting += [value for value in vars(part).values() if isinstance(value, PreTrainedConfig)]
        if getattr(part, "_attn_implementation", None) not in (None, *ATTENTION):
            part._attn_implementation = None
        vars(part).pop("fusion_config", None)  # replaces classes of transformers


class _Questions:
    """Stops transformers from asking on stdin, which it does for parts of a model loaded without
    `trust_remote_code`."""

    def __init__(self) -> None:
        self._lock = fork_safe(threading.Lock())
        self._depth, self._seconds = 0, 0

    @contextmanager
    def suppressed(self) -> Iterator[None]:
        from transformers import dynamic_module_utils as module

        with self._lock:
            if not self._depth:
                self._seconds = module.TIME_OUT_REMOTE_CODE
                module.TIME_OUT_REMOTE_CODE = 0  # no time to answer: it raises an error instead of asking
            self._depth += 1
        try:
            yield
        finally:
            with self._lock:
                self._depth -= 1
                if not self._depth:
                    module.TIME_OUT_REMOTE_CODE = self._seconds


_QUESTIONS = _Questions()


_MARK = "\ufdd0"  # a noncharacter, reserved by Unicode for internal use
_BEFORE, _AFTER = "frame-begin", "frame-end"


def add_frame(tokenizer: PreTrainedTokenizerBase) -> None:
    """Make `tokenizer(text)` encode a chat with the single user message `text`, up to the start of the answer.

    `add_special_tokens=False` still encodes the text alone. Nothing changes without a chat template or for a slow
    tokenizer.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None or not tokenizer.chat_template:
        return
    from tokenizers import processors

    chat = [{"role": "user", "content": _MARK}]
    text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    assert isinstance(text, str)
    frame = []
    for name, part in zip((_BEFORE, _AFTER), text.split(_MARK), strict=True):
        ids = tokenizer(part, add_special_tokens=False)["input_ids"]
        frame.append({"id": name, "ids": ids, "tokens": tokenizer.convert_ids_to_tokens(ids)})
    around = [_BEFORE, "$A", _AFTER]
    framing = processors.TemplateProcessing(single=around, pair=[*around, "$B"], special_tokens=frame)
    own = backend.post_processor
    keeps = isinstance(own, processors.ByteLevel)  # it only sets offsets; other processors add tokens
    backend.post_processor = processors.Sequence([own, framing]) if keeps else framing
