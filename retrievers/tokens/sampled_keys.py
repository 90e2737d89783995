"""A sparse index of a segment's sorted places, which saves disk reads in a binary search.

A binary search among places on disk reads twice per step: a place, and the text before it. Keys hold the last tokens
before every STRIDE-th place, packed into 64 bits, so that only STRIDE places are left to search; every BLOCK-th key is
held in memory. For each place, "shared" holds how many of a key's tokens it shares with the place before it (the LCP
array of Manber and Myers 1993, truncated), which gives the range of places after the same tokens without reading text.
"""

from __future__ import annotations

import os
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from .suffix_array import BORDER, Tokens

Code = Literal["B", "I", "Q"]
"""Item type of a file, as in struct: unsigned integers of 8, 32 or 64 bits."""

_BYTES: dict[Code, int] = {"B": 1, "I": 4, "Q": 8}


class Numbers(Protocol):
    """Unsigned integers in a file."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> int: ...

    def part(self, start: int, end: int) -> memoryview[int]:
        """Return the numbers `start` to `end` - 1; fewer if the file ends."""


class _ReadNumbers:
    """Reads with one `pread` per access.

    A mapped file would soon fill this process's memory, because the system maps up to two megabytes around each access.
    `pread` moves no file position, so threads and forked processes can share the file."""

    _close = staticmethod(os.close)  # kept here, because at exit modules are cleared before the last objects

    def __init__(self, handle: int, code: Code) -> None:
        self._code, self._bytes = code, _BYTES[code]
        self._file = handle
        self._count = os.fstat(self._file).st_size // self._bytes
        if hasattr(os, "posix_fadvise"):  # searches jump, so read-ahead is of no use
            os.posix_fadvise(self._file, 0, 0, os.POSIX_FADV_RANDOM)

    def __del__(self) -> None:
        if hasattr(self, "_file"):
            self._close(self._file)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> int:
        return memoryview(os.pread(self._file, self._bytes, index * self._bytes)).cast(self._code)[0]

    def part(self, start: int, end: int) -> memoryview[int]:
        size = self._bytes
        return memoryview(os.pread(self._file, (end - start) * size, start * size)).cast(self._code)


class _MappedNumbers:
    """A mapped file, for systems without `pread`."""

    def __init__(self, handle: int, code: Code) -> None:
        import mmap

        empty = not os.fstat(handle).st_size
        self._numbers = memoryview(b"" if empty else mmap.mmap(handle, 0, access=mmap.ACCESS_READ)).cast(code)
        os.close(handle)

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, index: int) -> int:
        return self._numbers[index]

    def part(self, start: int, end: int) -> memoryview[int]:
        return self._numbers[start:end]


def numbers_of(handle: int, code: Code = "I") -> Numbers:
    """Return the numbers of an open file without reading them. They own the descriptor."""
    return _ReadNumbers(handle, code) if hasattr(os, "pread") else _MappedNumbers(handle, code)


def in_memory(handle: int, code: Code = "I") -> memoryview[int]:
    """Read all numbers of a small open file, and close it."""
    with os.fdopen(handle, "rb") as file:
        file.seek(0)
        content = file.read()
    return memoryview(content[: len(content) // _BYTES[code] * _BYTES[code]]).cast(code)


STRIDE = 16  # places per key: keys take half a byte per token, and four steps of a search remain
BLOCK = 256  # keys read at once, 2 KB; the first of each block is in memory, 0.2 MB for 100 million tokens
TOKENS = 4  # maximum number of tokens in a key

_STEPS = 8  # reads of STRIDE places to find a border; consistent files need at most two

_AT_ONCE = 1 << 20  # places whose keys are computed at once, a multiple of STRIDE: 50 MB of temporary arrays


class Bracket(NamedTuple):
    """The query's position among the sorted places: one of low..high."""

    low: int
    high: int
    left: int  # tokens that the query is known to share with the place before `low`
    right: int  # tokens that it is known to share with the place at `high`


