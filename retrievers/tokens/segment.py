"""A segment of a datastore: a text of several documents, with its sorted places, on disk."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from .. import files
from ..saving import Saving
from .sampled_keys import PlaceIndex, SampledKeys, TokenRanges, in_memory, numbers_of, sampled_keys
from .suffix_array import BORDER, Tokens, sorted_places

NEEDED = ("tokens", "places", "heads", "starts", "documents")
_KEYS = ("keys", "tops", "shared")  # missing in segments of an earlier version, which are searched more slowly
FILES = (*NEEDED, *_KEYS)


def write_segment(index: Saving, number: int, tokens: Tokens) -> None:
    """Sort the places of a text and write segment `number`.

    `tokens`: the documents in order, with a BORDER before, between and after them. [n]
    """
    borders = np.flatnonzero(tokens == BORDER)
    places = sorted_places(tokens)[: len(tokens) - len(borders)]  # those after a border come last and are left out
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
    """The different tokens, ascending, and the index of the first sorted place after each (and the end)."""
    heads, counts = np.unique(tokens, return_counts=True)
    heads, counts = heads[heads != BORDER], counts[heads != BORDER]
    return heads, np.concatenate([[0], np.cumsum(counts)]).astype(np.uint32)


def _largest(heads: Sequence[int] | NDArray[np.uint32]) -> int:
    return int(heads[-1]) if len(heads) else 0


class IndexSegment:
    """One opened segment. Text and places stay on disk and are read on demand; the rest, a hundredth of their size, is
    in memory. Raises files.IndexFileError for inconsistent files."""

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
            return TokenRanges(heads, starts)
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
        """Number of tokens of the documents, without borders."""
        return len(self.places)

    def all_tokens(self) -> Tokens:
        """Return all tokens, with borders."""
        return np.frombuffer(self.tokens.part(0, len(self.tokens)), np.uint32)

    def document_tokens(self, index: int) -> list[int]:
        """Return the tokens of a document of this segment."""
        start = self.documents[index]
        end = self.documents[index + 1] if index + 1 < len(self.documents) else len(self.tokens)
        return self.following(start, end - start)

    def document(self, place: int) -> tuple[int, int]:
        """Return the number of the document at a place, counted over all segments, and the offset in it."""
        index = bisect_right(self.documents, place) - 1
        return self.first_document + index, place - self.documents[index]

    def following(self, place: int, length: int) -> list[int]:
        """Return at most `length` tokens from a place on, up to the end of its document."""
        end = min(place + length, len(self.tokens))
        if place > end:
            raise IndexError(f"place {place} is outside of {end} tokens")
        tokens = self.tokens.part(place, end).tolist()
        return tokens[: tokens.index(BORDER)] if BORDER in tokens else tokens
