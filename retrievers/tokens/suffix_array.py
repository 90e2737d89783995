"""Builds the suffix array of the reversed text: all places, sorted by the tokens before them read backwards.

In reverse, the end of a context becomes a prefix. So one binary search finds the longest suffix of the context that
occurs, and the places of shorter suffixes surround those of longer ones.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import cast

import numpy as np
from numpy.typing import NDArray

Tokens = NDArray[np.uint32]

BORDER = 0xFFFFFFFF
"""Separator before, between and after documents. It is no valid token id, so no match crosses it."""

_BLOCK = 1 << 22  # tokens converted at once, which keeps temporary arrays below 100 MB
_TABLE = 1 << 24  # token ids below this are renumbered with a table (16 MB)


def sorted_places(tokens: Tokens) -> NDArray[np.uint32]:
    """Return the places 1..n, sorted by tokens[place-1], tokens[place-2], ... back to the start. [n]

    If one sequence is a prefix of the other, the shorter one comes first. With pydivsufsort (the extra copyspec[fast])
    ten million tokens take about three seconds, and 23 bytes of memory per token; with NumPy twice the time and
    100 bytes per token.
    """
    return _sort_bytes(tokens) if sorts_bytes() else _sort_by_doubling(tokens)


def sorts_bytes() -> bool:
    """Whether pydivsufsort is installed, which is faster and takes less memory."""
    return find_spec("pydivsufsort") is not None


def _sort_bytes(tokens: Tokens) -> NDArray[np.uint32]:
    """Sort with libdivsufsort, which sorts bytes: each token becomes a big-endian number of fixed width.

    Among the byte suffixes, those that start at a token are in the order of the token suffixes.
    """
    divsufsort = cast(
        "Callable[[NDArray[np.uint8]], NDArray[np.signedinteger]]", import_module("pydivsufsort").divsufsort
    )
    text, width = _as_bytes(tokens)
    if not len(text):
        return np.empty(0, np.uint32)
    order = divsufsort(text)
    del text
    places = np.empty(len(tokens), np.uint32)
    filled = 0
    for start in range(0, len(order), _BLOCK):
        block = order[start : start + _BLOCK]
        block = block[block % width == 0] // width
        places[filled : filled + len(block)] = len(tokens) - block
        filled += len(block)
    return places


def _as_bytes(tokens: Tokens) -> tuple[NDArray[np.uint8], int]:
    """The reversed text as bytes (each token's rank among those that occur, big-endian), and the bytes per token."""
    number, highest = _numbering(tokens)
    width = max(1, (highest.bit_length() + 7) // 8)
    text = np.empty((len(tokens), width), np.uint8)
    backwards = tokens[::-1]
    for start in range(0, len(tokens), _BLOCK):
        numbers = number(backwards[start : start + _BLOCK]).astype(">u4", copy=False)
        text[start : start + len(numbers)] = numbers.view(np.uint8).reshape(-1, 4)[:, 4 - width :]
    return text.reshape(-1), width


def _numbering(tokens: Tokens) -> tuple[Callable[[Tokens], NDArray[np.uint32]], int]:
    """A function that maps tokens to ranks (or to themselves, if too large for a table), and the largest result."""
    border = np.uint32(BORDER)
    blocks = [tokens[start : start + _BLOCK] for start in range(0, len(tokens), _BLOCK)]
    largest = max([int(block[block != border].max(initial=0)) for block in blocks], default=0)
    if largest >= _TABLE:
        return (lambda part: part), BORDER
    occurs = np.zeros(largest + 1, bool)
    for block in blocks:
        occurs[block[block != border]] = True
    table = np.cumsum(occurs, dtype=np.uint32) - np.uint32(1)
    highest = int(occurs.sum())

    def number(part: Tokens) -> NDArray[np.uint32]:
        numbers = table[np.where(part == border, 0, part)]
        numbers[part == border] = highest
        return numbers

    return number, highest


def _sort_by_doubling(tokens: Tokens) -> NDArray[np.uint32]:
    """Sort by prefix doubling: by the first 2, 4, 8, ... tokens, each time only the places still tied."""
    count = len(tokens)
    text = tokens[::-1].astype(np.int64) + 1
    after = np.zeros(count, np.int64)
    after[:-1] = text[1:]
    keys = (text << 32) | after
    if count and int(text.max()) >= 1 << 31:  # two of them do not fit into 63 bits: use ranks
        _, numbers = np.unique(text, return_inverse=True)
        text = numbers.reshape(-1).astype(np.int64) + 1
        after[:-1] = text[1:]
        keys = (text << 32) | after
    order = np.argsort(keys, kind="stable")
    heads = _heads(keys[order])
    rank = np.empty(count, np.int64)
    rank[order] = heads
    open_ = _open(heads)
    length = 2
    while len(open_):
        places = order[open_]
        beyond = places + length
        following = np.zeros(len(places), np.int64)
        inside = beyond < count
        following[inside] = rank[beyond[inside]] + 1
        keys = rank[places] * (count + 1) + following
        sorting = np.argsort(keys, kind="stable")
        places, keys = places[sorting], keys[sorting]
        order[open_] = places
        heads = open_[_heads(keys)]
        rank[places] = heads
        open_ = open_[_open(heads)]
        length *= 2
    return (count - order).astype(np.uint32)


def _heads(keys: NDArray[np.int64]) -> NDArray[np.int64]:
    """For each of the sorted keys, the index of the first equal one."""
    new = np.ones(len(keys), bool)
    new[1:] = keys[1:] != keys[:-1]
    return np.maximum.accumulate(np.where(new, np.arange(len(keys)), 0))


def _open(heads: NDArray[np.int64]) -> NDArray[np.int64]:
    """The indices of entries that share their head with another one, that is, are tied."""
    same = heads[1:] == heads[:-1]
    shared = np.zeros(len(heads), bool)
    shared[1:] |= same
    shared[:-1] |= same
    return np.flatnonzero(shared)
