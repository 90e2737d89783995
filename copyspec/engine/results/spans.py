"""Spans: find the source and the range that each part of an output was copied from."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from copyspec.sources import OUTPUT
from copyspec.text.stops import INCOMPLETE, Detokenizer
from copyspec.tree import Origin
from copyspec.views.provenance import Place, SourceText, Span

# Other places listed per span: enough to show that a phrase is common, without flooding the result.
MAX_TIES = 8


CHARACTER = 8  # tokens that hold any character that was split into bytes

SHORT = 8
"""Length in tokens up to which a copied run may be merged into the next one, from another place."""


@dataclass(frozen=True, slots=True)
class Reference:
    """One reference, as text or as token ids."""

    name: str
    index: int | None
    """Index in the caller's `references`; None for predictions, edited texts and ambient references."""
    text: str | None = None
    ids: Sequence[int] | None = None
    kind: str = "reference"
    """The kind shown in spans. Kinds other than `reference` have no known relevance and get the prior of the prompt."""


@dataclass(frozen=True, slots=True)
class NamedSource:
    """A source with the name and kind that the caller sees."""

    name: str
    kind: str
    index: int | None
    tokens: Sequence[int]
    offsets: Callable[[], Sequence[tuple[int, int]]] | None = None
    """Character range of each token in the caller's text."""
    text: str | None = None
    """The caller's text; None for token ids and chats."""


@dataclass(slots=True)
class _Run:
    """Output tokens [start, end), equal to the source's tokens from `offset` on."""

    source: int
    offset: int
    start: int
    end: int

    @property
    def origin(self) -> Origin:
        return Origin(self.source, self.offset)

    def continues_at(self) -> int:
        return self.offset + self.end - self.start


@dataclass(frozen=True, slots=True)
class CopiedOutput:
    """An output with the origin of each of its tokens."""

    tokens: Sequence[int]  # [n]
    origins: Sequence[Origin | None]  # [n]; `Origin.source` indexes `sources`, or is `OUTPUT`
    sources: Sequence[NamedSource]
    text: str  # the result's text, which may end before the last token does
    skipped: int = 0  # characters of the decoded tokens before `text`
    takes_back: bool = False  # as for the `Detokenizer`
    before: Sequence[int] = ()  # the end of the prompt, which the text continues

    def find_spans(self, decode: Callable[[Sequence[int]], str], *, only_settled: bool = False) -> tuple[Span, ...]:
        """Spans of the output in its order. `only_settled`: only those that no further token can change."""
        runs = _join(self.tokens, self.origins, self.sources)
        if only_settled and runs and not _is_settled(runs[-1], len(self.tokens)):
            runs.pop()
        if not runs:
            return ()
        places = _Places(self, decode)
        finder = _Finder(self.tokens, self.sources)
        spans: list[Span] = []
        for run in runs:
            length = run.end - run.start
            whole = places.whole(run)
            others = (origin for origin in finder.others(run) if places.are_whole(origin, whole))
            ties = tuple(places.place(origin, length, whole) for origin in others)
            first, last = (places.characters[run.start + at] for at in whole)
            spans.append(Span(places.place(run.origin, length, whole), run.start, run.end, first, last, ties))
        return tuple(spans)

    def source_texts(self, decode: Callable[[Sequence[int]], str]) -> tuple[SourceText, ...]:
        """The texts of the sources; those given as token ids or chats are decoded from their tokens."""
        texts = []
        for source in self.sources:
            text, characters = source.text, None
            if text is None or source.offsets is None:
                text, characters = _decoded(source.tokens, decode, takes_back=self.takes_back)
            texts.append(SourceText(source.name, source.kind, source.index, text, characters))
        return (*texts, SourceText("output", "output", None, self.text))


def _join(tokens: Sequence[int], origins: Sequence[Origin | None], sources: Sequence[NamedSource]) -> list[_Run]:
    """Group copied tokens into runs. A run continues as long as its source matches, over tokens of the target itself
    and over tokens drafted from another place with the same text. A run also extends backwards over preceding tokens
    that its source holds: the target's own tokens, and a run of at most SHORT tokens from another place, since common
    words may be drafted from elsewhere before the right copy is found."""

    def at(source: int, offset: int) -> int | None:
        stream = tokens if source == OUTPUT else sources[source].tokens
        return stream[offset] if 0 <= offset < len(stream) else None

    runs: list[_Run] = []
    for i, (token, origin) in enumerate(zip(tokens, origins, strict=True)):
        last = runs[-1] if runs else None
        if last is not None and last.end == i and at(last.source, last.continues_at()) == token:
            last.end += 1
        elif origin is not None:
            is_short = last is not None and last.end - last.start <= SHORT
            floor = last.end if last is not None and not is_short else runs[-2].end if len(runs) > 1 else 0
            back = 0
            while back < i - floor and at(origin.source, origin.offset - back - 1) == tokens[i - back - 1]:
                back += 1
            if last is not None and is_short and back > i - last.end:
                if back >= i - last.start:
                    runs.pop()
                else:
                    back = i - last.end
            runs.append(_Run(origin.source, origin.offset - back, i - back, i + 1))
    return runs


