"""Loads models by name, path or object: chooses the model, its device and dtype, and explains failures."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from copyspec.common.checks import brief, check_flag, check_type, shown
from copyspec.common.control_groups import available_memory
from copyspec.common.extras import install
from copyspec.models.aliases import ALIASES, CORRECTOR, PREFERRED
from copyspec.models.errors import LoadError as LoadError
from copyspec.models.errors import why_not
from copyspec.models.model_kwargs import OF_DEVICE_MAP, ModelKwargs, check_model_kwargs
from copyspec.models.pretrained import Pretrained
from copyspec.models.progress import hidden_bars
from copyspec.models.resolve import is_ready
from copyspec.options import StaticOptions

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

logger = logging.getLogger(__name__)

MODEL_VARIABLE = "COPYSPEC_MODEL"
BUNDLED = Path(__file__).parent.parent / "default_model"
BUNDLED_LANGUAGES = ("en",)
"""Codes of the languages that the bundled model was trained to correct, as `Alias.languages` of others."""
DEFAULT = "default"
"""Name of the model in the package, whatever is configured. For a folder of that name give "./default" or a `Path`."""


WIDE = 6
"""Bytes of memory per weight saved in bfloat16 and computed in float32, with the copy for passes of few tokens."""

_OUTSIDE = ("XLORA", "POLY")  # kinds of PEFT adapters whose weights are chosen by what surrounds the model


@dataclass(frozen=True, slots=True)
class ModelChoice:
    """A model and how it is loaded. Equal choices share one loaded model."""

    model: str | PreTrainedModel
    tokenizer: str | PreTrainedTokenizerBase | None = None
    device: str | torch.device | None = None  # None: a CUDA device if there is one; "auto": spread over all
    dtype: str | torch.dtype = "auto"  # "auto": as the checkpoint was saved; on a CPU float32, see `_is_to_be_widened`
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
            str(self.dtype).removeprefix("torch."),
            self.revision,
            self.on_unsupported,
            self.static,
            self.trust_remote_code,
            identity(self.adapter and f"{self.adapter}/"),  # a folder, never a short name
            *sorted(map(repr, {**self.model_kwargs.model, **self.model_kwargs.hub}.items())),
        )

    def pretrained(self, name: str, *, is_tokenizer: bool = False) -> Pretrained:
        """The files of the model, or of a tokenizer with another name. `is_tokenizer`: see `Pretrained`."""
        own = name == self.model
        revision, adapter = (self.revision, self.adapter) if own else (None, None)
        return Pretrained(name, revision, self.trust_remote_code, adapter, self.model_kwargs.hub, is_tokenizer)


def unwrapped(model: object) -> object:
    """The transformers model inside a `torch.compile` or PEFT wrapper; anything else is returned unchanged.

    PEFT adapters inside the layers (LoRA and similar) stay in effect. Those that work outside of them would be lost,
    and raise TypeError: prompts, weights that depend on the text (activated LoRA, X-LoRA) or on a task (Poly).
    """
    model = getattr(model, "_orig_mod", model)
    for config in _adapters(model):
        kind = str(getattr(config, "peft_type", "")).rpartition(".")[2]
        which = "a prompt of its own" if getattr(config, "is_prompt_learning", False) else None
        if getattr(config, "alora_invocation_tokens", None):
            which = "in effect from its alora_invocation_tokens on"
        elif kind in _OUTSIDE:
            which = f"of the kind {kind}"
        if which is not None:
            raise TypeError(
                f"model is a {type(model).__name__} whose adapter is {which}, which is not supported; adapters inside "
                "the layers (LoRA and its like) are"
            )
    base = getattr(model, "get_base_model", None)
    return unwrapped(base()) if callable(base) else model


def _adapters(model: object) -> list[object]:
    """The configurations of the adapters that are active in a model of PEFT, or in one of transformers that has
    adapters."""
    configs, active = getattr(model, "peft_config", None), getattr(model, "active_adapters", None)
    one = getattr(model, "active_peft_config", None)
    if not isinstance(configs, Mapping):
        return [] if one is None else [one]
    try:
        names = active() if callable(active) else active
    except ValueError:  # transformers, without an adapter
        return []
    chosen = [config for name, config in configs.items() if not isinstance(names, (list, tuple)) or name in names]
    return chosen if one is None else [one, *chosen]


def check_own_steps(model: PreTrainedModel) -> None:
    """Raise TypeError if something but its class prepares what `generate` gives the model in each step, as adapters
    with a prompt of their own do while they generate."""
    for name in ("prepare_inputs_for_generation", "_update_model_kwargs_for_generation"):
        own = vars(model).get(name)
        if own is not None and getattr(own, "__func__", own) is not getattr(type(model), name, None):
            raise TypeError(
                f"model is a {type(model).__name__} whose {name} was replaced by {brief(own)}, as adapters with a "
                "prompt of their own do (prompt tuning, prefix tuning); copyspec, which calls the model itself, would "
                "lose what it adds: decode with the model's own generate"
            )


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


def checked_choice(model: object, options: dict[str, object]) -> ModelChoice:
    """The choice that a caller's `model` and keyword options mean; raises TypeError or ValueError for invalid ones."""
    from transformers import PreTrainedModel

    from copyspec.models.devices import check_device, check_dtype

    model = resolve_name(model) if isinstance(model, (str, os.PathLike)) else unwrapped(model)
    if not isinstance(model, (str, PreTrainedModel)) or model == "":
        raise TypeError(f"model must be a hub id, a folder, a transformers model or an Engine; got {shown(model)}")
    if not isinstance(model, str):
        check_own_steps(model)
    if "dtype" in options:
        options["dtype"] = check_dtype(options["dtype"])
    unsupported = options.get("on_unsupported", "error")
    if not isinstance(unsupported, str) or unsupported not in ("error", "plain"):
        raise ValueError(f"on_unsupported must be 'error' or 'plain', got {brief(unsupported)}")
    if not isinstance(options.get("static", StaticOptions()), StaticOptions):
        raise TypeError(f"static must be a copyspec.StaticOptions, got {shown(options['static'])}")
    if "trust_remote_code" in options:
        check_flag("trust_remote_code", options["trust_remote_code"])
    if "device" in options:
        check_device(options["device"])
    if options.keys() & {"revision", "tokenizer"}:
        _check_types(options)
    if options.keys() & {"revision", "adapter", "model_kwargs"}:
        _check_files(model, options)
    return ModelChoice(model, **options)  # type: ignore[arg-type]


