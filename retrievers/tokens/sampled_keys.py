"""A sparse index of a segment's sorted places: what stands before every 16th of them, in one number each.

A binary search among places on disk reads twice at every step, a place and the text before it. The last tokens before
every STRIDE-th place, packed into 64 bits, leave it STRIDE places to search; of these keys every BLOCK-th is held in
memory. Beside each place stands how many of a key's tokens it shares with the place before it (the LCP array of Manber
and Myers 1993, cut off): it says where the places behind the same tokens end, without a look at the text.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from .numbers import Numbers
from .suffix_array import BORDER, Tokens

STRIDE = 16  # places from key to key: keys take half a byte a token, and four steps of a search are left
BLOCK = 256  # keys read at once, 2 KB; the first of each is held in memory, 0.2 MB for 100 million tokens
TOKENS = 4  # in a key at most

_STEPS = 8  # of STRIDE places, in which the keys leave one border: more than the two that any can take

_AT_ONCE = 1 << 20  # places whose keys are made at once, a multiple of STRIDE: 50 MB of temporary arrays


class Bracket(NamedTuple):
    """Where a query belongs among the sorted places: at one of low..high."""

    low: int
    high: int
    left: int  # tokens that the query is known to share with the place before `low`
    right: int  # and with the one at `high`


class PlaceIndex(Protocol):
    """Says what it can about the sorted places without a look at the text."""

    size: int
    """So many tokens of a query it knows."""

    def bracket(self, query: Sequence[int]) -> Bracket | None:
        """`query`: a context backwards. None where it is known that its first token does not occur."""
        ...

    def interval(self, query: Sequence[int], low: int, high: int) -> tuple[int, int]:
        """All places behind `query`, at most `size` tokens of a context backwards; `low`..high-1 are some of them."""
        ...

    def shared(self, index: int) -> int:
        """How many tokens the place shares with the one before it; at most `size`."""
        ...


class Heads:
    """Of an index that an earlier version wrote: where the places behind each token begin.

    `heads`: the tokens that occur, ascending. `starts`: the first place behind each; one more: the end.
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
    """The keys of a segment, as `sampled_keys` made them.

    `tops`: every BLOCK-th of `keys`. `shared`: a number a place. `largest`: of the text's tokens. Raises ValueError
    for keys at other distances.
    """

    def __init__(self, keys: Numbers, tops: Sequence[int], shared: Numbers, largest: int) -> None:
        if (len(keys), len(tops)) != (-(-len(shared) // STRIDE), -(-len(keys) // BLOCK)):
            raise ValueError(f"{len(keys)} keys and {len(tops)} in memory do not fit {len(shared)} places")
        self._keys, self._tops, self._shared, self._largest = keys, tops, shared, largest
        self._width, self.size = _packing(largest)
        self._last: tuple[int, memoryview[int]] = (-1, memoryview(b"").cast("Q"))  # replaced whole: threads share it

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
        """The first of the places that share `length` tokens with the one at `low`."""
        for _ in range(_STEPS):
            start = max(low - STRIDE + 1, 0)
            for index, shared in enumerate(reversed(self._shared.part(start, low + 1))):
                if shared < length:
                    return low - index
            if not start:
                return 0
            low = start - 1
        raise ValueError(f"no place near {low} begins anew behind {length} tokens")

    def _past(self, high: int, length: int) -> int:
        """The place behind the last of those that share `length` tokens with the one before `high`."""
        for _ in range(_STEPS):
            part = self._shared.part(high, high + STRIDE)
            for index, shared in enumerate(part):
                if shared < length:
                    return high + index
            high += len(part)
            if not part:
                return high
        raise ValueError(f"no place near {high} begins anew behind {length} tokens")

    def _range(self, query: Sequence[int]) -> tuple[int, int]:
        """The least and the greatest key that begins with `query`."""
        key, largest, width = 0, self._largest, self._width
        for token in query:
            key = key << width | (token if token <= largest else largest + 1)
        spare = width * (self.size - len(query))
        return key << spare, ((key + 1) << spare) - 1

    def _common(self, key: int, other: int) -> int:
        """Tokens that two different keys begin with both."""
        return max(0, self.size - 1 - ((key ^ other).bit_length() - 1) // self._width)

    def _find(self, key: int, side: Callable[[Sequence[int], int], int]) -> tuple[int, int, int]:
        """How many keys are sorted before `key`, the last of these, and the next; -1 where there is none."""
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
    """What a SampledKeys is made of, as files: "keys" [ceil(n / STRIDE)], "tops" [ceil(keys / BLOCK)], "shared" [n].

    `largest`: of the text's tokens, borders left out.
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
    """Bits for a token, so that one more than the largest and a border have numbers of their own; tokens in a key."""
    width = min((largest + 2).bit_length(), 32)  # of the largest that there can be, a query holds none above
    return width, min(TOKENS, 64 // width)


def _packed(tokens: Tokens, places: NDArray[np.uint32], width: int, size: int) -> NDArray[np.uint64]:
    """The keys of some places: the token before a place in the highest bits. Before the text's first stand zeros."""
    packed = np.zeros(len(places), np.uint64)
    border = np.uint64((1 << width) - 1)
    for distance in range(1, size + 1):
        inside = places >= distance
        before = tokens[np.where(inside, places, distance) - np.uint32(distance)]
        numbers = np.where(before == BORDER, border, before.astype(np.uint64))
        packed = packed << np.uint64(width) | np.where(inside, numbers, np.uint64(0))
    return packed
