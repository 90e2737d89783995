"""Applies the chat template to plain text inside the tokenizer, so that a str prompt gets an answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

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
