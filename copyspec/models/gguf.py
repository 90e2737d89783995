"""Converts GGUF files of llama.cpp into model folders that transformers loads."""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from copyspec.building import building
from copyspec.models.bounds import LOADING, bounded, check_complete
from copyspec.models.digests import content_digest
from copyspec.models.errors import FileError, first_line
from copyspec.models.gguf_header import MAGIC, Value, read_header
from copyspec.models.model_cache import made_once

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

logger = logging.getLogger(__name__)

SUFFIX = ".gguf"
_NEEDED = ("gguf", "accelerate")  # packages transformers needs to read GGUF
_FORMAT = 1  # version of the conversion; a folder of another version is converted again
_SCRATCH = "copyspec-gguf-"  # beginning of the name of a temporary folder
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
        raise FileError(f"reading {os.fspath(file)!r} needs {' and '.join(missing)}: pip install 'copyspec[gguf]'")


def missing_packages() -> list[str]:
    """Packages needed to read a GGUF file that are not installed."""
    return [name for name in _NEEDED if importlib.util.find_spec(name) is None]


def _convert(file: Path, folder: Path) -> None:
    logger.warning("converting %s, once; this takes about half a minute", file.name)
    try:
        file_type = read_header(file).get("general.file_type")
        with _isolated(file) as isolated:
            model, tokenizer = _read(isolated, _dtype(file_type))
    except Exception as error:  # a damaged file can raise any type of error
        raise FileError(f"{os.fspath(file)!r} cannot be read: {_reason(error)}") from error
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


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


def _read(file: Path, dtype: torch.dtype) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The dequantised model and its tokenizer."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    where = {"gguf_file": file.name, "trust_remote_code": False, "local_files_only": True}
    tokenizer = AutoTokenizer.from_pretrained(file.parent, **where)
    auto: Any = AutoModelForCausalLM
    dense = GgufConfig(dequantize=True)
    with building(), bounded(file.stat().st_size, "its header"):
        read, found = auto.from_pretrained(file.parent, dtype=dtype, quantization_config=dense, **LOADING, **where)
    check_complete(found)
    # A model read from GGUF stays marked as quantised and cannot be saved, so its weights move into a new one.
    config = read.config
    config.__dict__.pop("quantization_config", None)
    with building():
        with torch.device("meta"):
            model: PreTrainedModel = type(read)(config)
        model.load_state_dict(read.state_dict(), assign=True)
        model.tie_weights()
    model.generation_config = read.generation_config
    return model, tokenizer


def _dtype(file_type: Value) -> torch.dtype:
    import torch

    dtype: torch.dtype = getattr(torch, _DTYPES.get(file_type, "bfloat16"))
    return dtype


def _fingerprint(file: Path) -> str:
    """Identifies a file by its content: others with the same path, size and time may hold other weights."""
    return content_digest(file)
