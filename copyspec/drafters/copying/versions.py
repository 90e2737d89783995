"""References that are another version of the edited text, such as a smaller model's correction of it.

A version is aligned with the edited text, so that a position in one gives the position in the other.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import SequenceMatcher

ALIKE = 0.6  # least similarity (SequenceMatcher.ratio) of a version and the edited text
LENGTHS = 1.5  # largest ratio of their lengths
MOST = 4096  # longest text compared, in tokens: the time grows with the product of the lengths
LONGEST_SUFFIX = 16


class Version:
    """Maps positions of the edited text to positions of one version, and back. Positions are those of the corpus."""

    def __init__(self, tokens: list[int], source: range, version: range) -> None:
        """`tokens`: the corpus, which grows with the output; `source`, `version`: the spans of the two texts."""
        self._tokens, self.source, self.version = tokens, source, version
        texts = [tokens[each.start : each.stop] for each in (source, version)]
        matcher = SequenceMatcher(None, texts[0], texts[1], autojunk=False)
        self.alike = matcher.ratio()
        self._beside: list[tuple[int, int]] = [(0, 0)] * (len(source) + 1)
        """By offset in the edited text: the first and last offset in the version that may correspond."""
        self._back = [0] * (len(version) + 1)
        for kind, first, last, begin, end in matcher.get_opcodes():
            begun = self._beside[first][0] if first else 0  # an insertion also belongs to the offset it precedes
            for place in range(first, last + 1):
                at = begin + place - first
                self._beside[place] = (at, at) if kind == "equal" else (begin, end)
            self._beside[first] = (begun if first else begin, self._beside[first][1])
            for place in range(begin, end + 1):
                self._back[place] = min(first + place - begin, last)

    def beside(self, position: int) -> tuple[int, int]:
        """Return the version's position for `position` in the edited text, and the length of the suffix match there.

        Of several candidates the one with the longest suffix match with the output is taken."""
        first, last = self._beside[position - self.source.start]
        best, longest = last, -1
        for place in range(first, last + 1):
            length = self._suffix(self.version.start + place)
            if length > longest or (length == longest and place == first):
                best, longest = place, length
        return self.version.start + best, longest

    def source_place(self, position: int) -> int:
        """Return the edited text's position for `position` in the version."""
        return self.source.start + self._back[position - self.version.start]

    def _suffix(self, position: int) -> int:
        tokens, end, length = self._tokens, len(self._tokens), 0
        most = min(LONGEST_SUFFIX, position - self.version.start)
        while length < most and tokens[position - 1 - length] == tokens[end - 1 - length]:
            length += 1
        return length


def may_be_version(source: int, version: int) -> bool:
    """Whether texts of these lengths, in tokens, are worth comparing."""
    return max(source, version) <= min(MOST, LENGTHS * source, LENGTHS * version)


def version_of(versions: Iterable[Version], position: int) -> Version | None:
    """Return the version that holds `position`, or None."""
    for each in versions:
        if position in each.version:
            return each
    return None
