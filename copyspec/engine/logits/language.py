"""N-grams of English, converted to the tokens of a model."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Sequence
from hashlib import sha256
from typing import TYPE_CHECKING

from copyspec.common.forks import fork_safe
from copyspec.common.lockless import cached_property
from copyspec.drafters.predictors.ngrams import NGrams, WordNGrams

if TYPE_CHECKING:
    from copyspec.text.codec import Codec

logger = logging.getLogger(__name__)

MAX_KEPT = 2
"""N-grams kept for later engines: those of a target and of its draft model."""

_kept: OrderedDict[tuple[object, ...], NGrams] = OrderedDict()
_lock = fork_safe(threading.Lock())


def forget() -> None:
    """Release the n-grams kept for later engines."""
    with _lock:
        _kept.clear()


class Language:
    """English n-grams in the tokens of one tokenizer and target. They are built on first use, in a third of a second,
    and take 10 MB. Engines with equal tokenizers share them."""

    def __init__(self, codec: Codec, vocab_size: int) -> None:
        self._codec, self._vocab_size = codec, vocab_size

    @cached_property
    def ngrams(self) -> NGrams | None:
        """The n-grams; None for a slow (pure Python) tokenizer, which would take minutes, and for one without English
        words, such as a tokenizer of characters or proteins."""
        if not self._codec.is_fast:
            return None
        try:
            ngrams = self._shared()
        except Exception as error:  # tokenizers raises plain Exception, and drafts are optional
            logger.info("no n-grams of English: this tokenizer cannot encode them (%s)", error)
            return None
        return ngrams if len(ngrams) else None

    def _shared(self) -> NGrams:
        try:
            tokenizer = self._codec.tokenizer.backend_tokenizer.to_str()
        except Exception:  # one with parts in Python has no text form
            return NGrams(WordNGrams.read(), self._encode, self._vocab_size)
        key = (sha256(tokenizer.encode()).digest(), self._codec.special_ids, self._vocab_size)
        with _lock:
            ngrams = _kept.get(key)
        if ngrams is None:  # built without the lock, so that other engines need not wait
            ngrams = NGrams(WordNGrams.read(), self._encode, self._vocab_size)
        with _lock:
            _kept[key] = ngrams
            _kept.move_to_end(key)
            while len(_kept) > MAX_KEPT:
                _kept.popitem(last=False)
        return ngrams

    def _encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Encode texts; a text with characters unknown to the tokenizer gives no tokens."""
        special = self._codec.special_ids
        return [[] if special.intersection(ids) else ids for ids in self._codec.encode_each(texts)]
