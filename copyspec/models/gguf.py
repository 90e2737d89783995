"""Converts GGUF files of llama.cpp into model folders that transformers loads."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import logging
import os
import re
import shutil
import tempfile
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from copyspec.common.building import building
from copyspec.common.extras import install
from copyspec.models.bounds import LOADING, bounded, check_complete
from copyspec.models.digests import content_digest
from copyspec.models.errors import FileError, first_line
from copyspec.models.gguf_header import MAGIC, Value, read_header
from copyspec.models.gguf_rope import FACTORS, LONG, SHORT, adopt_rope
from copyspec.models.gguf_settings import adopt_settings
from copyspec.models.gguf_tokens import adopt_tokens
from copyspec.models.model_cache import made_once
from copyspec.models.progress import hidden_bars, hidden_gguf_bar

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

logger = logging.getLogger(__name__)

SUFFIX = ".gguf"
_NEEDED = ("gguf", "accelerate")  # packages transformers needs to read GGUF
_FORMAT = 3  # version of the conversion; a folder of another version is converted again
_SCRATCH = "copyspec-gguf-"  # beginning of the name of a temporary folder
_LISTS = frozenset(f"tokenizer.ggml.{name}" for name in ("tokens", "scores", "token_type", "merges"))
_UNREAD = re.compile(r"blk\.\d+\.attn[_.]rot_embd(?:\.weight)?")  # frequencies, which are computed
# By general.file_type; all other types are quantised or bfloat16.
_DTYPES: dict[Value, str] = {0: "float32", 1: "float16"}


def is_gguf(name: str) -> bool:
    """Whether `name` has the form of a path to a GGUF file, whether or not it exists."""
    return name.lower().endswith(SUFFIX) and not os.path.isdir(name)


def converted(file: Path, key: str | None = None) -> Path:
    """The folder `file` was converted to, once, in the user's cache: weights, tokenizer and chat template.

    `key` identifies the file's content if it is known. Quantised weights become bfloat16. Raises FileError for a file
    that is not GGUF, that transformers cannot read, or for missing packages, and OSError if the cache cannot be
    written.
    """
    _check(file)
    if key is None:
        stem = re.sub(r"[^A-Za-z0-9_.-]+", "-", file.stem)[:60]
        key = f"{stem}-{_fingerprint(file)[:16]}"
    return made_once(folder_name(key), lambda folder: _convert(file, folder))


def folder_name(key: str) -> str:
    """Name of the cached folder for the file with this key."""
    return f"{key}-{_FORMAT}"


def _check(file: Path) -> None:
    if not file.is_file():
        raise FileError(f"there is no file {os.fspath(file)!r}")
    with file.open("rb") as opened:
        if opened.read(len(MAGIC)) != MAGIC:
            raise FileError(f"{os.fspath(file)!r} is not a GGUF file: it does not begin with {MAGIC.decode()!r}")
    if missing := missing_packages():
        raise FileError(f"reading {os.fspath(file)!r} needs {' and '.join(missing)}: {install('gguf')}")


def missing_packages() -> list[str]:
    """Packages needed to read a GGUF file that are not installed."""
    return [name for name in _NEEDED if importlib.util.find_spec(name) is None]


def _convert(file: Path, folder: Path) -> None:
    logger.warning("converting %s, once; this takes about half a minute", file.name)
    try:
        file_type = read_header(file).get("general.file_type")
        with _isolated(file) as isolated, hidden_gguf_bar(), _parsed_once():
            model, tokenizer = _read(isolated, _dtype(file_type))
    except Exception as error:  # a damaged file can raise any type of error
        raise FileError(f"{os.fspath(file)!r} cannot be read: {_reason(error)}") from error
    with hidden_bars():
        model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    _check_saved(file, folder, tokenizer)


def _check_saved(file: Path, folder: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    """Raise FileError if the saved tokenizer adds other tokens to a text: some versions of transformers do not write
    down that it adds any."""
    from transformers import AutoTokenizer

    saved = AutoTokenizer.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
    if saved("a")["input_ids"] != tokenizer("a")["input_ids"]:
        raise FileError(
            f"{os.fspath(file)!r} cannot be read: its header has tokenizer.ggml.add_bos_token or add_eos_token, which "
            "this version of transformers does not save"
        )


def _reason(error: Exception) -> str:
    message = re.sub(rf"\S*{_SCRATCH}[^/\\\s]*[/\\]?", "", first_line(error))  # without a path that is gone by now
    if isinstance(error, (OSError, ValueError, RuntimeError, ImportError)):
        return message
    return f"it is damaged, or of a kind that cannot be converted ({message})"


@contextlib.contextmanager
def _isolated(file: Path) -> Iterator[Path]:
    """Link the file into a folder of its own, so that files beside it (configurations naming code, for example) are not
    read."""
    with tempfile.TemporaryDirectory(prefix=_SCRATCH) as folder:
        place = Path(folder) / "model.gguf"
        try:
            place.symlink_to(file.resolve())
        except OSError:  # Windows without the right to create links
            shutil.copyfile(file, place)
        yield place


@contextlib.contextmanager
def _parsed_once() -> Iterator[None]:
    """Keep what transformers parses again for the configuration, the tokenizer and the weights (the header), and for
    each module (gguf's table of names): most of the time of a conversion."""
    import gguf

    module: Any = gguf
    before = module.GGUFReader, module.get_tensor_name_map
    module.GGUFReader, module.get_tensor_name_map = (functools.lru_cache(maxsize=1)(each) for each in before)
    try:
        yield
    finally:
        module.GGUFReader, module.get_tensor_name_map = before


def _read(file: Path, dtype: torch.dtype) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The dequantised model and its tokenizer."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    where = {"gguf_file": file.name, "trust_remote_code": False, "local_files_only": True}
    tokenizer = AutoTokenizer.from_pretrained(file.parent, **where)
    auto: Any = AutoModelForCausalLM
    dense = GgufConfig(dequantize=True)
    with building(), bounded(file.stat().st_size, "its header"), hidden_bars():
        read, found = auto.from_pretrained(file.parent, dtype=dtype, quantization_config=dense, **LOADING, **where)
    check_complete(found)
    ends = _adopt(file, read, tokenizer, found["unexpected_keys"])
    # A model read from GGUF stays marked as quantised and cannot be saved, so its weights move into a new one.
    config = read.config
    config.__dict__.pop("quantization_config", None)
    with building():
        with torch.device("meta"):
            model: PreTrainedModel = type(read)(config)
        model.load_state_dict(read.state_dict(), assign=True)
        model.tie_weights()
    model.generation_config = read.generation_config
    if ends and model.generation_config is not None:
        model.generation_config.eos_token_id = ends if len(ends) > 1 else ends[0]
    return model, tokenizer


def _adopt(
    file: Path, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, unexpected: Collection[str]
) -> list[int]:
    """Take over into the model's configuration and its tokenizer what transformers did not; returns the tokens that end
    an output. Raises FileError, with its name, for a setting or a tensor that would be lost."""
    from gguf import GGUFReader, dequantize
    from transformers.integrations.ggml import GGUF_CONFIG_MAPPING

    reader = GGUFReader(file)
    settings = {key: field.contents() for key, field in reader.fields.items() if key not in _LISTS}
    architecture = settings["general.architecture"]
    scales = {
        tensor.name: dequantize(tensor.data, tensor.tensor_type)
        for tensor in reader.tensors
        if tensor.name in (FACTORS, LONG, SHORT)
    }
    if lost := next(iter(_lost(model, architecture, [tensor.name for tensor in reader.tensors], unexpected)), None):
        raise FileError(f"it has the tensor {lost[:100]!r}, which transformers' model of it cannot take over")
    if settings.pop("general.type", "model") != "model":
        raise FileError("it is not a model: its general.type is another")
    adopt_settings(settings, architecture, model.config)
    adopt_rope(settings, architecture, model.config, scales)
    ends = adopt_tokens(settings, tokenizer)
    if sampling := [key for key in settings if key.startswith("general.sampling.")]:
        logger.warning("the defaults for sampling in the file are not taken over: %s", ", ".join(sampling))
    prefixes = {key.partition(".")[0] for key in settings}
    if others := sorted(prefixes & {*GGUF_CONFIG_MAPPING, "adapter", "clip"} - {"general", "tokenizer"}):
        raise FileError(f"its header has settings of {others[0]!r}, and its architecture is {architecture!r}")
    return ends


def _lost(
    model: PreTrainedModel, architecture: str, names: Sequence[str], unexpected: Collection[str]
) -> Iterator[str]:
    """Yield the names of tensors that transformers does not read."""
    from transformers import modeling_gguf_pytorch_utils

    legacy: Any = modeling_gguf_pytorch_utils
    yield from (name for name in unexpected if not name.startswith("mtp.") and name not in (FACTORS, LONG, SHORT))
    if architecture in _read_otherwise():
        return
    make = legacy.TENSOR_PROCESSORS.get(architecture, legacy.TensorProcessor)
    known = legacy.get_gguf_hf_weights_map(model, make(config={}))
    for name in names:
        is_read = name in known or name.removesuffix(".weight") in known or name in (FACTORS, LONG, SHORT)
        if not is_read and not _UNREAD.fullmatch(name) and (architecture, name) != ("gpt2", "output.weight"):
            yield name


def _read_otherwise() -> Collection[str]:
    """Architectures whose tensors transformers reads by a table of their own, so that it names the unexpected ones."""
    try:
        from transformers.integrations.gguf.gguf_conversion_mapping import GGUF_ARCHS
    except ImportError:  # before 5.24
        return ()
    archs: Collection[str] = GGUF_ARCHS
    return archs


def _dtype(file_type: Value) -> torch.dtype:
    import torch

    dtype: torch.dtype = getattr(torch, _DTYPES.get(file_type, "bfloat16"))
    return dtype


def _fingerprint(file: Path) -> str:
    """Identifies a file by its content: others with the same path, size and time may hold other weights."""
    return content_digest(file)
