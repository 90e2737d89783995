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
from copyspec.models.gguf_settings import FACTORS, LONG, SHORT, Settings, adopt_rope, adopt_settings
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
    module.GGUFReader, module.get_tensor_name_map = (functools.lru_cache(maxsize=1)(function) for function in before)
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
        read, info = auto.from_pretrained(file.parent, dtype=dtype, quantization_config=dense, **LOADING, **where)
    check_complete(info)
    ends = _adopt(file, read, tokenizer, info["unexpected_keys"])
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


_OWN = "tokenizer.ggml."
_READ = frozenset(
    ("model", "tokens", "token_type", "token_type_count", "scores", "merges", "bos_token_id", "unknown_token_id",
     "padding_token_id", "precompiled_charsmap")
)  # fmt: skip
"""What transformers reads."""
_UNUSED = re.compile(
    r"(?:fim_\w+|prefix|suffix|middle|sep\w*|mask|cls|image\w*)_token_id|add_sep_token|(?:remove_extra|escape)_whitespaces"
)
"""Names of tokens that nothing here writes by itself, and what llama.cpp does not read for such models."""
_ENDS = ("eos_token_id", "eot_token_id", "eom_token_id")
_PLAIN_SPLITS = frozenset(
    ("default", "gpt-2", "smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "phi-2", "mpt", "olmo",
     "jina-es", "jina-de", "jina-v2-es", "jina-v2-de", "jina-v2-code", "roberta-bpe", "gigachat", "trillion", "jais",
     "granite-docling", "minerva-7b", "olmo2")
)  # fmt: skip
"""Ways to split a text that are those of GPT-2, or that only part digits, which the merges then keep apart."""


def adopt_tokens(settings: Settings, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Take over what the file says about its tokenizer, and remove it from `settings`. Returns the tokens that end an
    output. Raises FileError for what the tokenizer does not do."""
    own = {key.removeprefix(_OWN): settings.pop(key) for key in list(settings) if key.startswith(_OWN)}
    for key in [key for key in settings if key.startswith("tokenizer.")]:
        value = settings.pop(key)
        if key not in ("tokenizer.chat_template", "tokenizer.huggingface.json", "tokenizer.chat_templates"):
            logger.warning("%s=%s is not taken over", key[:100], str(value)[:40])
    added = {"bos": own.get("bos_token_id"), "eos": own.get("eos_token_id")}
    ends = [own.pop(name) for name in _ENDS if own.get(name) is not None]
    for end in ends:
        if type(end) is not int or not 0 <= end < len(tokenizer):
            raise FileError(f"its header has {end!r} as a token that ends a text, and it has {len(tokenizer)} tokens")
    for name in [name for name in own if name in _READ or _UNUSED.fullmatch(name)]:
        del own[name]
    _settle_bytes(own.pop("pre", None), tokenizer)
    _adopt_added(own, tokenizer, added)
    for name, value in own.items():
        if name not in _ENDS:
            raise FileError(f"its header has {_OWN}{name[:100]}={str(value)[:60]}, which transformers does not read")
    _warn_end_of_turn(tokenizer, ends)
    return list(dict.fromkeys(ends))


def _settle_bytes(name: object, tokenizer: PreTrainedTokenizerBase) -> None:
    """Make a tokenizer of bytes read and write them as GPT-2's does. Raises FileError for a way to split texts that
    transformers does not know: it would take GPT-2's."""
    from tokenizers.decoders import ByteLevel

    backend: Any = getattr(tokenizer, "backend_tokenizer", None)
    if "ByteLevel" not in str(getattr(backend, "pre_tokenizer", None)):
        return
    # Before 5.24 it also wrote "▁" as a space, and had SentencePiece's tokens for bytes, which parsers then look for.
    backend.decoder = ByteLevel()
    backend.model.byte_fallback = False
    try:
        from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS
    except ImportError:  # before 5.24
        return
    if name is not None and name not in {*GGUF_PRE_TOKENIZER_SPLITS, *_PLAIN_SPLITS}:
        raise FileError(
            f"its header has {_OWN}pre={str(name)[:60]}, a way to split texts that transformers does not know"
        )


def _adopt_added(own: Settings, tokenizer: PreTrainedTokenizerBase, added: Settings) -> None:
    """Make the tokenizer add the tokens and the space that the file says."""
    changeable: Any = tokenizer
    for name, place in (("bos", 0), ("eos", -1)):
        token = added[name]
        wanted = own.pop(f"add_{name}_token", None)
        if wanted is None:
            continue
        for attempt in (False, True):
            if attempt:
                setattr(changeable, f"add_{name}_token", bool(wanted))
            ids = tokenizer("a")["input_ids"]
            if (bool(ids) and ids[place] == token and token is not None) == bool(wanted):
                break
        else:
            raise FileError(f"its header has {_OWN}add_{name}_token={wanted}, and the tokenizer does otherwise")
    wanted = own.pop("add_space_prefix", None)
    if wanted is None:
        return
    pieces = tokenizer.convert_ids_to_tokens(tokenizer("a", add_special_tokens=False)["input_ids"])
    if "".join(pieces).startswith(("▁", "Ġ")) != bool(wanted):
        raise FileError(f"its header has {_OWN}add_space_prefix={wanted}, and the tokenizer does otherwise")


def _warn_end_of_turn(tokenizer: PreTrainedTokenizerBase, ends: list[int]) -> None:
    """Warn of a special token that the chat template writes behind an answer, if it is not among the file's `ends`:
    files that were made early do not name it, and in texts that are no chats it ends nothing."""
    if not tokenizer.chat_template:
        return
    mark = "answer-of-the-model"
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": mark}]
    try:
        text = tokenizer.apply_chat_template(turns, tokenize=False)
    except Exception:  # a template may refuse these turns
        return
    rest = str(text).partition(mark)[2].lstrip()
    special = {str(token): id for id, token in tokenizer.added_tokens_decoder.items() if token.special}
    written = [token for token in special if token and rest.startswith(token)]
    if written and (end := special[max(written, key=len)]) not in ends:
        logger.warning(
            "it names no end of a turn, and its chat template ends turns with %r, which outputs may run past: give "
            "chats stop_token_ids=[%d]",
            max(written, key=len),
            end,
        )
