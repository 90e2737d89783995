"""Aligns the words of two texts by a longest common subsequence: exact up to a size, above in linear time."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence

from .words import Word

EXACT_CELLS = 400_000_000
"""Alignments are exact up to this product of the word counts: 50 MB of bits, two texts of 20,000 words."""

_WINDOW = 4096
"""Words of each text that are aligned at once above that limit. A row of 4096 bits costs hardly more than 100."""


def align(source: Sequence[Word], target: Sequence[Word]) -> list[tuple[int, int]]:
    """Return index pairs of equal words, ascending in both: a longest common subsequence up to `EXACT_CELLS`."""
    left, right = [word.key for word in source], [word.key for word in target]
    head = _equal(left, right)
    tail = 0
    while tail < min(len(left), len(right)) - head and left[-1 - tail] == right[-1 - tail]:
        tail += 1
    left, right = left[head : len(left) - tail], right[head : len(right) - tail]
    middle = _common(left, right) if len(left) * len(right) <= EXACT_CELLS else _long(left, right)
    return [
        *((i, i) for i in range(head)),
        *((head + i, head + j) for i, j in middle),
        *((len(source) - i, len(target) - i) for i in range(tail, 0, -1)),
    ]


class Shared:
    """The words of a text, prepared for comparison with many parts of another one."""

    def __init__(self, words: Sequence[Word]) -> None:
        self.size = len(words)
        self._masks = _masks([word.key for word in reversed(words)])

    def with_last(self, stretch: Sequence[Word]) -> list[int]:
        """Return, for each k, the length of a longest common subsequence with the last k words of `stretch`."""
        row = full = (1 << self.size) - 1
        counts = [0]
        for word in reversed(stretch):
            match = row & self._masks.get(word.key, 0)
            row = ((row + match) | (row - match)) & full
            counts.append(self.size - row.bit_count())  # each zero bit is a shared word (see `_common`)
        return counts


def _common(left: Sequence[str], right: Sequence[str]) -> list[tuple[int, int]]:
    """A longest common subsequence with bit vectors, one big integer per row (Hyyrö 2004, "Bit-parallel LCS")."""
    masks = _masks(left)
    full = (1 << len(left)) - 1
    row, rows = full, []
    for key in right:
        match = row & masks.get(key, 0)
        row = ((row + match) | (row - match)) & full
        rows.append(row)
    pairs, i, j = [], len(left), len(right)
    while i and j:
        if rows[j - 1] >> (i - 1) & 1:
            i -= 1
            continue
        j -= 1
        if not j or rows[j - 1] >> (i - 1) & 1:
            i -= 1
            pairs.append((i, j))
    return pairs[::-1]


def _masks(keys: Sequence[str]) -> dict[str, int]:
    """The positions of each key, as a bit set."""
    masks: dict[str, int] = {}
    for i, key in enumerate(keys):
        masks[key] = masks.get(key, 0) | 1 << i
    return masks


def _long(left: Sequence[str], right: Sequence[str]) -> list[tuple[int, int]]:
    """Pairs of equal keys of long texts, window by window between anchors (keys that are unique in both)."""
    pairs: list[tuple[int, int]] = []
    i = j = 0
    for i_next, j_next in [*_anchors(left, right), (len(left), len(right))]:
        pairs += ((i + a, j + b) for a, b in _windows(left[i:i_next], right[j:j_next]))
        if i_next < len(left):
            pairs.append((i_next, j_next))
        i, j = i_next + 1, j_next + 1
    return pairs


def _anchors(left: Sequence[str], right: Sequence[str]) -> list[tuple[int, int]]:
    """The longest ascending sequence of keys that occur once in both texts (the idea of "patience diff")."""
    counts = [Counter(side) for side in (left, right)]
    places = {key: j for j, key in enumerate(right) if counts[0][key] == counts[1][key] == 1}
    pairs = [(i, places[key]) for i, key in enumerate(left) if key in places]
    ends: list[int] = []  # by length - 1, the smallest last place of an ascending run of that length
    runs: list[int] = []  # its index in `pairs`
    before: list[int] = []  # for each of `pairs`, the index of its predecessor in the run
    for index, (_, j) in enumerate(pairs):
        length = bisect_left(ends, j)
        before.append(runs[length - 1] if length else -1)
        if length == len(ends):
            ends.append(j)
            runs.append(index)
        else:
            ends[length], runs[length] = j, index
    chosen, index = [], runs[-1] if runs else -1
    while index >= 0:
        chosen.append(pairs[index])
        index = before[index]
    return chosen[::-1]


def _windows(left: Sequence[str], right: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Pairs of equal keys, exact within each window. Pairs near a window's end are left to the next one, which also
    sees what follows."""
    i = j = 0
    while i < len(left) and j < len(right):
        same = _equal(left, right, i, j)
        yield from ((i + k, j + k) for k in range(same))
        i, j = i + same, j + same
        is_last = len(left) - i <= _WINDOW and len(right) - j <= _WINDOW
        upto = _WINDOW if is_last else _WINDOW * 3 // 4
        pairs = _common(left[i : i + _WINDOW], right[j : j + _WINDOW])
        certain = [(a, b) for a, b in pairs if a < upto and b < upto]
        yield from ((i + a, j + b) for a, b in certain)
        if is_last:
            return
        a, b = certain[-1] if certain else (-1, -1)
        least = 1 + _WINDOW // 4 if a + b < _WINDOW // 4 else 0  # skip ahead if a window has little in common
        i, j = i + max(a + 1, least), j + max(b + 1, least)


def _equal(left: Sequence[str], right: Sequence[str], i: int = 0, j: int = 0) -> int:
    """Length of the common run of keys from `i` and `j` on."""
    count, most = 0, min(len(left) - i, len(right) - j)
    while count < most and left[i + count] == right[j + count]:
        count += 1
    return count