def _check_types(options: dict[str, object]) -> None:
    """Check options that other libraries read, whose errors would not name them."""
    from transformers import PreTrainedTokenizerBase

    revision = options.get("revision", "main")
    check_type(isinstance(revision, str), "revision", revision, "the name of a branch, a tag or a commit")
    if "tokenizer" in options:
        tokenizer = options["tokenizer"]
        tokenizer = os.fspath(tokenizer) if isinstance(tokenizer, (str, os.PathLike)) else tokenizer
        fits = isinstance(tokenizer, PreTrainedTokenizerBase) or (isinstance(tokenizer, str) and tokenizer != "")
        check_type(fits, "tokenizer", tokenizer, "a hub id, a folder or a transformers tokenizer")
        options["tokenizer"] = tokenizer


def _check_files(model: object, options: dict[str, object]) -> None:
    """Check the options about a model's files, which apply only to a model that is loaded here."""
    if "model_kwargs" in options:
        options["model_kwargs"] = checked = check_model_kwargs(options["model_kwargs"])
        if "device_map" in checked.model and "device" in options:
            raise ValueError(f"device={options['device']!r} and model_kwargs['device_map'] are given; give one")
        unused = sorted(checked.model.keys() & OF_DEVICE_MAP)
        if unused and "device_map" not in checked.model and options.get("device") != "auto":
            raise ValueError(f"model_kwargs[{unused[0]!r}] has no effect without device='auto' or a device_map")
    if "adapter" in options:
        adapter = options["adapter"]
        if not isinstance(adapter, (str, os.PathLike)) or not os.fspath(adapter):
            raise TypeError(f"adapter must be a folder of a LoRA adapter; got {shown(adapter)}")
        options["adapter"] = os.fspath(adapter)
    if not isinstance(model, str):
        names = [name for name in ("revision", "adapter", "model_kwargs") if name in options]
        raise ValueError(
            f"model is a loaded {type(model).__name__}: {' and '.join(names)} cannot be changed any more; "
            "load it with them, or give its name"
        )


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
            which += f", since {PREFERRED}, which is installed, needs {install('gguf')}"
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
    """A key that is equal for all spellings of the path of one folder or GGUF file. Hub ids and short names stand for
    themselves (a folder with such a name is "./name"), and an object for that object."""
    if isinstance(model, (str, os.PathLike)):
        name = os.fspath(model)
        path = os.path.expanduser(name)
        return os.path.realpath(path) if name not in ALIASES and os.path.exists(path) else name
    return None if model is None else id(model)


