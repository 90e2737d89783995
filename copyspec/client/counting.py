"""Numbers of tokens of texts for a model behind a URL: estimated, or counted by its server."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from copyspec.client.sending import PROBES, AgainError, RefusedError, Sender, ServerError

COUNTING = ("copyspec", "vllm", "vllm-xargs")
"""Dialects of servers that count tokens for their clients, at /tokenize."""
BYTES_PER_TOKEN = 2
"""Fewer than in any language that a model was made for, so that its tokens are rather over-estimated."""
MOST_BYTES = 8  # of a token on average, in any language: what is longer surely does not fit
MOST_COUNTED = 1 << 17  # tokens of texts that a server is asked to count, if its context is not known


class TokenCounter:
    """Asks a server for numbers of tokens, as long as it answers."""

    def __init__(self, sender: Sender) -> None:
        self._sender, self._counts = sender, True

    def count(self, model: str, body: Mapping[str, object], context: int | None) -> int | None:
        """The tokens of a text or a chat, counted by the server; None if it does not do that."""
        size = len(str(body).encode("utf-8", "replace"))
        if not self._counts or size > MOST_BYTES * (context or MOST_COUNTED):
            return None
        address, request = f"{self._sender.url.removesuffix('/v1')}/tokenize", {"model": model, **body}
        try:
            _, data = self._sender.run(self._sender.until_answered(lambda: self._sender.post(address, request), PROBES))
            count = json.loads(data)["count"]
            if type(count) is int and count >= 0:
                return count
        except (AgainError, RefusedError, ServerError) as error:
            self._counts = not re.search(r"answers (?:404|405|501)", str(error))  # it may refuse one text
            return None
        except (ValueError, KeyError, TypeError, RecursionError):
            pass
        self._counts = False
        return None
