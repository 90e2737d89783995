"""A cache of the encodings of long source texts between calls: encoding 100,000 words takes most of a second."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING

from copyspec.forks import at_rest

if TYPE_CHECKING:
    from copyspec.text.codec import Codec, Encoded, Lead

MIN_CHARACTERS = 2_000
"""Shorter texts are encoded within a millisecond and rarely come again."""

MAX_CHARACTERS = 2_000_000
"""Total of all cached texts: some 400,000 tokens, whose encodings take about 100 MB."""


class CopyEncodings:
    """The most recently used encodings of one codec. Thread-safe."""

    def __init__(self, codec: Codec, max_characters: int = MAX_CHARACTERS) -> None:
        self._codec = codec
        self._max = max_characters
        self._held: OrderedDict[tuple[str, Lead], Encoded] = OrderedDict()
        self._characters = 0
        self._lock = at_rest(threading.Lock())

    def encode(self, text: str, lead: Lead) -> Encoded:
        """`Codec.encode_copy` with caching. The ids are shared between calls and must not be modified."""
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