def _load_model(choice: ModelChoice, name: str) -> PreTrainedModel:
    import torch
    from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM

    from copyspec.models.devices import pick_device

    device = pick_device(choice.device)
    pretrained = choice.pretrained(name)
    config = pretrained.config()
    kind = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
    with _progress_for(name):
        more = dict(choice.model_kwargs.model)
        device_map = more.pop("device_map", "auto" if device == "auto" else None)
        model = pretrained.model(kind, config, dtype=choice.dtype, device_map=device_map, more=more)
    places = {device} if device_map is None else {weight.device.type for weight in model.parameters()}
    if choice.dtype == "auto" and places == {"cpu"} and _is_to_be_widened(model):
        if _has_rounded_buffers(model):
            model = pretrained.model(kind, config, dtype="float32", device_map=device_map, more=more)
        else:
            model.to(torch.float32)  # type: ignore[arg-type]  # its decorator hides the signature
    if device_map is None:
        try:
            model.to(torch.device(device))  # type: ignore[arg-type]  # its decorator hides the signature
        except RuntimeError as error:  # out of memory, for example
            raise LoadError(why_not(name, error)) from error
    model.train(False)
    return model


def _is_to_be_widened(model: PreTrainedModel) -> bool:
    """Whether weights in half precision become float32, in which CPUs compute faster, and exactly alike for any number
    of tokens. A model that would not fit into memory then is left as it was saved."""
    import torch

    if model.dtype not in (torch.bfloat16, torch.float16) or getattr(model.config, "quantization_config", None):
        return False
    needed = WIDE * sum(weight.numel() for weight in model.parameters())
    available = available_memory()
    if 0 < available < needed:
        logger.warning(
            "%s stays in %s, which CPUs compute more slowly and whose outputs may differ between close scores: in "
            "float32 it takes %.1f GB of memory, and %.1f GB are available",
            model.name_or_path or type(model).__name__,
            str(model.dtype).removeprefix("torch."),
            needed / 1e9,
            available / 1e9,
        )
        return False
    return True


def _has_rounded_buffers(model: PreTrainedModel) -> bool:
    """Whether the model has computed numbers in its dtype that are not in its files, such as Gemma's factor of
    embeddings: in float32 they are others than these."""
    return any(
        buffer is not None and buffer.dtype == model.dtype and name in module._non_persistent_buffers_set
        for module in model.modules()
        for name, buffer in module._buffers.items()
    )


@contextmanager
def _progress_for(name: str) -> Iterator[None]:
    """Hide the progress bar for the model in the package, which loads at once, unless transformers' verbosity is
    raised."""
    from transformers.utils import logging as hf_logging

    with hidden_bars(name == str(BUNDLED) and hf_logging.get_verbosity() > logging.INFO):
        yield


def _load_tokenizer(choice: ModelChoice, source: str | PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
    if not isinstance(source, str):
        return source
    return choice.pretrained(source, is_tokenizer=choice.tokenizer is not None).tokenizer()


def _given_model(choice: ModelChoice, model: PreTrainedModel) -> PreTrainedModel:
    from copyspec.models.devices import same_device, same_dtype

    for name, wanted, has, same in (
        ("device", choice.device, model.device, same_device),
        ("dtype", choice.dtype, model.dtype, same_dtype),
    ):
        if wanted not in (None, "auto") and not same(wanted, has):
            raise ValueError(
                f"{name}={wanted!r} is given, but the model's is {has}; change it with model.to({wanted!r}), "
                f"or leave {name} out"
            )
    if model.training:
        raise ValueError("the model is in training mode, with dropout; call model.eval() first")
    return model
