"""The retriever's seam: one search, best texts first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Hit:
    """One text that a search found."""

    id: int  # index of the text among those the retriever was made from
    score: float
    text: str


class Retriever(Protocol):
    """Anything that finds texts for a query."""

    def search(self, query: str, k: int = 4) -> list[Hit]:
        """At most `k` hits, best first; equal scores in the order of the texts."""
        ...
