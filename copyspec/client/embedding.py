"""Embeddings from a server with OpenAI's API."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from copyspec.client.sending import AgainError, RefusedError, Sender, ServerError, check_url

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

BATCH = 64  # texts of a request
CONCURRENCY = 8


class ServerEmbedder:
    """Encodes texts into vectors by a server's `/embeddings`: call it with a list of strings.

    `name`: of the model there, which the manifest of an index keeps. `prefix`: put before every text. Raises
    ServerError if the server fails, TypeError or ValueError for invalid arguments."""

    def __init__(
        self, url: str, name: str, *, api_key: str | None = None, prefix: str = "", timeout: float = 300.0
    ) -> None:
        self.url, self.name, self.prefix = check_url(url), name, prefix
        self._sender = Sender(self.url, api_key or None, CONCURRENCY, timeout)
        self._dimension: int | None = None

    @property
    def dimension(self) -> int:
        """Dimension of the vectors."""
        if self._dimension is None:
            self(["a"])
        assert self._dimension is not None
        return self._dimension

    def __call__(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Encode texts. [len(texts), dimension]"""
        import numpy as np

        prefixed = [self.prefix + text for text in texts]
        starts = range(0, len(prefixed), BATCH)
        waiting = [self._sender.start(self._vectors(prefixed[start : start + BATCH])) for start in starts]
        try:
            rows = [row for future in waiting for row in future.result()]
        finally:
            for future in waiting:
                future.cancel()
        if rows:
            self._dimension = len(rows[0])
        if {len(row) for row in rows} - {self._dimension}:
            raise ServerError(f"{self.url}: the vectors of {self.name!r} have different dimensions")
        return np.array(rows, np.float32).reshape(len(rows), self._dimension or 0)

    def prefixed(self, prefix: str) -> ServerEmbedder:
        """The same with another prefix: that of the index that it is for."""
        made = copy.copy(self)
        made.prefix = prefix
        return made

    def close(self) -> None:
        """Close all connections; the next request opens new ones."""
        self._sender.close()

    async def _vectors(self, texts: list[str]) -> list[list[float]]:
        async def ask() -> list[list[float]]:
            body = {"model": self.name, "input": texts, "encoding_format": "float"}
            _, data = await self._sender.post("/embeddings", body)
            return read_vectors(data, len(texts))

        try:
            return await self._sender.until_answered(ask)
        except (AgainError, RefusedError) as error:
            raise ServerError(f"{self.url}: {error}") from None


def read_vectors(data: bytes, count: int) -> list[list[float]]:
    """Read the answer to a request of that many texts. Raises AgainError for anything else."""
    try:
        listed = sorted(json.loads(data)["data"], key=lambda entry: entry["index"])
        rows = [[float(number) for number in entry["embedding"]] for entry in listed]
        indices = [entry["index"] for entry in listed]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise AgainError("its answer is not the JSON of embeddings") from None
    if indices != list(range(count)) or not all(rows):
        raise AgainError(f"it sent {len(rows)} vectors for {count} texts")
    return rows
