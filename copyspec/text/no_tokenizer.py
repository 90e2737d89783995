"""Stands for a tokenizer where a call holds token ids alone."""

from __future__ import annotations

from typing import Any, NoReturn

from transformers import PreTrainedTokenizerBase


class NoTokenizer(PreTrainedTokenizerBase):
    """Decodes all tokens to no text, and raises TypeError where a text is to be encoded."""

    is_fast = False

    def __len__(self) -> int:
        return 0

    def __bool__(self) -> bool:
        return True

    def decode(self, *args: object, **kwargs: object) -> str:
        return ""

    @property
    def added_tokens_decoder(self) -> dict[int, Any]:
        return {}

    def __call__(self, *args: object, **kwargs: object) -> NoReturn:
        raise TypeError("the call holds a text, and the model has no name to find its tokenizer by; give tokenizer=")

    def get_vocab(self) -> NoReturn:
        self()
