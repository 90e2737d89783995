"""One part of a datastore: a text with its sorted places on disk."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from .. import files
from ..saving import Saving
from .numbers import in_memory, numbers_of
from .sampled_keys import Heads, PlaceIndex, SampledKeys, sampled_keys
from .suffix_array import BORDER, Tokens, sorted_places

NEEDED = ("tokens", "places", "heads", "starts", "documents")
_KEYS = ("keys", "tops", "shared")  # which an index of an earlier version lacks: searches there take longer
FILES = (*NEEDED, *_KEYS)


def write_segment(index: Saving, number: int, tokens: Tokens) -> None:
    """Sorts the places of a text and writes all that a search needs, as the segment of this number.

    `tokens`: the documents one after the other, a BORDER before, between and behind them. [n]
    """
    borders = np.flatnonzero(tokens == BORDER)
    places = sorted_places(tokens)[: len(tokens) - len(borders)]  # those behind a border come last
    heads, starts = _heads(tokens)
    parts: dict[str, NDArray[np.unsignedinteger]] = {
        "tokens": tokens,
        "places": places,
        "heads": heads,
        "starts": starts,
        "documents": (borders[:-1] + 1).astype(np.uint32),
        **sampled_keys(tokens, places, _largest(heads)),
    }
    for name, part in parts.items():
        index.array(f"{number}.{name}", part)


def _heads(tokens: Tokens) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
    """The different tokens, ascending, and where in the sorted places those behind each begin (one more: the end)."""
    heads, counts = np.unique(tokens, return_counts=True)
    heads, counts = heads[heads != BORDER], counts[heads != BORDER]
    return heads, np.concatenate([[0], np.cumsum(counts)]).astype(np.uint32)


def _largest(heads: Sequence[int] | NDArray[np.uint32]) -> int:
    return int(heads[-1]) if len(heads) else 0


class IndexSegment:
    """The files of one segment. Text and places are read where a search looks, and stay on disk; the rest, a hundredth
    of them, is in memory. Raises files.IndexFileError for files that do not fit each other."""

    def __init__(self, index: files.Opened, number: int, first_document: int) -> None:
        entries = index.manifest.files
        self.entries = {name: entries[f"{number}.{name}"] for name in FILES if f"{number}.{name}" in entries}
        self.first_document = first_document

        def handle(name: str) -> int:
            return index.handle(f"{number}.{name}")

        self.tokens, self.places = numbers_of(handle("tokens")), numbers_of(handle("places"))
        self.documents = in_memory(handle("documents"))
        self._check(index, number)
        self.index = self._index(index, number)

    def _check(self, index: files.Opened, number: int) -> None:
        sizes = {name: entry.size for name, entry in self.entries.items()}
        documents = np.asarray(self.documents)
        fits = (
            not any(sizes[name] % 4 for name in ("tokens", "places", "heads", "starts", "documents"))
            and len(documents) > 0
            and len(self.tokens) == len(self.places) + len(documents) + 1
            and sizes["starts"] == sizes["heads"] + 4
            and documents[0] == 1
            and documents[-1] < len(self.tokens)
            and bool((documents[1:] > documents[:-1]).all())
        )
        if not fits:
            said = ", ".join(f"{size} bytes of {name}" for name, size in sizes.items())
            raise index.wrong(f"{number}.documents", f"{said} do not fit each other")

    def _index(self, index: files.Opened, number: int) -> PlaceIndex:
        def handle(name: str) -> int:
            return index.handle(f"{number}.{name}")

        heads = in_memory(handle("heads"))
        if not all(name in self.entries for name in _KEYS):
            starts = in_memory(handle("starts"))
            steps = np.asarray(starts).astype(np.int64)
            if steps[0] or steps[-1] != len(self.places) or (steps[1:] <= steps[:-1]).any():
                raise index.wrong(f"{number}.starts", "they do not ascend to the number of places")
            return Heads(heads, starts)
        keys, tops = numbers_of(handle("keys"), "Q"), in_memory(handle("tops"), "Q")
        try:
            if self.entries["shared"].size != len(self.places):
                raise ValueError(f"{self.entries['shared'].size} numbers of {len(self.places)} places")
            return SampledKeys(keys, tops, numbers_of(handle("shared"), "B"), _largest(heads))
        except ValueError as error:
            path = index.folder / self.entries["keys"].name
            raise files.IndexFileError(f"{str(path)!r} is of another version ({error}): build it again") from None

    @property
    def num_documents(self) -> int:
        return len(self.documents)

    @property
    def num_tokens(self) -> int:
        """Tokens of the documents, the borders between them not counted."""
        return len(self.places)

    def all_tokens(self) -> Tokens:
        """All tokens with their borders."""
        return np.frombuffer(self.tokens.part(0, len(self.tokens)), np.uint32)

    def document_tokens(self, index: int) -> list[int]:
        """The tokens of a document of this segment."""
        start = self.documents[index]
        end = self.documents[index + 1] if index + 1 < len(self.documents) else len(self.tokens)
        return self.following(start, end - start)

    def document(self, place: int) -> tuple[int, int]:
        """The document that a place lies in, counted through all segments, and the offset in it."""
        index = bisect_right(self.documents, place) - 1
        return self.first_document + index, place - self.documents[index]

    def following(self, place: int, length: int) -> list[int]:
        """At most `length` tokens from a place on, to the end of its document."""
        found = self.tokens.part(place, place + length).tolist()
        return found[: found.index(BORDER)] if BORDER in found else found
