"""The retriever's seam: one search, best texts first, and the same scores for any of the texts."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Folder = str | os.PathLike[str]
"""A folder on disk."""

_FEW = 256  # scores that are sorted sooner than divided

DEFAULT_K = 4  # hits of a search that names no number: what fits beside a question in a small model's prompt


@dataclass(frozen=True, slots=True)
class Hit:
    """One text that a search found."""

    id: int  # index of the text among those the retriever was made from and was given later
    score: float
    text: str


class Retriever(Protocol):
    """Anything that finds texts for a query.

    What a query finds depends on the query and the texts, never on the other queries of a batch, and `score`
    gives any text the score that a search gives it: a cache that ranks some of the texts ranks them as the
    whole base does (RaLMSpec, Zhang et al. 2024, section 3).
    """

    @property
    def texts(self) -> Sequence[str]:
        """The texts; a hit's id is an index into them."""
        ...

    def __len__(self) -> int: ...

    def search(self, query: str, k: int = DEFAULT_K) -> list[Hit]:
        """At most `k` hits, best first; equal scores in the order of the texts. Raises ValueError for k < 1."""
        ...

    def search_batch(self, queries: Sequence[str], k: int = DEFAULT_K) -> list[list[Hit]]:
        """`search` for each query, in one pass where that is cheaper; the results are the same."""
        ...

    def score(self, query: str, ids: Sequence[int]) -> NDArray[np.float64]:
        """The scores of these texts, with the statistics of all. [len(ids)]"""
        ...

    def add(self, texts: Sequence[str]) -> None:
        """More texts; their ids go on from the last one."""
        ...

    def save(self, folder: Folder) -> None:
        """Writes the index into `folder`, which is made where it is missing; see `files` for how."""
        ...


def check_texts(texts: Sequence[str], name: str = "texts") -> list[str]:
    """The texts as a list of their own. Raises TypeError for one string and for what is no string."""
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
    """Each text behind its context, as it is searched. Raises ValueError for another number of contexts."""
    if contexts is None:
        return list(texts)
    given = check_texts(contexts, "contexts")
    if len(given) != len(texts):
        raise ValueError(f"contexts holds {len(given)} entries for {len(texts)} texts; give one for each")
    return [f"{context}\n{text}" if context else text for context, text in zip(given, texts, strict=True)]


def check_query(query: str) -> str:
    """The query. Raises TypeError for what is no string."""
    if not isinstance(query, str):
        many = ": search_batch takes several" if isinstance(query, (list, tuple)) else ""
        raise TypeError(f"query must be a str, got {type(query).__name__} {query!r:.80}{many}")
    return query


def check_k(k: int, name: str = "k") -> int:
    """The number of hits. Raises TypeError for what is no whole number, ValueError below one."""
    if isinstance(k, bool) or not isinstance(k, (int, np.integer)):
        raise TypeError(f"{name} must be a whole number of hits, at least 1, got {type(k).__name__} {k!r:.80}")
    if k < 1:
        raise ValueError(f"{name} must be at least 1, got {k!r}")
    return int(k)


def check_ids(ids: Sequence[int], count: int) -> NDArray[np.int64]:
    """The ids as an array. Raises IndexError where one is none of the `count` texts'."""
    given = np.asarray(ids)
    if given.size and not np.issubdtype(given.dtype, np.integer):
        raise TypeError(f"ids must be whole numbers, got {ids!r:.80}")
    array = given.astype(np.int64).reshape(-1)
    if len(array) and (array.min() < 0 or array.max() >= count):
        wrong = array[(array < 0) | (array >= count)]
        raise IndexError(f"id {int(wrong[0])} is not in this retriever: it holds {count} texts, ids from 0")
    return array


def best(scores: NDArray[np.float64], k: int) -> NDArray[np.int64]:
    """The indices of the `k` highest scores, best first; equal scores by index. [min(k, len(scores))]"""
    count = len(scores)
    if k >= count or count <= _FEW:
        return np.argsort(-scores, kind="stable")[:k]
    least = np.partition(scores, count - k)[count - k]
    above = np.flatnonzero(scores > least)
    equal = np.flatnonzero(scores == least)[: k - len(above)]
    chosen = np.sort(np.concatenate([above, equal]))
    return chosen[np.argsort(-scores[chosen], kind="stable")]
