"""Documents of iterative retrieval: truncated for the prompt, and tokenised for copying."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Generic, TypeVar

from copyspec.forks import fork_safe
from copyspec.retrievers import Hit
from copyspec.text.codec import encodable

if TYPE_CHECKING:
    from copyspec import Engine
    from copyspec.text.codec import Lead

Made = TypeVar("Made")


class Documents:
    """Truncates documents for the prompt and tokenises them for copying, with a cache of the last ones. Thread-safe."""

    KEPT = 1024

    def __init__(self, engine: Engine, most_tokens: int) -> None:
        self._codec = engine.codec
        self._most_tokens = most_tokens
        self._shown: _Remembered[str] = _Remembered(self.KEPT)
        self._copied: _Remembered[list[int]] = _Remembered(self.KEPT)
        self.lead: Lead = " "
        """Text between the last prompt and its output. If it is wrong, the first word of a copy is lost."""

    def shown(self, hit: Hit) -> str:
        """Return the first `most_tokens` tokens of the hit's text, as text."""
        return self._shown.get((hit.id, hit.text), lambda: self._cut(encodable(hit.text, f"document {hit.id}")))

    def copied(self, hit: Hit) -> list[int]:
        """Return the first `most_tokens` tokens of the hit's text, tokenised as in an output; none of a text that no
        tokenizer reads, since it is not shown and the output must not depend on it."""
        lead = self.lead

        def made() -> list[int]:
            try:
                text = encodable(hit.text, f"document {hit.id}")
            except ValueError:
                return []
            return self._codec.encode_copy(text, lead).ids[: self._most_tokens]

        return self._copied.get((hit.id, hit.text, lead), made)

    def _cut(self, text: str) -> str:
        encoded = self._codec.encode(text)
        if len(encoded.ids) <= self._most_tokens:
            return text
        if encoded.offsets is None:
            return self._codec.decode(encoded.ids[: self._most_tokens])
        return text[: encoded.offsets()[self._most_tokens - 1][1]]


class _Remembered(Generic[Made]):
    """A cache of results for the last keys. Thread-safe."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._made: OrderedDict[object, Made] = OrderedDict()
        self._lock = fork_safe(threading.Lock())

    def get(self, key: object, make: Callable[[], Made]) -> Made:
        with self._lock:
            if key in self._made:
                self._made.move_to_end(key)
                return self._made[key]
        made = make()
        with self._lock:
            self._made[key] = made
            if len(self._made) > self._most:
                self._made.popitem(last=False)
        return made