class PlaceIndex(Protocol):
    """An index of the sorted places that needs no access to the text."""

    size: int
    """Number of tokens of a query that it can compare."""

    def bracket(self, query: Sequence[int]) -> Bracket | None:
        """Narrow a search down. `query`: a context in reverse. None if its first token is known not to occur."""

    def interval(self, query: Sequence[int], low: int, high: int) -> tuple[int, int]:
        """Return the range of all places after `query`, at most `size` tokens; low..high-1 are some of them."""

    def shared(self, index: int) -> int:
        """Return how many tokens the place shares with the one before it, at most `size`."""


class TokenRanges:
    """The index of segments that an earlier version wrote: the range of places after each token.

    `heads`: the tokens that occur, ascending. `starts`: the first place after each, and the end.
    """

    size = 1

    def __init__(self, heads: Sequence[int], starts: Sequence[int]) -> None:
        self._heads, self._starts = heads, starts

    def bracket(self, query: Sequence[int]) -> Bracket | None:
        """As PlaceIndex.bracket."""
        bucket = bisect_left(self._heads, query[0])
        if bucket == len(self._heads) or self._heads[bucket] != query[0]:
            return None
        return Bracket(self._starts[bucket], self._starts[bucket + 1], 0, 0)

    def interval(self, query: Sequence[int], low: int, high: int) -> tuple[int, int]:
        """As PlaceIndex.interval."""
        bucket = bisect_left(self._heads, query[0])
        return self._starts[bucket], self._starts[bucket + 1]

    def shared(self, index: int) -> int:
        """As PlaceIndex.shared."""
        bucket = bisect_left(self._starts, index)
        return int(bucket == len(self._starts) or self._starts[bucket] != index)


