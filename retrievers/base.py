"""The retriever interface (`search`, `score`, `add`, `save`), its argument checks, and top-k selection."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from copyspec.common.checks import check_type
from copyspec.common.forks import fork_safe

Folder = str | os.PathLike[str]
"""A folder on disk."""

_FEW = 256  # up to this many scores, sorting all is faster than partitioning

DEFAULT_K = 4  # default number of hits: as many passages as fit into a small model's prompt with the question

ADD_LOCK = fork_safe(threading.RLock())
"""Held while texts are added to a retriever, or written: two additions at once would lose texts or mix up their ids.
Reentrant, because a hybrid's addition includes those of its retrievers."""


@dataclass(frozen=True, slots=True)
class Hit:
    """One text that a search found."""

    id: int  # index of the text in `Retriever.texts`
    score: float
    text: str


class Retriever(Protocol):
    """Anything that finds texts for a query.

    Results depend on the query and the texts only, not on the other queries of a batch. `score` gives each text the
    same score as a search, so that a cache of some texts ranks them as the whole retriever does (RaLMSpec, Zhang et
    al. 2024, section 3). The package's own inherit what they need not do in a way of their own.
    """

    @property
    def texts(self) -> Sequence[str]:
        """The texts; a hit's id is an index into them."""

    def __len__(self) -> int:
        return len(self.texts)

    def search(self, query: str, k: int = DEFAULT_K) -> list[Hit]:
        """Return at most `k` hits, best first; ties in the order of the texts. Raises ValueError for k < 1."""
        return self.search_batch([check_query(query)], k)[0]

    def search_batch(self, queries: Sequence[str], k: int = DEFAULT_K) -> list[list[Hit]]:
        """Return the results of `search` for each query; batched where that is faster."""

    def score(self, query: str, ids: Sequence[int]) -> NDArray[np.float64]:
        """Return the scores of the texts `ids`, the same as in a search. [len(ids)]"""

    def add(self, texts: Sequence[str]) -> None:
        """Add texts; their ids continue from the last one."""

    def save(self, folder: Folder) -> None:
        """Write the index into `folder`, which is created if missing (see `saving`)."""


def check_texts(texts: Sequence[str], name: str = "texts") -> list[str]:
    """Return the texts as a new list. Raises TypeError for a single string and for entries that are not strings."""
    if isinstance(texts, str):
        raise TypeError(f"{name} must be a list of strings, got one string: write [{texts[:20]!r}...]")
    if isinstance(texts, (bytes, bytearray)) or not isinstance(texts, Iterable):
        raise TypeError(f"{name} must be a list of strings, got {type(texts).__name__} {texts!r:.80}")
    copied = list(texts)
    for index, text in enumerate(copied):
        if not isinstance(text, str):
            raise TypeError(f"{name}[{index}] must be a string, got {type(text).__name__}: {text!r:.80}")
    return copied


def in_context(texts: Sequence[str], contexts: Sequence[str] | None) -> list[str]:
    """Prefix each text with its context, as it is indexed. Raises ValueError if the numbers differ."""
    if contexts is None:
        return list(texts)
    checked = check_texts(contexts, "contexts")
    if len(checked) != len(texts):
        raise ValueError(f"contexts holds {len(checked)} entries for {len(texts)} texts; give one for each")
    return [f"{context}\n{text}" if context else text for context, text in zip(checked, texts, strict=True)]


def check_folder(folder: Folder) -> Path:
    """Return the folder as a path. Raises TypeError for anything but a str or a path."""
    check_type(isinstance(folder, (str, os.PathLike)), "folder", folder, "a str or a path")
    return Path(folder)


def check_query(query: str) -> str:
    """Return the query. Raises TypeError if it is not a string."""
    if not isinstance(query, str):
        many = ": search_batch takes several" if isinstance(query, (list, tuple)) else ""
        raise TypeError(f"query must be a str, got {type(query).__name__} {query!r:.80}{many}")
    return query


def check_k(k: int, name: str = "k") -> int:
    """Return the number of hits. Raises TypeError if it is not an integer, ValueError if it is below one."""
    if isinstance(k, bool) or not isinstance(k, (int, np.integer)):
        raise TypeError(f"{name} must be an integer, at least 1, got {type(k).__name__} {k!r:.80}")
    if k < 1:
        raise ValueError(f"{name} must be at least 1, got {k!r}")
    return int(k)


def check_ids(ids: Sequence[int], count: int) -> NDArray[np.int64]:
    """Return the ids as an array. Raises IndexError for an id that is not from 0 to `count` - 1."""
    numbers = np.asarray(ids)
    if numbers.size and not np.issubdtype(numbers.dtype, np.integer):
        raise TypeError(f"ids must be integers, got {ids!r:.80}")
    array = numbers.astype(np.int64).reshape(-1)
    if len(array) and (array.min() < 0 or array.max() >= count):
        wrong = array[(array < 0) | (array >= count)]
        raise IndexError(f"id {int(wrong[0])} is not in this retriever: it holds {count} texts, ids from 0")
    return array


def best(scores: NDArray[np.float64], k: int) -> NDArray[np.int64]:
    """Return the indices of the `k` highest scores, best first; ties by index. [min(k, len(scores))]"""
    count = len(scores)
    if k >= count or count <= _FEW:
        return np.argsort(-scores, kind="stable")[:k]
    least = np.partition(scores, count - k)[count - k]
    above = np.flatnonzero(scores > least)
    equal = np.flatnonzero(scores == least)[: k - len(above)]
    chosen = np.sort(np.concatenate([above, equal]))
    return chosen[np.argsort(-scores[chosen], kind="stable")]
