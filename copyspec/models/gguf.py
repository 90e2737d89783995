"""Converts GGUF files of llama.cpp into model folders that transformers loads."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import importlib.util
import logging
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from copyspec.models.cache import made_once
from copyspec.models.errors import FileError, first_line

if TYPE_CHECKING:
    import torch
    from gguf import GGUFReader
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

logger = logging.getLogger(__name__)

SUFFIX = ".gguf"
_MAGIC = b"GGUF"
_NEEDED = ("gguf", "accelerate")  # packages transformers needs to read GGUF
_FORMAT = 1  # version of the conversion; a folder of another version is converted again
_SAMPLED_BYTES = 1 << 20  # bytes hashed at each end of the file for its fingerprint
_LAYER = re.compile(r"blk\.(\d{1,9})\.")
_DTYPES = {0: "float32", 1: "float16"}  # by general.file_type; all other types are quantised or bfloat16


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
        if opened.read(len(_MAGIC)) != _MAGIC:
            raise FileError(f"{os.fspath(file)!r} is not a GGUF file: it does not begin with {_MAGIC.decode()!r}")
    if missing := missing_packages():
        raise FileError(f"reading {os.fspath(file)!r} needs {' and '.join(missing)}: pip install 'copyspec[gguf]'")


def missing_packages() -> list[str]:
    """Packages needed to read a GGUF file that are not installed."""
    return [name for name in _NEEDED if importlib.util.find_spec(name) is None]


def _convert(file: Path, folder: Path) -> None:
    logger.warning("converting %s, once; this takes about half a minute", file.name)
    try:
        with _isolated(file) as isolated:
            model, tokenizer = _read(isolated)
    except Exception as error:  # a damaged file can raise any type of error
        raise FileError(f"{os.fspath(file)!r} cannot be read: {first_line(error)}") from error
    try:
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    except Exception as error:
        if "No space left" in str(error):  # safetensors raises its own error type for a full disk
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), os.fspath(folder)) from error
        raise


@contextlib.contextmanager
def _isolated(file: Path) -> Iterator[Path]:
    """Link the file into a folder of its own, so that files beside it (configurations naming code, for example) are not
    read."""
    with tempfile.TemporaryDirectory(prefix="copyspec-gguf-") as folder:
        place = Path(folder) / "model.gguf"
        try:
            place.symlink_to(file.resolve())
        except OSError:  # Windows without the right to create links
            shutil.copyfile(file, place)
        yield place


def _read(file: Path) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The dequantised model and its tokenizer."""
    import torch
    from gguf import GGUFReader
    from transformers import AutoModelForCausalLM, AutoTokenizer

    where = {"gguf_file": file.name, "trust_remote_code": False, "local_files_only": True}
    tokenizer = AutoTokenizer.from_pretrained(file.parent, **where)  # which checks the lengths in the header
    reader = GGUFReader(file)
    _check_layers(reader)
    auto: Any = AutoModelForCausalLM
    read, found = auto.from_pretrained(
        file.parent, dtype=_dtype(reader), output_loading_info=True, **where, **_dequantize_options()
    )
    if missing := sorted(found["missing_keys"]):  # transformers fills them with random numbers
        raise FileError(f"it lacks {len(missing)} weights, {missing[0]!r} for one")
    # A model read from GGUF stays marked as quantised and cannot be saved, so its weights move into a new one.
    config = read.config
    config.__dict__.pop("quantization_config", None)
    with torch.device("meta"):
        model: PreTrainedModel = type(read)(config)
    model.load_state_dict(read.state_dict(), assign=True)
    model.tie_weights()
    model.generation_config = read.generation_config
    return model, tokenizer


def _dequantize_options() -> dict[str, object]:
    """The option that makes transformers dequantise; versions without GgufConfig always do."""
    import transformers

    config_class = getattr(transformers, "GgufConfig", None)
    return {} if config_class is None else {"quantization_config": config_class(dequantize=True)}


def _dtype(reader: GGUFReader) -> torch.dtype:
    import torch

    file_type = _number(reader, "general.file_type")
    dtype: torch.dtype = getattr(torch, _DTYPES.get(-1 if file_type is None else file_type, "bfloat16"))
    return dtype


def _check_layers(reader: GGUFReader) -> None:
    """Raise FileError if the header names another number of layers than the file holds: transformers leaves out those
    beyond it, and makes up missing ones with random weights, a billion of them if it is told so."""
    key = next((name for name in reader.fields if name.endswith(".block_count")), None)
    named = None if key is None else _number(reader, key)
    held = [int(found[1]) for tensor in reader.tensors if (found := _LAYER.match(tensor.name))]
    if held and named != max(held) + 1:
        raise FileError(f"its header says that it has {named} layers, and it holds {max(held) + 1}")


def _number(reader: GGUFReader, key: str) -> int | None:
    field = reader.fields.get(key)
    return None if field is None else int(field.parts[field.data[0]][0])


def _fingerprint(file: Path) -> str:
    """Identify a file without reading gigabytes: by path, size, modification time, and first and last mebibyte."""
    found = file.stat()
    digest = hashlib.blake2b(f"{file.resolve()}\0{found.st_size}\0{found.st_mtime_ns}".encode(), digest_size=16)
    with file.open("rb") as opened:
        digest.update(opened.read(_SAMPLED_BYTES))
        opened.seek(max(0, found.st_size - _SAMPLED_BYTES))
        digest.update(opened.read(_SAMPLED_BYTES))
    return digest.hexdigest()
