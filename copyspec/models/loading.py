"""Loads models by name, path or object: chooses the model, its device and dtype, and explains failures."""

from __future__ import annotations

import importlib.util
import logging
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from copyspec.checks import brief, shown
from copyspec.models.aliases import ALIASES, CORRECTOR, PREFERRED
from copyspec.models.errors import LoadError as LoadError
from copyspec.models.errors import why_not
from copyspec.models.model_kwargs import ModelKwargs
from copyspec.models.pretrained import Pretrained
from copyspec.models.resolve import is_ready
from copyspec.static_options import StaticOptions

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

logger = logging.getLogger(__name__)

MODEL_VARIABLE = "COPYSPEC_MODEL"
BUNDLED = Path(__file__).parent.parent / "default_model"
DEFAULT = "default"
"""Name of the model in the package, whatever is configured. For a folder of that name give "./default" or a `Path`."""

DTYPES = ("auto", "float32", "bfloat16", "float16")
_SHORT_DTYPES = {"fp32": "float32", "float": "float32", "bf16": "bfloat16", "fp16": "float16", "half": "float16"}


@dataclass(frozen=True, slots=True)
class ModelChoice:
    """A model and how it is loaded. Equal choices share one loaded model."""

    model: str | PreTrainedModel
    tokenizer: str | PreTrainedTokenizerBase | None = None
    device: str | torch.device | None = None  # None: a CUDA device if there is one; "auto": spread over all
    dtype: str | torch.dtype = "auto"  # "auto": as the checkpoint was saved; see `_dtype` for copyspec's own names
    revision: str | None = None
    on_unsupported: Literal["error", "plain"] = "error"
    static: StaticOptions | None = None  # static shapes: CUDA graphs, compiled passes, exact mode
    trust_remote_code: bool = False  # True: code from the model's folder runs with this process's rights
    adapter: str | None = None  # a folder of a LoRA adapter, merged into the model
    model_kwargs: ModelKwargs = field(default_factory=ModelKwargs)

    def key(self) -> tuple[object, ...]:
        return (
            identity(self.model),
            identity(self.tokenizer),
            str(self.device),
            str(self.dtype),
            self.revision,
            self.on_unsupported,
            self.static,
            self.trust_remote_code,
            identity(self.adapter and f"{self.adapter}/"),  # a folder, never a short name
            *sorted(map(repr, {**self.model_kwargs.model, **self.model_kwargs.hub}.items())),
        )

    def pretrained(self, name: str) -> Pretrained:
        """The files of the model, or of a tokenizer with another name."""
        own = name == self.model
        revision, adapter = (self.revision, self.adapter) if own else (None, None)
        return Pretrained(name, revision, self.trust_remote_code, adapter, self.model_kwargs.hub)


def unwrapped(model: object) -> object:
    """The transformers model inside a `torch.compile` or PEFT wrapper; anything else is returned unchanged.

    PEFT adapters inside the layers (LoRA and similar) stay in effect. Prompt-tuning adapters would be lost and raise
    TypeError.
    """
    model = getattr(model, "_orig_mod", model)
    base = getattr(model, "get_base_model", None)
    if not callable(base):
        return model
    config = getattr(model, "active_peft_config", None)
    if getattr(config, "is_prompt_learning", False):
        raise TypeError(
            f"model is a {type(model).__name__} whose adapter is a prompt of its own, which is not supported; adapters "
            "inside the layers (LoRA and its like) are"
        )
    return unwrapped(base())


