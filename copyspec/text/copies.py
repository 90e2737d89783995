"""Encodings of long texts to copy from, remembered between calls: encoding 100,000 words takes most of a second."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING

from copyspec.forks import at_rest

if TYPE_CHECKING:
    from copyspec.text.codec import Codec, Encoded, Lead

MIN_CHARACTERS = 2_000
"""Shorter texts are encoded in a millisecond, and are mostly seen once."""

MAX_CHARACTERS = 2_000_000
"""Of all texts that are remembered: some 400,000 tokens, whose encodings take about 100 MB."""


class CopyEncodings:
    """Encodings of one codec, those that were used last. Safe to use from several threads."""

    def __init__(self, codec: Codec, max_characters: int = MAX_CHARACTERS) -> None:
        self._codec = codec
        self._max = max_characters
        self._held: OrderedDict[tuple[str, Lead], Encoded] = OrderedDict()
        self._characters = 0
        self._lock = at_rest(threading.Lock())

    def encode(self, text: str, lead: Lead) -> Encoded:
        """As `Codec.encode_copy`. The ids are those of other calls, too: they are not to be changed."""
        if not MIN_CHARACTERS <= len(text) <= self._max:
            return self._codec.encode_copy(text, lead)
        key = (text, lead)
        with self._lock:
            found = self._held.get(key)
            if found is not None:
                self._held.move_to_end(key)
                return found
        found = self._codec.encode_copy(text, lead)
        with self._lock:
            if key not in self._held:
                self._held[key] = found
                self._characters += len(text)
            while self._characters > self._max:
                (old, _), _ = self._held.popitem(last=False)
                self._characters -= len(old)
        return found
