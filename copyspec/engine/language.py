"""The language's n-grams in the tokens of a model."""

from __future__ import annotations

from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

from copyspec.drafters.ngrams import NGrams, WordNGrams

if TYPE_CHECKING:
    from copyspec.engine.text import Codec


class Language:
    """N-grams for one tokenizer and target, made when they are first asked for: that takes a quarter of a second."""

    def __init__(self, codec: Codec, vocab_size: int) -> None:
        self._codec, self._vocab_size = codec, vocab_size

    @cached_property
    def ngrams(self) -> NGrams | None:
        """None for a tokenizer that is written in Python: it would take minutes."""
        if not self._codec.tokenizer.is_fast:
            return None
        return NGrams(_words(), self._codec.encode_each, self._vocab_size)


@lru_cache(maxsize=1)
def _words() -> WordNGrams:
    return WordNGrams.read()
