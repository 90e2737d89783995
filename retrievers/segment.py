"""One part of a datastore: a text with its sorted places on disk."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from . import files
from .numbers import mapped, numbers_of
from .sampled_keys import Heads, PlaceIndex, SampledKeys, sampled_keys
from .suffix_array import BORDER, Tokens, sorted_places

_KEYS = ("keys", "tops", "shared")  # which an index of an earlier version lacks: searches there take longer


def write_segment(folder: Path, tokens: Tokens) -> dict[str, files.Entry]:
    """Sorts the places of a text and writes all that a search needs.

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
    return {name: files.write_array(folder, name, part) for name, part in parts.items()}


def _heads(tokens: Tokens) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
    """The different tokens, ascending, and where in the sorted places those behind each begin (one more: the end)."""
    heads, counts = np.unique(tokens, return_counts=True)
    heads, counts = heads[heads != BORDER], counts[heads != BORDER]
    return heads, np.concatenate([[0], np.cumsum(counts)]).astype(np.uint32)


def _largest(heads: Sequence[int] | NDArray[np.uint32]) -> int:
    return int(heads[-1]) if len(heads) else 0


class Segment:
    """The files of one segment. Text and places are read where a search looks, and stay on disk; the rest, a hundredth
    of them, is mapped."""

    def __init__(self, folder: Path, entries: Mapping[str, files.Entry], first_document: int) -> None:
        self.entries = dict(entries)
        self.first_document = first_document
        paths = {name: folder / entry.name for name, entry in entries.items()}
        self.tokens, self.places = numbers_of(paths["tokens"]), numbers_of(paths["places"])
        self.documents = mapped(paths["documents"])
        self.index = _index(paths)
        self._text = paths["tokens"]

    @property
    def num_documents(self) -> int:
        return len(self.documents)

    @property
    def num_tokens(self) -> int:
        """Tokens of the documents, the borders between them not counted."""
        return len(self.places)

    def all_tokens(self) -> Tokens:
        """All tokens with their borders."""
        return np.fromfile(self._text, np.uint32)

    def document(self, place: int) -> tuple[int, int]:
        """The document that a place lies in, counted through all segments, and the offset in it."""
        index = bisect_right(self.documents, place) - 1
        return self.first_document + index, place - self.documents[index]

    def following(self, place: int, length: int) -> list[int]:
        """At most `length` tokens from a place on, to the end of its document."""
        found = self.tokens.part(place, place + length).tolist()
        return found[: found.index(BORDER)] if BORDER in found else found


def _index(paths: Mapping[str, Path]) -> PlaceIndex:
    heads = mapped(paths["heads"])
    if not all(name in paths for name in _KEYS):
        return Heads(heads, mapped(paths["starts"]))
    keys, tops, shared = numbers_of(paths["keys"], "Q"), mapped(paths["tops"], "Q"), numbers_of(paths["shared"], "B")
    try:
        return SampledKeys(keys, tops, shared, _largest(heads))
    except ValueError as error:
        raise files.IndexFileError(f"{str(paths['keys'])!r} is of another version ({error}): build it again") from None
