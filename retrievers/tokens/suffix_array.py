"""Sorting all places of a text by what stands before them, read backwards: the index of a datastore.

A suffix array of the reversed text. Read that way, the end of a context is the beginning of a pattern, so one
binary search finds the longest end that occurs, and every shorter end's places lie around those of the longer.
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
"""Stands before, between and behind documents. No token of a vocabulary, so that no match crosses it."""

_BLOCK = 1 << 22  # tokens converted at once: temporary arrays stay below 100 MB whatever the text's length
_TABLE = 1 << 24  # token ids below this are numbered through a table (16 MB)


def sorted_places(tokens: Tokens) -> NDArray[np.uint32]:
    """The places 1..n, ordered by tokens[place-1], tokens[place-2], ... back to the start. [n]

    A place whose text before it ends first comes first. By pydivsufsort where it is installed (the extra
    copyspec[fast]), about three seconds for ten million tokens and 23 bytes of memory a token; else by NumPy in
    twice the time and 100 bytes a token.
    """
    return _sort_bytes(tokens) if sorts_bytes() else _sort_by_doubling(tokens)


def sorts_bytes() -> bool:
    """Whether pydivsufsort is there, which is faster and takes less memory."""
    return find_spec("pydivsufsort") is not None


def _sort_bytes(tokens: Tokens) -> NDArray[np.uint32]:
    """By libdivsufsort, which sorts bytes: every token becomes as many as its number needs, highest first.

    Among the suffixes of the bytes those that begin with a token stand in the order of the tokens.
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
    """The reversed text, each token's number among those that occur in `width` bytes, and the width."""
    number, highest = _numbering(tokens)
    width = max(1, (highest.bit_length() + 7) // 8)
    text = np.empty((len(tokens), width), np.uint8)
    backwards = tokens[::-1]
    for start in range(0, len(tokens), _BLOCK):
        numbers = number(backwards[start : start + _BLOCK]).astype(">u4", copy=False)
        text[start : start + len(numbers)] = numbers.view(np.uint8).reshape(-1, 4)[:, 4 - width :]
    return text.reshape(-1), width


def _numbering(tokens: Tokens) -> tuple[Callable[[Tokens], NDArray[np.uint32]], int]:
    """Numbers in the order of the tokens for those that occur, without gaps where a table can hold them."""
    border = np.uint32(BORDER)
    blocks = [tokens[start : start + _BLOCK] for start in range(0, len(tokens), _BLOCK)]
    largest = max([int(block[block != border].max(initial=0)) for block in blocks], default=0)
    if largest >= _TABLE:
        return (lambda part: part), BORDER
    held = np.zeros(largest + 1, bool)
    for block in blocks:
        held[block[block != border]] = True
    table = np.cumsum(held, dtype=np.uint32) - np.uint32(1)
    highest = int(held.sum())

    def number(part: Tokens) -> NDArray[np.uint32]:
        numbers = table[np.where(part == border, 0, part)]
        numbers[part == border] = highest
        return numbers

    return number, highest


def _sort_by_doubling(tokens: Tokens) -> NDArray[np.uint32]:
    """By prefix doubling: sorted by the first 2, 4, 8 tokens, each time only what is not in order yet."""
    count = len(tokens)
    text = tokens[::-1].astype(np.int64) + 1
    after = np.zeros(count, np.int64)
    after[:-1] = text[1:]
    keys = (text << 32) | after
    if count and int(text.max()) >= 1 << 31:  # does not fit beside another in 63 bits: number what occurs
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
    """For each of some sorted keys the index of the first that equals it."""
    new = np.ones(len(keys), bool)
    new[1:] = keys[1:] != keys[:-1]
    return np.maximum.accumulate(np.where(new, np.arange(len(keys)), 0))


def _open(heads: NDArray[np.int64]) -> NDArray[np.int64]:
    """The indices of those that share their head with another."""
    same = heads[1:] == heads[:-1]
    shared = np.zeros(len(heads), bool)
    shared[1:] |= same
    shared[:-1] |= same
    return np.flatnonzero(shared)