def _is_settled(last: _Run, count: int) -> bool:
    """Whether the last run of `count` tokens is final: it has ended, and is too long to be merged into a later one."""
    return last.end < count and last.end - last.start > SHORT


def _decoded(
    tokens: Sequence[int], decode: Callable[[Sequence[int]], str], *, takes_back: bool, before: Sequence[int] = ()
) -> tuple[str, list[int]]:
    """The tokens' text after `before`, and the number of its characters before each token and after the last [n + 1].

    Negative ids (tokens that the model does not have) have no text.
    """
    detokenizer = Detokenizer(decode, before=before, takes_back=takes_back)
    pieces, characters = [], [0]
    for token in tokens:
        pieces.append(detokenizer.push([token]) if token >= 0 else "")
        characters.append(characters[-1] + len(pieces[-1]))
    pieces.append(detokenizer.finish())
    characters[-1] += len(pieces[-1])
    return "".join(pieces), characters


class _Places:
    """Converts origins into places with character offsets; each source's offsets are computed once."""

    def __init__(self, output: CopiedOutput, decode: Callable[[Sequence[int]], str]) -> None:
        self._sources, self._tokens, self._decode = output.sources, output.tokens, decode
        self._offsets: dict[int, Sequence[tuple[int, int]] | None] = {}
        _, characters = _decoded(output.tokens, decode, takes_back=output.takes_back, before=output.before)
        self.characters = [min(max(character - output.skipped, 0), len(output.text)) for character in characters]
        """Number of characters of the text before each output token and after the last. [n + 1]"""

    def whole(self, run: _Run) -> tuple[int, int]:
        """The first and the last place between tokens of the run, counted from its start, at which no character is
        split, neither in the output nor in the source: the characters between them are equal. (0, 0) if there are no
        two: the run is a part of a character."""
        length = run.end - run.start

        def is_whole(at: int) -> bool:
            return not self._splits(OUTPUT, run.start + at) and not self._splits(run.source, run.offset + at)

        first = next((at for at in range(length) if is_whole(at)), length)
        last = next((at for at in range(length, first, -1) if is_whole(at)), first)
        return (first, last) if first < last else (0, 0)

    def are_whole(self, origin: Origin, places: tuple[int, int]) -> bool:
        """Whether no character is split at two places between tokens, counted from `origin`."""
        return not any(self._splits(origin.source, origin.offset + at) for at in places)

    def place(self, origin: Origin, length: int, whole: tuple[int, int]) -> Place:
        """The place of `length` tokens, and of their characters between two places among them (`whole`)."""
        index, start = origin
        end, (first, last) = start + length, (start + at for at in whole)
        if index == OUTPUT:
            return Place("output", "output", None, start, end, self.characters[first], self.characters[last])
        source, offsets = self._sources[index], self._offsets_of(index)
        if offsets is None:
            return Place(source.name, source.kind, source.index, start, end, None, None)
        # Tokens that a tokenizer adds, such as the end of a prompt, have no characters: their range is (0, 0).
        ranges = [offset for offset in offsets[first:last] if offset[0] < offset[1]] or [(offsets[start][0],) * 2]
        begin, stop = ranges[0][0], max(stop for _, stop in ranges)
        return Place(source.name, source.kind, source.index, start, end, begin, stop)

    def _offsets_of(self, index: int) -> Sequence[tuple[int, int]] | None:
        if index not in self._offsets:
            offsets = self._sources[index].offsets
            self._offsets[index] = offsets() if offsets is not None else None
        return self._offsets[index]

    def _splits(self, index: int, at: int) -> bool:
        """Whether a character is split between the tokens before `at` and those from `at` on, of a source or the
        output."""
        if index == OUTPUT:
            before = [token for token in self._tokens[max(0, at - CHARACTER) : at] if token >= 0]
            return bool(before) and self._decode(before).endswith(INCOMPLETE)
        offsets = self._offsets_of(index)
        if offsets is None or not 0 < at < len(offsets):
            return False
        start, end = offsets[at]
        return start < end and start < offsets[at - 1][1]


class _Finder:
    """Finds the same tokens elsewhere, by searching the sources as bytes of 64-bit integers."""

    def __init__(self, tokens: Sequence[int], sources: Sequence[NamedSource]) -> None:
        self._own = array("q", tokens).tobytes()
        self._haystacks = [array("q", source.tokens).tobytes() for source in sources]
        self._width = array("q").itemsize

    def others(self, run: _Run) -> Iterator[Origin]:
        """Yield up to MAX_TIES other places that hold the run's tokens, in the sources or in the output before the
        run."""
        needle = self._own[run.start * self._width : run.end * self._width]
        places = [(i, haystack) for i, haystack in enumerate(self._haystacks)]
        places.append((OUTPUT, self._own[: run.start * self._width]))
        left = MAX_TIES
        for source, haystack in places:
            at = haystack.find(needle)
            while at >= 0 and left:
                offset, misaligned = divmod(at, self._width)
                if not misaligned and (source, offset) != (run.source, run.offset):
                    left -= 1
                    yield Origin(source, offset)
                at = haystack.find(needle, at + 1)
