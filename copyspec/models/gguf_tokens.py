"""Takes over the settings of a GGUF file's tokenizer, and the tokens that end a text or a turn."""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING, Any

from copyspec.models.errors import FileError
from copyspec.models.gguf_settings import Settings

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

logger = logging.getLogger(__name__)

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