class SampledKeys:
    """The keys of a segment, as made by `sampled_keys`.

    `tops`: every BLOCK-th of `keys`. `shared`: one number per place. `largest`: the largest token id of the text.
    Raises ValueError if the lengths do not fit.
    """

    def __init__(self, keys: Numbers, tops: Sequence[int], shared: Numbers, largest: int) -> None:
        if (len(keys), len(tops)) != (-(-len(shared) // STRIDE), -(-len(keys) // BLOCK)):
            raise ValueError(f"{len(keys)} keys and {len(tops)} in memory do not fit {len(shared)} places")
        self._keys, self._tops, self._shared, self._largest = keys, tops, shared, largest
        self._width, self.size = _packing(largest)
        self._last: tuple[int, memoryview[int]] = (-1, memoryview(b"").cast("Q"))  # replaced atomically, for threads

    def bracket(self, query: Sequence[int]) -> Bracket:
        """As PlaceIndex.bracket."""
        least, most = self._range(query[: self.size])
        count, before, after = self._find(least, bisect_left)
        low, left = (count - 1) * STRIDE + 1 if count else 0, self._common(before, least) if count else 0
        if least <= after <= most:
            count, _, after = self._find(most, bisect_right)
        if after < 0:
            return Bracket(low, len(self._shared), left, 0)
        return Bracket(low, count * STRIDE, left, self._common(after, least))

    def interval(self, query: Sequence[int], low: int, high: int) -> tuple[int, int]:
        """As PlaceIndex.interval."""
        least, most = self._range(query)
        below, _, after = self._find(least, bisect_left)
        if least <= after <= most:
            past, _, _ = self._find(most, bisect_right)
            low, high = min(low, below * STRIDE), max(high, (past - 1) * STRIDE + 1)
        return self._first(low, len(query)), self._past(high, len(query))

    def shared(self, index: int) -> int:
        """As PlaceIndex.shared."""
        return self._shared[index]

    def _first(self, low: int, length: int) -> int:
        """The first place that shares `length` tokens with the one at `low`."""
        for _ in range(_STEPS):
            start = max(low - STRIDE + 1, 0)
            for index, shared in enumerate(reversed(self._shared.part(start, low + 1))):
                if shared < length:
                    return low - index
            if not start:
                return 0
            low = start - 1
        raise ValueError(f"no place near {low} starts over after {length} tokens")

    def _past(self, high: int, length: int) -> int:
        """The end of the range of places that share `length` tokens with the one before `high`."""
        for _ in range(_STEPS):
            part = self._shared.part(high, high + STRIDE)
            for index, shared in enumerate(part):
                if shared < length:
                    return high + index
            high += len(part)
            if not part:
                return high
        raise ValueError(f"no place near {high} starts over after {length} tokens")

    def _range(self, query: Sequence[int]) -> tuple[int, int]:
        """The smallest and the largest key that begin with `query`."""
        key, largest, width = 0, self._largest, self._width
        for token in query:
            key = key << width | (token if token <= largest else largest + 1)
        spare = width * (self.size - len(query))
        return key << spare, ((key + 1) << spare) - 1

    def _common(self, key: int, other: int) -> int:
        """Length of the common prefix of two different keys, in tokens."""
        return max(0, self.size - 1 - ((key ^ other).bit_length() - 1) // self._width)

    def _find(self, key: int, side: Callable[[Sequence[int], int], int]) -> tuple[int, int, int]:
        """The number of keys before `key`, the last of these, and the next one; -1 if there is none."""
        tops = self._tops
        top = side(tops, key)
        if not top:
            return 0, -1, tops[0] if tops else -1
        number, block = self._last
        if number != top:
            block = self._keys.part((top - 1) * BLOCK, top * BLOCK)
            self._last = top, block
        index = side(block, key)
        after = block[index] if index < len(block) else tops[top] if top < len(tops) else -1
        return (top - 1) * BLOCK + index, block[index - 1], after


def sampled_keys(tokens: Tokens, places: NDArray[np.uint32], largest: int) -> dict[str, NDArray[np.unsignedinteger]]:
    """Compute the files of a SampledKeys: "keys" [ceil(n / STRIDE)], "tops" [ceil(keys / BLOCK)], "shared" [n].

    `largest`: the largest token id of the text, without borders.
    """
    keys = np.empty(-(-len(places) // STRIDE), np.uint64)
    shared = np.zeros(len(places), np.uint8)
    width, size = _packing(largest)
    last = np.uint64(0)
    for start in range(0, len(places), _AT_ONCE):
        packed = _packed(tokens, places[start : start + _AT_ONCE], width, size)
        keys[start // STRIDE : (start + len(packed) - 1) // STRIDE + 1] = packed[::STRIDE]
        differing = packed ^ np.concatenate([[last], packed[:-1]])
        for spare in range(size):
            shared[start : start + len(packed)] += differing < np.uint64(1 << (width * spare))
        last = packed[-1]
    shared[:1] = 0
    return {"keys": keys, "tops": keys[::BLOCK], "shared": shared}


def _packing(largest: int) -> tuple[int, int]:
    """Bits per token, with room for unknown larger tokens and the border; and tokens per key."""
    width = min((largest + 2).bit_length(), 32)  # with 32 bits, no query has larger tokens
    return width, min(TOKENS, 64 // width)


def _packed(tokens: Tokens, places: NDArray[np.uint32], width: int, size: int) -> NDArray[np.uint64]:
    """The keys of some places: the token before a place is in the highest bits. Zeros precede the text's start."""
    packed = np.zeros(len(places), np.uint64)
    border = np.uint64((1 << width) - 1)
    for distance in range(1, size + 1):
        inside = places >= distance
        before = tokens[np.where(inside, places, distance) - np.uint32(distance)]
        numbers = np.where(before == BORDER, border, before.astype(np.uint64))
        packed = packed << np.uint64(width) | np.where(inside, numbers, np.uint64(0))
    return packed
