"""Spans: find the source and the range that each part of an output was copied from."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from copyspec.sources import OUTPUT
from copyspec.text.stops import Detokenizer
from copyspec.tree import Origin
from copyspec.views.provenance import Place, SourceText, Span

# Other places listed per span: enough to show that a phrase is common, without flooding the result.
MAX_TIES = 8


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
            ties = tuple(places.place(origin, length) for origin in finder.others(run))
            first, last = places.characters[run.start], places.characters[run.end]
            spans.append(Span(places.place(run.origin, length), run.start, run.end, first, last, ties))
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
    tokens: Sequence[int], decode: Callable[[Sequence[int]], str], *, takes_back: bool
) -> tuple[str, list[int]]:
    """The tokens' text, and the number of its characters before each token and after the last [n + 1].

    Negative ids (tokens that the model does not have) have no text.
    """
    detokenizer = Detokenizer(decode, takes_back=takes_back)
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
        self._sources = output.sources
        self._offsets: dict[int, Sequence[tuple[int, int]] | None] = {}
        _, characters = _decoded(output.tokens, decode, takes_back=output.takes_back)
        self.characters = [min(max(each - output.skipped, 0), len(output.text)) for each in characters]
        """Number of characters of the text before each output token and after the last. [n + 1]"""

    def place(self, origin: Origin, length: int) -> Place:
        index, start = origin
        end = start + length
        if index == OUTPUT:
            return Place("output", "output", None, start, end, self.characters[start], self.characters[end])
        source = self._sources[index]
        if index not in self._offsets:
            self._offsets[index] = source.offsets() if source.offsets is not None else None
        offsets = self._offsets[index]
        if offsets is None:
            return Place(source.name, source.kind, source.index, start, end, None, None)
        # Tokens that a tokenizer adds, such as the end of a prompt, have no characters: their range is (0, 0).
        ranges = [each for each in offsets[start:end] if each[0] < each[1]] or [offsets[start]]
        first, last = ranges[0][0], max(stop for _, stop in ranges)
        return Place(source.name, source.kind, source.index, start, end, first, last)


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
