"""Checks of a model's files before anything reads them.

A model folder is untrusted: none of its code is run, and it may refer only to files inside the folder. These checks
prevent what transformers would do otherwise: run or download code named in a configuration, open paths outside of the
folder, block on a pipe, or build a billion layers.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from copyspec.models.errors import CodeError, FileError, first_line

CONFIG, GENERATION, TOKENIZER_CONFIG, TOKENIZER = (
    "config.json",
    "generation_config.json",
    "tokenizer_config.json",
    "tokenizer.json",
)
WEIGHTS, WEIGHTS_INDEX, ADAPTER = "model.safetensors", "model.safetensors.index.json", "adapter_config.json"

NAMED_WEIGHTS = "transformers_weights"  # key of a configuration: another name than WEIGHTS

MAX_JSON = 64 << 20  # bytes of a configuration; the longest on the hub have about 20 MB
MAX_TOKENIZER = 128 << 20  # bytes of a tokenizer's file; the longest on the hub have about 40 MB
MAX_REPEATS = 20_000  # layers, blocks, experts; configurations build lists of that length before any weight is read

MAX_TEMPLATE = 1 << 20  # bytes of a chat template; the longest on the hub have about 20 kB
TEMPLATE = "chat_template.jinja"
SPECIAL_TOKENS, TEKKEN = "special_tokens_map.json", "tekken.json"
BESIDE_TOKENIZER = {SPECIAL_TOKENS: MAX_JSON, "added_tokens.json": MAX_JSON, TEMPLATE: MAX_TEMPLATE}
"""Files that transformers reads with a tokenizer, and their largest size."""

VOCABULARIES = dict.fromkeys(
    (
        "tokenizer.model",
        "spiece.model",
        "sentencepiece.bpe.model",
        TEKKEN,
        "vocab.json",
        "merges.txt",
        "vocab.txt",
    ),
    MAX_TOKENIZER,
)
"""Files with the vocabulary of a tokenizer, beside or instead of tokenizer.json, and their largest size."""

_LARGEST = {CONFIG: MAX_JSON, GENERATION: MAX_JSON, TOKENIZER_CONFIG: MAX_JSON, **BESIDE_TOKENIZER}
_READ_WHOLE = re.compile(
    r"(.*vocab.*|merges|tokenizer.*|tekken|spiece|sentencepiece.*|spm.*|source|target|dict|emoji|normalizer|byte_maps"
    r"|word_.*)\.(json|txt|model|spm)|.*\.(codes|tokenizer)"
)
"""Names that the tokenizers of transformers have for such files. None may be larger than MAX_TOKENIZER."""

MAX_KEYS, MAX_TOKEN = 2_000, 1_000  # settings of a tokenizer and characters of a token; both have quadratic cost
MAX_PIECE = 10_000
"""Characters of a token in a vocabulary. Where merges are missing, transformers makes them from all splits of a token,
in quadratic time; the longest tokens on the hub have some hundred characters."""

MAX_DIGITS = 8  # of an added token's id: transformers may fill the vocabulary up to that id

VOCABULARY_SETTINGS = ("vocab", "merges")
"""Settings of a tokenizer that may be paths, which transformers opens wherever they lead."""

_REPEATS = re.compile(r"(^|_)(layers?|blocks?|stages|depths?|experts|heads)$")
_WINDOWS = re.compile(r"(^|_)(window|window_size|chunk_size)$")
_KERNELS = ("attn_implementation", "experts_implementation")
_PICKLED = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle", ".h5", ".msgpack")
_SUBFOLDERS = ("additional_chat_templates",)
_SEPARATOR = re.compile(r"[/\\]")
_SAFE = ".safetensors"
_POINTER = b"version https://git-lfs"  # beginning of what a clone without Git LFS holds instead of a large file

Find = Callable[[str], "Path | None"]
"""Returns the path of a model's file by name, in its folder or the hub's cache; None if there is no such file."""


def check_folder(folder: Path) -> None:
    """Raise FileError if the folder holds anything but files and folders, since reading a pipe or device may never
    end."""
    for path in _listed(folder):
        mode = path.stat().st_mode
        if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
            raise FileError(f"{path.name} is not a regular file")


def check_sizes(folder: Path) -> None:
    """Raise FileError if a model's folder holds a file that its tokenizer may read whole and that is too large."""
    for path in _listed(folder):
        others = MAX_TOKENIZER if _READ_WHOLE.fullmatch(path.name) else None
        limit = _LARGEST.get(path.name, others) if path.parent == folder else MAX_TEMPLATE
        if limit is not None:
            check_size(path, limit)