def load_model(choice: ModelChoice) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load the model, in evaluation mode, and its tokenizer. Raises LoadError if either cannot be loaded."""
    if isinstance(choice.model, str):
        return _load_model(choice, choice.model), _load_tokenizer(choice, choice.tokenizer or choice.model)
    model = _given_model(choice, choice.model)
    source = choice.tokenizer or model.name_or_path
    if not source:
        raise TypeError(
            f"model is a {type(model).__name__} without a name to find its tokenizer by; give tokenizer= too"
        )
    return model, _load_tokenizer(choice, source)


def choose_default(*, corrects: bool = False) -> str:
    """The model used if none is given or configured: $COPYSPEC_MODEL, else the preferred one if the user has installed
    or fetched it, else the one in the package. `corrects`: choose among models for correcting and quoting."""
    if chosen := os.environ.get(MODEL_VARIABLE):
        return chosen
    preferred = CORRECTOR if corrects and CORRECTOR in ALIASES else PREFERRED
    return preferred if is_ready(ALIASES[preferred]) else resolve_name(DEFAULT, "no model was given")


def about_default(model: str, *, corrects: bool = False) -> str:
    """The log line for a `model` that `choose_default` chose, with a better alternative if there is one."""
    preferred = ALIASES[CORRECTOR if model == CORRECTOR else PREFERRED]
    which = preferred.name
    if model == str(BUNDLED):
        which = "copyspec's default model (small: grammar corrections and quotes, in English)"
        if ALIASES[PREFERRED].installed_file() is not None:
            which += f", since {PREFERRED}, which is installed, needs pip install 'copyspec[gguf]'"
        elif corrects:
            which += (
                f"; it leaves most mistakes standing, and `copyspec models fetch {preferred.name}` "
                f"({preferred.download_bytes / 1e6:.0f} MB, once) gets a corrector that finds several times as many"
            )
    ways = f"model=... (--model), copyspec.configure(model=...) or {MODEL_VARIABLE}"
    return f"no model given: using {which}; others by {ways} (see `copyspec models`)"


def resolve_name(model: str | os.PathLike[str], why: str = f"model={DEFAULT!r} is the one in the package") -> str:
    """The name to load; the str "default" becomes the folder in the package. A build without that folder raises
    LoadError, and `why` the folder is wanted."""
    if model != DEFAULT:
        return os.fspath(model)
    if not (BUNDLED / "config.json").exists():
        raise LoadError(
            f"{why}, and this build has no default model in {BUNDLED}; give model='a hub id or a folder', "
            f"call copyspec.configure(model=...), or set {MODEL_VARIABLE}"
        )
    return str(BUNDLED)


def identity(model: object) -> object:
    """A key that is equal for all spellings of one folder's path. Hub ids and short names stand for themselves (a
    folder with such a name is "./name"), and an object for that object."""
    if isinstance(model, (str, os.PathLike)):
        name = os.fspath(model)
        path = os.path.expanduser(name)
        return os.path.realpath(path) if name not in ALIASES and os.path.isdir(path) else name
    return None if model is None else id(model)


def check_dtype(dtype: object) -> str | torch.dtype:
    """Normalise `dtype` for loading; raises ValueError or TypeError listing the valid names."""
    if isinstance(dtype, str):
        dtype = dtype.removeprefix("torch.")
        dtype = _SHORT_DTYPES.get(dtype, dtype)
        if dtype not in DTYPES:
            raise ValueError(f"dtype must be one of {', '.join(DTYPES)} or a torch.dtype; got {brief(dtype)}")
        return dtype
    import torch

    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"dtype must be one of {', '.join(DTYPES)} or a torch.dtype; got {shown(dtype)}")
    return dtype


def _load_model(choice: ModelChoice, name: str) -> PreTrainedModel:
    import torch
    from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM

    device = _device(choice.device)
    found = choice.pretrained(name)
    config = found.config()
    kind = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
    with _progress_for(name):
        more = dict(choice.model_kwargs.model)
        device_map = more.pop("device_map", "auto" if device == "auto" else None)
        dtype = _dtype(choice.dtype, name, device)
        model = found.model(kind, config, dtype=dtype, device_map=device_map, more=more)
    if device_map is None:
        try:
            model.to(torch.device(device))  # type: ignore[arg-type]  # its decorator hides the signature
        except RuntimeError as error:  # out of memory, for example
            raise LoadError(why_not(name, error)) from error
    model.train(False)
    return model


def _dtype(wanted: str | torch.dtype, name: str, device: str) -> str | torch.dtype:
    """The dtype to load in. With "auto", the bundled model and those with a short name become float32 on an x86 CPU
    without AVX-512: it has no instructions for bfloat16, which takes longer there."""
    import torch

    ours = name == str(BUNDLED) or name in ALIASES
    if wanted == "auto" and ours and device == "cpu" and platform.machine().lower() in ("x86_64", "amd64"):
        return "auto" if torch.backends.cpu.get_cpu_capability().startswith("AVX512") else "float32"
    return wanted


@contextmanager
def _progress_for(name: str) -> Iterator[None]:
    """Hide the progress bar for the model in the package, which loads at once, unless transformers' verbosity is
    raised."""
    from transformers.utils import logging as hf_logging

    if name != str(BUNDLED) or not hf_logging.is_progress_bar_enabled() or hf_logging.get_verbosity() <= logging.INFO:
        yield
        return
    hf_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        hf_logging.enable_progress_bar()  # type: ignore[no-untyped-call]


def _load_tokenizer(choice: ModelChoice, source: str | PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
    if not isinstance(source, str):
        return source
    return choice.pretrained(source).tokenizer()


def _given_model(choice: ModelChoice, model: PreTrainedModel) -> PreTrainedModel:
    for name, wanted, has, same in (
        ("device", choice.device, model.device, _same_device),
        ("dtype", choice.dtype, model.dtype, _same_dtype),
    ):
        if wanted not in (None, "auto") and not same(wanted, has):
            raise ValueError(
                f"{name}={wanted!r} is given, but the model's is {has}; change it with model.to({wanted!r}), "
                f"or leave {name} out"
            )
    if model.training:
        raise ValueError("the model is in training mode, with dropout; call model.eval() first")
    return model


def _same_device(wanted: object, has: object) -> bool:
    import torch

    device = _parse_device(wanted)
    assert isinstance(has, torch.device)
    return device.type == has.type and device.index in (None, has.index)


def _same_dtype(wanted: object, has: object) -> bool:
    import torch

    return (getattr(torch, wanted) if isinstance(wanted, str) else wanted) == has


def _device(wanted: object) -> str:
    """The device to load onto, or "auto". Raises LoadError listing the available devices."""
    import torch

    if wanted is None:
        return "cuda" if torch.cuda.is_available() else "cpu"
    if wanted == "auto":
        if importlib.util.find_spec("accelerate") is None:
            raise LoadError("device='auto' spreads a model with accelerate: pip install accelerate, or name one device")
        return "auto"
    device = _parse_device(wanted)
    found = ["cpu", *(f"cuda:{i}" for i in range(torch.cuda.device_count()))]
    found += ["mps"] if torch.backends.mps.is_available() else []
    known = device.type in ("cpu", "cuda", "mps")
    there = any(_same_device(device, torch.device(name)) for name in found) if known else _holds_numbers(device)
    if not there:
        raise LoadError(f"device={wanted!r} is not there; this machine and this build of torch have {', '.join(found)}")
    return str(device)


def _holds_numbers(device: torch.device) -> bool:
    """Whether numbers can be stored on a device of another kind and read again. "meta" keeps none."""
    import torch

    try:
        return torch.ones(1, device=device).tolist() == [1.0]
    except Exception:  # backends that are missing raise errors of several types
        return False


def _parse_device(wanted: object) -> torch.device:
    import torch

    try:
        return torch.device(wanted)  # type: ignore[call-overload,no-any-return]
    except (RuntimeError, TypeError) as error:
        raise ValueError(
            f"device must be 'cpu', 'cuda', 'cuda:1' or the like, or 'auto'; got {brief(wanted)}"
        ) from error
