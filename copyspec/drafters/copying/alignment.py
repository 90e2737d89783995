"""Edit alignment: finds the position in the edited text that the output has reached, by edit distance."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from copyspec.drafters.copying.native_module import COMPILED

BAND = 256
"""Positions kept on either side of the best one: insertions and deletions up to about this length are followed."""

MOVE_EVERY = 32  # output tokens between two adjustments of the band; far fewer than BAND
FEW = 16  # up to this many occurrences of a token, a loop over all is cheaper than a bisection
SOON = 24  # up to this many tokens after a known position, a loop over its surroundings is cheaper than arrays
MAX_EXCESS = 3
"""Edits above the minimum: the output may be at any position that costs no more. `Followed.by_excess` has an entry for
each excess from 0 to this."""


class Alignment:
    """Edit distances D[j] between source[:j] and the output so far, updated with every output token.

    D is one row of the Wagner-Fischer table. Neighbouring entries differ by -1, 0 or 1, so the row is stored as two bit
    sets (where it rises and where it falls), and an update takes a dozen operations on integers of that many bits:
    G. Myers, A fast bit-vector algorithm for approximate string matching (1999), in the form of H. Hyyro (2003) for
    whole strings. In long sources only a band around the position of least cost is kept. The output may begin at any of
    the first `free_prefix` positions without cost, for sources that start with an instruction.

    The bits run along the source, as those of the papers do along the pattern. The papers' names: Eq is `equal`, Xh
    `same`, Xv `steady`, Ph `across`, Pv `rises`, Mv `falls`.

    D is exact until the band first moves. From then on entries may be too high, never too low: the first one is taken
    to grow with every output token, as D[0] does, although a path from the entries dropped before it may cost less;
    and entries that join at the other end are taken to rise by 1 each. Both ends are about BAND from the least cost.
    """

    def __init__(self, source: Sequence[int], band: int = BAND, free_prefix: int = 0) -> None:
        self.start = 0  # the j of the band's first entry
        self._length = len(source)
        self._places: dict[int, list[int]] = {}  # token -> its positions in the source
        for place, token in enumerate(source):
            self._places.setdefault(token, []).append(place)
        self._band = band
        self._output = 0  # tokens of output
        self._base = 0  # D at the band's first entry
        self._width = min(2 * band, len(source))  # entries of the band after the first
        self._all = (1 << self._width) - 1
        self._rises = self._all & ~((1 << free_prefix) - 1)  # bit i: D[start + i + 1] = D[start + i] + 1
        self._falls = 0  # bit i: D[start + i + 1] = D[start + i] - 1
        self._place: int | None = None if free_prefix else 0  # last known position of the output in the source
        self._output_at_reset = 0  # number of output tokens at that time

    def __len__(self) -> int:
        return self._width + 1

    @property
    def costs(self) -> NDArray[np.int16]:
        """D over the band, relative to its first entry. [len(self)]"""
        entries = self._width + 1
        octets = entries // 8 + 1
        both = (self._rises | (self._falls << (8 * octets))) << 1  # the first entry neither rises nor falls
        bits = np.unpackbits(np.frombuffer(both.to_bytes(2 * octets, "little"), np.uint8), bitorder="little")
        bits = bits.view(np.int8)
        costs: NDArray[np.int16] = np.add.accumulate(bits[:entries] - bits[8 * octets :][:entries], dtype=np.int16)
        return costs

    def extend(self, tokens: Iterable[int]) -> None:
        """Append `tokens` to the output and update D."""
        every, places_of = min(MOVE_EVERY, self._band // 2), self._places
        rises, falls, start, width, all_ = self._rises, self._falls, self.start, self._width, self._all
        for token in tokens:
            equal = 0  # bit i: source[start + i] is the token
            places = places_of.get(token)
            if places is not None:
                for place in places if len(places) <= FEW else places[bisect_left(places, start) :]:
                    if place >= start + width:
                        break
                    if place >= start:
                        equal |= 1 << (place - start)
            # `across`: the entries of the new row that are larger than in the old one. The first one is, hence `| 1`.
            same = (((equal & rises) + rises) ^ rises) | equal
            across = ((falls | (all_ & ~(same | rises))) << 1) | 1
            steady = equal | falls
            rises = all_ & (((rises & same) << 1) | ~(steady | across))
            falls = all_ & across & steady
            self._base += 1  # as D[0] does; a bound for the band's first entry, see the class
            self._output += 1
            if self._output % every == 0 and width < self._length:
                self._rises, self._falls = rises, falls
                self._move_band()
                rises, falls, start, width, all_ = self._rises, self._falls, self.start, self._width, self._all
        self._rises, self._falls = rises, falls

    def least(self) -> int:
        """Return the minimum of D."""
        return self._base + int(self.costs.min())

    def best(self) -> int:
        """Return the first position of minimum cost."""
        return self.start + int(self.costs.argmin())

    def near(self, offset: int = 0) -> dict[int, int]:
        """Return the positions whose cost is at most MAX_EXCESS above the minimum, plus `offset`, each with its excess
        over it."""
        since = self._output - self._output_at_reset
        if self._place is not None and since <= SOON:
            return self._near_place(self._place, since, offset)
        costs = self.costs
        least = int(costs.min())
        (places,) = (costs <= least + MAX_EXCESS).nonzero()
        return {offset + self.start + int(place): int(costs[place]) - least for place in places}

    def reset_at(self, position: int) -> None:
        """Set the output's position to `position`, as a certain fact: D becomes the distance from it."""
        start = max(0, position - self._band)
        self._set_band(start, min(self._length, position + self._band) - start)
        self._base = position - start
        self._falls = ((1 << self._base) - 1) & self._all
        self._rises = self._all & ~self._falls
        self._place, self._output_at_reset = position, self._output

    def in_band(self, position: int) -> bool:
        """Whether the band covers `position`."""
        return self.start <= position <= self.start + self._width

    def _near_place(self, place: int, since: int, offset: int) -> dict[int, int]:
        """`near`, if the output was at `place` before its last `since` tokens.

        At that time D[j] was |j - place|. Now D[j] is at least |j - place - since| and its minimum at most `since`, so
        only positions between `place` and `place` + 2 * `since`, give or take MAX_EXCESS, can be near."""
        first = max(place - MAX_EXCESS, self.start)
        stop = min(place + 2 * since + MAX_EXCESS, self.start + self._width)
        rises, falls = self._rises >> (first - self.start), self._falls >> (first - self.start)
        cost, costs = 0, [0]  # less D[first]
        for _ in range(stop - first):
            cost += (rises & 1) - (falls & 1)
            costs.append(cost)
            rises >>= 1
            falls >>= 1
        least = min(costs)
        places = enumerate(costs, offset + first)
        return {position: cost - least for position, cost in places if cost <= least + MAX_EXCESS}

    def _set_band(self, start: int, width: int) -> None:
        self.start, self._width, self._all = start, width, (1 << width) - 1

    def _move_band(self) -> None:
        best, start = self.best(), self.start
        stop = start + self._width
        if best + self._band > stop:
            stop = min(best + 2 * self._band, self._length)
            self._rises |= ((1 << (stop - start)) - 1) & ~self._all  # past the old band, D is taken to rise by 1 each
        if best - self._band > start:
            past = best - self._band - start
            gone = (1 << past) - 1
            self._base += (self._rises & gone).bit_count() - (self._falls & gone).bit_count()
            self._rises >>= past
            self._falls >>= past
            start += past
        self._set_band(start, stop - start)


def _in_python(source: Sequence[int], free_prefix: int = 0) -> Alignment:
    return Alignment(source, free_prefix=free_prefix)


make_alignment: Callable[..., Alignment] = (
    _in_python if COMPILED is None else partial(COMPILED.align, BAND, MOVE_EVERY, SOON, MAX_EXCESS)
)
"""Called with a source, and optionally `free_prefix` as the second positional argument. Returns the C implementation if
compiled, else `Alignment`; same methods."""