def _listed(folder: Path) -> Iterator[Path]:
    """What is in a folder and in those below it that transformers reads; a broken link fails when it is read."""
    for place in (folder, *(folder / below for below in _SUBFOLDERS)):
        names = os.listdir(place) if place.is_dir() else ()
        yield from (place / name for name in names if os.path.exists(place / name))


def read_json(path: Path, *, limit: int = MAX_JSON) -> dict[str, object]:
    """Read a JSON object. Raises FileError for anything else."""
    check_size(path, limit)
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except RecursionError:
        raise FileError(f"{path.name} is nested too deeply") from None
    except ValueError as error:
        _check_pointer(path)
        raise FileError(f"{path.name} is not JSON: {error}") from None
    if not isinstance(data, dict):
        raise FileError(f"{path.name} holds a {type(data).__name__} instead of an object")
    return data


def _check_pointer(path: Path) -> None:
    with open(path, "rb") as file:
        if file.read(len(_POINTER)) == _POINTER:
            raise FileError(f"{path.name} is a pointer of Git LFS; get the file with: git lfs pull") from None


def check_size(path: Path, limit: int) -> None:
    """Raise FileError if the file is larger than `limit` bytes."""
    if path.stat().st_size > limit:
        raise FileError(f"{path.name} has more than {limit >> 20} MB")


def optional_json(find: Find, name: str, *, limit: int = MAX_JSON) -> dict[str, object]:
    """`read_json`, or an empty dict if there is no such file."""
    path = find(name)
    return {} if path is None else read_json(path, limit=limit)


def check_config(config: Mapping[str, object], *, trusted: bool) -> None:
    """Raise FileError for disallowed contents of a config.json; a trusted folder may name code."""
    if config.get("configuration_files") and not trusted:
        raise FileError(f"{CONFIG} has configuration_files, one of which is read in its place: rename that to {CONFIG}")
    weights = config.get(NAMED_WEIGHTS)
    check_names(weights, CONFIG, NAMED_WEIGHTS)
    # transformers reads a pickle of this name, even if it is to read safetensors only.
    if weights is not None and not trusted and not (isinstance(weights, str) and weights.endswith(_SAFE)):
        raise FileError(f"{CONFIG} has {NAMED_WEIGHTS}={_short(weights)}, which is not a {_SAFE} file")
    for path, key, value in _walk(config):
        numbers = value if isinstance(value, list) else [value]
        if _REPEATS.search(key) and any(isinstance(n, (int, float)) and n > MAX_REPEATS for n in numbers):
            raise FileError(f"{CONFIG} has {path}={_short(value)}, more than {MAX_REPEATS:,}")
        if _WINDOWS.search(key) and not all(number is None or isinstance(number, (int, float)) for number in numbers):
            raise FileError(f"{CONFIG} has {path}={_short(value)}, which is not a number")
        if trusted:
            continue
        if key == "auto_map" and path != key:  # for the code of a part, transformers would ask on stdout and read stdin
            raise CodeError(f"{CONFIG} names code of its own for a part of the model ({path}: {_short(value)})")
        if any(key.strip("_").startswith(name) for name in _KERNELS) and any("/" in text for text in _strings(value)):
            raise CodeError(f"{CONFIG} names a kernel to download and run ({path}: {_short(value)})")
        if key == "attribute_map" and value:  # other names of settings, under which these checks would not find them
            raise FileError(f"{CONFIG} renames settings ({path}: {_short(value)}): leave it out")
        if key == "backbone" and isinstance(value, str):
            raise FileError(f"{CONFIG} names another model ({path}: {_short(value)})")


def check_tokenizer(config: Mapping[str, object], *, trusted: bool) -> None:
    """Raise FileError for disallowed contents of a tokenizer_config.json; a trusted folder may name files anywhere."""
    if len(config) > MAX_KEYS:
        raise FileError(f"{TOKENIZER_CONFIG} has more than {MAX_KEYS:,} keys")
    for path, key, value in _walk(config):
        if (key.endswith("_token") or key == "content") and any(len(text) > MAX_TOKEN for text in _strings(value)):
            raise FileError(f"{TOKENIZER_CONFIG} has a token of more than {MAX_TOKEN:,} characters ({path})")
        # As SentencePiece's model_file in sp_model_kwargs.
        if key.endswith("_file") and path != key and isinstance(value, str) and not trusted:
            raise FileError(f"{TOKENIZER_CONFIG} names a file ({path}: {_short(value)})")
    inputs, added = config.get("init_inputs", []), config.get("added_tokens_decoder")
    if not trusted and (not isinstance(inputs, list) or any(isinstance(item, str) for item in inputs)):  # maybe paths
        raise FileError(f"{TOKENIZER_CONFIG} has init_inputs={_short(inputs)}; settings must have names")
    far = [number for number in added if len(number) > MAX_DIGITS] if isinstance(added, Mapping) else []
    if far:
        raise FileError(f"{TOKENIZER_CONFIG} has an added token with the id {_short(far[0])}")


