"""References that are another version of the edited text: a correction by a smaller model, an earlier translation."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import SequenceMatcher

ALIKE = 0.6  # share of the tokens of both texts that a version has in common with the edited text, in order
LENGTHS = 1.5  # times as long as the other, at most
MOST = 4096  # tokens: comparing two texts takes the product of their lengths
LONGEST_SUFFIX = 16


class Version:
    """Where a version stands when the edited text stands at a position, and back. Positions are those of the corpus."""

    def __init__(self, tokens: list[int], source: range, version: range) -> None:
        """`tokens`: of the corpus, which grows."""
        self._tokens, self.source, self.version = tokens, source, version
        texts = [tokens[each.start : each.stop] for each in (source, version)]
        matcher = SequenceMatcher(None, texts[0], texts[1], autojunk=False)
        self.alike = matcher.ratio()
        self._beside: list[tuple[int, int]] = [(0, 0)] * (len(source) + 1)
        """By place in the edited text: the first and the last place of the version that may be meant."""
        self._back = [0] * (len(version) + 1)
        for kind, first, last, begin, end in matcher.get_opcodes():
            begun = self._beside[first][0] if first else 0  # an insertion stands before what comes next, too
            for place in range(first, last + 1):
                at = begin + place - first
                self._beside[place] = (at, at) if kind == "equal" else (begin, end)
            self._beside[first] = (begun if first else begin, self._beside[first][1])
            for place in range(begin, end + 1):
                self._back[place] = min(first + place - begin, last)

    def beside(self, position: int) -> tuple[int, int]:
        """Where the version stands when the edited text stands at `position`, by what the output ends with, and how
        many tokens of that stand before it there."""
        first, last = self._beside[position - self.source.start]
        best, longest = last, -1
        for place in range(first, last + 1):
            length = self._suffix(self.version.start + place)
            if length > longest or (length == longest and place == first):
                best, longest = place, length
        return self.version.start + best, longest

    def source_place(self, position: int) -> int:
        """Where the edited text stands when the version stands at `position`."""
        return self.source.start + self._back[position - self.version.start]

    def _suffix(self, position: int) -> int:
        tokens, end, length = self._tokens, len(self._tokens), 0
        most = min(LONGEST_SUFFIX, position - self.version.start)
        while length < most and tokens[position - 1 - length] == tokens[end - 1 - length]:
            length += 1
        return length


def may_be_version(source: int, version: int) -> bool:
    """Whether texts of so many tokens are worth comparing."""
    return max(source, version) <= min(MOST, LENGTHS * source, LENGTHS * version)


def version_of(versions: Iterable[Version], position: int) -> Version | None:
    """The version that holds a position."""
    return next((each for each in versions if position in each.version), None)
