"""References that are another version of the edited text, such as a smaller model's correction of it.

A version is aligned with the edited text, so that a position in one gives the position in the other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from itertools import accumulate

ALIKE = 0.6  # least similarity (SequenceMatcher.ratio) of a version and the edited text
LENGTHS = 1.5  # largest ratio of their lengths
MAX_LENGTH = 4096  # of a text that is compared, in tokens
MAX_STEPS = 1 << 23
"""Maximum number of steps of all comparisons of a row, about half a second: the tokens of both texts, and the pairs of
equal tokens that are looked at. Two versions of MAX_LENGTH tokens take one to six million; repetitive texts could take
up to the cube of their lengths."""
LONGEST_SUFFIX = 16

Block = tuple[int, int, int]
"""Equal tokens: their offset in one text, that in the other, and their number."""

Opcode = tuple[str, int, int, int, int]
"""How a part of one text becomes that of the other, as `SequenceMatcher.get_opcodes` says it."""


class Version:
    """Maps positions of the edited text to positions of one version, and back. Positions are those of the corpus."""

    def __init__(self, tokens: list[int], source: range, version: range, opcodes: Iterable[Opcode]) -> None:
        """`tokens`: the corpus, which grows with the output; `source`, `version`: the spans of the two texts, which
        differ by `opcodes`."""
        self._tokens, self.source, self.version = tokens, source, version
        self._beside: list[tuple[int, int]] = [(0, 0)] * (len(source) + 1)
        """By offset in the edited text: the first and last offset in the version that may correspond."""
        self._back = [0] * (len(version) + 1)
        for kind, first, last, begin, end in opcodes:
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


@dataclass(slots=True)
class VersionComparisons:
    """The comparisons of one call. Its rows often have the same texts, and a batch waits while a row begins."""

    _found: dict[tuple[Sequence[int], Sequence[int], int], tuple[Sequence[Opcode] | None, int]] = field(
        default_factory=dict
    )

    def opcodes(self, text: tuple[int, ...], other: tuple[int, ...], steps: int) -> tuple[Sequence[Opcode] | None, int]:
        """How `other` differs from `text`, and how many of the row's `steps` are left. None: it is no version of it,
        or the steps did not suffice (left: below 0)."""
        key = text, other, steps
        if key not in self._found:
            self._found[key] = _compared(text, other, steps)
        return self._found[key]


def _compared(text: Sequence[int], other: Sequence[int], steps: int) -> tuple[Sequence[Opcode] | None, int]:
    steps -= len(text) + len(other)  # to prepare the comparison
    if steps < 0:
        return None, steps
    matcher = SequenceMatcher(None, text, other, autojunk=False)
    if matcher.quick_ratio() < ALIKE:  # an upper bound
        return None, steps
    steps = compare(matcher, text, other, steps)
    return (matcher.get_opcodes() if steps >= 0 and matcher.ratio() >= ALIKE else None), steps


def find_versions(
    tokens: list[int], source: range, references: Iterable[range], comparisons: VersionComparisons | None = None
) -> list[Version]:
    """Return those of the references (spans of `tokens`) that are versions of the edited text (`source`)."""
    comparable = [reference for reference in references if _may_be_version(len(source), len(reference))]
    if not comparable:
        return []
    comparisons, steps = comparisons or VersionComparisons(), MAX_STEPS
    versions: list[Version] = []
    text = tuple(tokens[source.start : source.stop])
    for reference in comparable:
        opcodes, steps = comparisons.opcodes(text, tuple(tokens[reference.start : reference.stop]), steps)
        if opcodes is not None:
            versions.append(Version(tokens, source, reference, opcodes))
        if steps < 0:
            break
    return versions


def _may_be_version(source: int, version: int) -> bool:
    """Whether texts of these lengths, in tokens, are worth comparing."""
    return max(source, version) <= min(MAX_LENGTH, LENGTHS * source, LENGTHS * version)


def compare(matcher: SequenceMatcher[int], text: Sequence[int], other: Sequence[int], steps: int) -> int:
    """Find the matching blocks of `matcher`, made of both texts, as its `get_matching_blocks`. Returns how many steps
    of `steps` are left; below 0, the texts were not compared."""
    counts = Counter(other)
    # Steps of a search in text[:i], each of whose tokens is compared with its occurrences in the whole other text.
    before = [0, *accumulate(counts[token] for token in text)]
    parts, blocks = [(0, len(text), 0, len(other))], list[Block]()
    while parts:
        first, last, begin, end = parts.pop()
        steps -= before[last] - before[first]
        if steps < 0:
            return steps
        at, other_at, size = matcher.find_longest_match(first, last, begin, end)
        if size:
            blocks.append((at, other_at, size))
            parts += [(first, at, begin, other_at), (at + size, last, other_at + size, end)]
    # Where `get_matching_blocks` keeps its own result.
    matcher.matching_blocks = _joined(sorted(blocks), len(text), len(other))  # type: ignore[attr-defined]
    return steps


def _joined(blocks: Iterable[Block], end: int, other_end: int) -> list[Block]:
    """The blocks, those that follow each other joined, and an empty one at the ends of both texts."""
    joined: list[Block] = []
    for at, other_at, size in blocks:
        before = joined[-1] if joined else (0, 0, 0)
        if joined and (at, other_at) == (before[0] + before[2], before[1] + before[2]):
            joined[-1] = (before[0], before[1], before[2] + size)
        else:
            joined.append((at, other_at, size))
    return [*joined, (end, other_end, 0)]


def version_of(versions: Iterable[Version], position: int) -> Version | None:
    """Return the version that holds `position`, or None."""
    for version in versions:
        if position in version.version:
            return version
    return None
