"""Documents of iterative retrieval: truncated for the prompt, and tokenised for copying."""

from __future__ import annotations

from functools import lru_cache, partial
from typing import TYPE_CHECKING

from copyspec.retrievers import Hit
from copyspec.text.codec import Codec, Lead, encodable

if TYPE_CHECKING:
    from copyspec import Engine


class Documents:
    """Truncates documents for the prompt and tokenises them for copying, with a cache of the last ones. Thread-safe."""

    KEPT = 1024

    def __init__(self, engine: Engine, most_tokens: int) -> None:
        # No methods: a cache of them would keep this object, and the model's tokenizer with it, in a cycle.
        self._shown = lru_cache(self.KEPT)(partial(_shown, engine.codec, most_tokens))
        self._copied = lru_cache(self.KEPT)(partial(_copied, engine.codec, most_tokens))
        self.lead: Lead = " "
        """Text between the last prompt and its output. If it is wrong, the first word of a copy is lost."""

    def shown(self, hit: Hit) -> str:
        """Return the first `most_tokens` tokens of the hit's text, as text."""
        return self._shown(hit.id, hit.text)

    def copied(self, hit: Hit) -> list[int]:
        """Return the first `most_tokens` tokens of the hit's text, tokenised as in an output; none of a text that no
        tokenizer reads, since it is not shown and the output must not depend on it."""
        return self._copied(hit.id, hit.text, self.lead)


def _shown(codec: Codec, most_tokens: int, number: int, text: str) -> str:
    encoded = codec.encode(encodable(text, f"document {number}"))
    if len(encoded.ids) <= most_tokens:
        return text
    if encoded.offsets is None:
        return codec.decode(encoded.ids[:most_tokens])
    return text[: encoded.offsets()[most_tokens - 1][1]]


def _copied(codec: Codec, most_tokens: int, number: int, text: str, lead: Lead) -> list[int]:
    try:
        encodable(text, f"document {number}")
    except ValueError:
        return []
    return codec.encode_copy(text, lead).ids[:most_tokens]
