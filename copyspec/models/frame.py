"""What a chat template puts around a message, put around plain text: a str gets an answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_MARK = "\ufdd0"  # a noncharacter that Unicode reserves for use inside a program
_BEFORE, _AFTER = "frame-begin", "frame-end"


def add_frame(tokenizer: PreTrainedTokenizerBase) -> None:
    """From now on `tokenizer(text)` is the chat of one message `text`, up to where the answer begins.

    `add_special_tokens=False` gives the text alone, as ever. Nothing is done without a chat template, or where the
    tokenizer is not one of the `tokenizers` package.
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
    keeps = isinstance(own, processors.ByteLevel)  # which sets offsets; other processors add tokens of their own
    backend.post_processor = processors.Sequence([own, framing]) if keeps else framing