def check_special_tokens(config: Mapping[str, object]) -> None:
    """Raise FileError if a special_tokens_map.json names files: all that it holds becomes a setting of the tokenizer,
    in place of the paths that transformers has found in the folder."""
    for key, value in config.items():
        if key.endswith(("_file", "_spm")) or key in VOCABULARY_SETTINGS:
            raise FileError(f"{SPECIAL_TOKENS} has {key}={_short(value)}, which is not a special token")


def tokenizer_names(config: Mapping[str, object]) -> list[str]:
    """The files of which transformers reads one as the tokenizer, by version. Raises FileError if a
    tokenizer_config.json names others than files in the folder itself, which `check_folder` has checked."""
    names = config.get("fast_tokenizer_files", [])
    if not isinstance(names, list) or not all(isinstance(name, str) and is_file_name(name) for name in names):
        raise FileError(
            f"{TOKENIZER_CONFIG} names a file that is not in the folder (fast_tokenizer_files: {_short(names)})"
        )
    return sorted({TOKENIZER, *names})


def check_names(names: object, file: str, key: str) -> None:
    """Raise FileError if any file name in `names` (a str, list or dict) leads out of the folder."""
    for name in _strings(names):
        if not is_plain(name):
            raise FileError(f"{file} names a file outside of the folder ({key}: {_short(name)})")


def is_file_name(name: str) -> bool:
    """Whether `name` refers to a file in the folder itself, on every operating system."""
    return is_plain(name) and len(_SEPARATOR.split(name)) == 1


def is_plain(name: str) -> bool:
    """Whether `name` refers to a file in or below the folder, on every operating system."""
    parts = _SEPARATOR.split(name)
    return all(part not in ("", ".", "..") and ":" not in part and "\0" not in part for part in parts)


def code_of(file: str, config: Mapping[str, object]) -> str | None:
    """The code that a file names in its `auto_map`, for a message; None if it names none."""
    code = config.get("auto_map")
    return f"{file} has auto_map {_short(code)}" if code else None


def weight_names(find: Find) -> list[str]:
    """Names of the weight files, which must be safetensors; empty if there are none. Raises FileError for an index that
    names files outside of the folder."""
    named = optional_json(find, CONFIG).get(NAMED_WEIGHTS)
    if isinstance(named, str):
        return [named]
    if find(WEIGHTS) is not None:
        return [WEIGHTS]
    index = optional_json(find, WEIGHTS_INDEX, limit=MAX_TOKENIZER)
    if not index:
        return []
    named = index.get("weight_map")
    if not isinstance(named, dict) or not named or not all(isinstance(name, str) for name in named.values()):
        raise FileError(f"{WEIGHTS_INDEX} has no weight_map from tensors to files")
    if not isinstance(index.get("metadata"), dict):  # which transformers needs
        raise FileError(f"{WEIGHTS_INDEX} has no metadata")
    names = sorted(set(named.values()))
    check_names(names, WEIGHTS_INDEX, "weight_map")
    for name in names:
        if not name.endswith(_SAFE):
            raise FileError(f"{WEIGHTS_INDEX} names {_short(name)}, which is not a {_SAFE} file")
    return names


@contextmanager
def open_weights(path: Path) -> Iterator[Any]:
    """Open a safetensors file, as `safetensors.safe_open` does. Raises FileError, which names the file, for a damaged
    one."""
    from safetensors import safe_open

    try:
        opened = safe_open(path, framework="pt")
    except Exception as error:  # safetensors raises errors of several types
        _check_pointer(path)
        raise FileError(f"{path.name} cannot be read: {first_line(error)}") from error
    with opened as weights:
        yield weights


def pickled(folder: Path) -> list[str]:
    """Names of the files in a folder that may contain pickled weights."""
    return sorted(name for name in os.listdir(folder) if name.endswith(_PICKLED) and (folder / name).is_file())


def _walk(config: Mapping[str, object]) -> Iterator[tuple[str, str, object]]:
    """Yield (path, key, value) for every key of nested objects."""
    waiting: list[tuple[str, object]] = [("", config)]
    while waiting:
        path, value = waiting.pop()
        if isinstance(value, Mapping):
            for key, member in value.items():
                yield f"{path}{key}", key, member
                waiting.append((f"{path}{key}.", member))
        elif isinstance(value, list):
            waiting += [(path, member) for member in value if isinstance(member, (Mapping, list))]


def _strings(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from (item for item in value.values() if isinstance(item, str))
    elif isinstance(value, list):
        yield from (item for item in value if isinstance(item, str))


def _short(value: object) -> str:
    text = repr(value) if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 100 else f"{text[:97]}..."
