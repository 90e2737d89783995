"""Edit alignment: how far the output has come in the text that it edits."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

BAND = 256
"""Positions kept on either side of the best one: insertions and deletions up to about this length are followed."""

MOVE_EVERY = 32  # output tokens between two looks at where the band should be; far fewer than BAND
FEW = 16  # places of a token that are looked at one by one, the ones before the band too
SOON = 24  # output tokens after the place was known, up to which walking along the row is cheaper than arrays
NEAR = 3  # a place whose cost is up to so much above the least is one where the output may stand


class Alignment:
    """D[j], the least number of insertions, deletions and substitutions that turn source[:j] into the output so far.

    One row of the Wagner-Fischer table, moved on by each output token. Neighbours differ by -1, 0 or 1, so that a
    row is two sets of positions, where it rises and where it falls, and moving on is a dozen operations on integers
    of as many bits as the row is long: G. Myers, A fast bit-vector algorithm for approximate string matching (1999),
    in the form of H. Hyyro (2003) for whole strings. Long sources are followed in a band around the position of
    least cost. The output may begin at any of the first `free` positions without cost: for a source that an
    instruction stands before.
    """

    def __init__(self, source: Sequence[int], band: int = BAND, free: int = 0) -> None:
        self.start = 0  # the j of the band's first entry
        self._length = len(source)
        self._places: dict[int, list[int]] = {}  # token -> where it stands in the source
        for place, token in enumerate(source):
            self._places.setdefault(token, []).append(place)
        self._band = band
        self._output = 0  # tokens of output
        self._base = 0  # D at the band's first entry
        self._width = min(2 * band, len(source))  # entries of the band after the first
        self._all = (1 << self._width) - 1
        self._rises = self._all & ~((1 << free) - 1)  # bit i: D[start + i + 1] = D[start + i] + 1
        self._falls = 0  # bit i: D[start + i + 1] = D[start + i] - 1
        self._place: int | None = None if free else 0  # where the output was last known to stand
        self._stood = 0  # tokens of output then

    def __len__(self) -> int:
        return self._width + 1

    @property
    def costs(self) -> NDArray[np.int16]:
        """D over the band, less D at its first entry. [len(self)]"""
        entries = self._width + 1
        octets = entries // 8 + 1
        both = (self._rises | self._falls << 8 * octets) << 1  # the first entry neither rises nor falls
        bits = np.unpackbits(np.frombuffer(both.to_bytes(2 * octets, "little"), np.uint8), bitorder="little")
        bits = bits.view(np.int8)
        costs: NDArray[np.int16] = np.add.accumulate(bits[:entries] - bits[8 * octets :][:entries], dtype=np.int16)
        return costs

    def extend(self, tokens: Iterable[int]) -> None:
        """More tokens of output."""
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
            # Along the new version of the row `across` says where D rises over the old one.
            same = (((equal & rises) + rises) ^ rises) | equal
            across = ((falls | (all_ & ~(same | rises))) << 1) | 1
            steady = equal | falls
            rises = all_ & (((rises & same) << 1) | ~(steady | across))
            falls = all_ & across & steady
            self._base += 1
            self._output += 1
            if self._output % every == 0 and width < self._length:
                self._rises, self._falls = rises, falls
                self._move_band()
                rises, falls, start, width, all_ = self._rises, self._falls, self.start, self._width, self._all
        self._rises, self._falls = rises, falls

    def least(self) -> int:
        """The least cost of any position."""
        return self._base + int(self.costs.min())

    def best(self) -> int:
        """The first position of least cost."""
        return self.start + int(self.costs.argmin())

    def near(self) -> dict[int, int]:
        """The positions whose cost is at most NEAR above the least, and how much it is above."""
        since = self._output - self._stood
        if self._place is not None and since <= SOON:
            return self._near_place(self._place, since)
        costs = self.costs
        least = int(np.minimum.reduce(costs))  # a third of the time of its method `min`
        (places,) = (costs <= least + NEAR).nonzero()
        start, above = self.start, costs[places].tolist()
        return {start + place: cost - least for place, cost in zip(places.tolist(), above, strict=True)}

    def stand(self, position: int) -> None:
        """The output is known to stand at `position`: whatever else it might have been is forgotten."""
        start = max(0, position - self._band)
        self._set_band(start, min(self._length, position + self._band) - start)
        self._base = position - start
        self._falls = (1 << self._base) - 1
        self._rises = self._all & ~self._falls
        self._place, self._stood = position, self._output

    def in_band(self, position: int) -> bool:
        """Whether `position` lies in the band."""
        return self.start <= position <= self.start + self._width

    def _near_place(self, place: int, since: int) -> dict[int, int]:
        """`near`, where the output stood at `place` before its last `since` tokens: then D[j] was |j - place|, and
        now it is at least |j - place - since|, the least at most `since`. Nothing else than this stretch is near."""
        first = max(place - NEAR, self.start)
        stop = min(place + 2 * since + NEAR, self.start + self._width)
        rises, falls = self._rises >> (first - self.start), self._falls >> (first - self.start)
        cost, costs = 0, [0]  # less D[first]
        for _ in range(stop - first):
            cost += (rises & 1) - (falls & 1)
            costs.append(cost)
            rises >>= 1
            falls >>= 1
        least = min(costs)
        return {position: cost - least for position, cost in enumerate(costs, first) if cost <= least + NEAR}

    def _set_band(self, start: int, width: int) -> None:
        self.start, self._width, self._all = start, width, (1 << width) - 1

    def _move_band(self) -> None:
        best, start = self.best(), self.start
        stop = start + self._width
        if best + self._band > stop:
            stop = min(best + 2 * self._band, self._length)
            self._rises |= ((1 << (stop - start)) - 1) & ~self._all  # behind the band D rises by 1 a position
        if best - self._band > start:
            past = best - self._band - start
            gone = (1 << past) - 1
            self._base += (self._rises & gone).bit_count() - (self._falls & gone).bit_count()
            self._rises >>= past
            self._falls >>= past
            start += past
        self._set_band(start, stop - start)
