"""Which characters of a text were copied from which characters of which source."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol


@dataclass(frozen=True, slots=True)
class SourceText:
    """A text that was there to copy from."""

    name: str
    kind: str  # edit, reference, prompt, output, or what a caller calls it
    index: int | None = None  # of the reference in the caller's order
    text: str | None = None
    """None: not known any more."""
    characters: Sequence[int] | None = None
    """Where each token of the source begins in `text`, and where the last one ends: for places that have no characters
    of their own. [n + 1]"""


@dataclass(frozen=True, slots=True)
class TextPlace:
    """Characters of a source."""

    source: int  # index into `Provenance.sources`
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class CopiedPiece:
    """Characters of the text, and the same characters in a source."""

    start: int
    end: int
    place: TextPlace
    ties: tuple[TextPlace, ...] = ()
    """Other places that hold the same characters."""


@dataclass(frozen=True, slots=True)
class Provenance:
    """A text with the origin of what was copied in it. `pieces` stand in its order and do not overlap."""

    text: str
    sources: tuple[SourceText, ...]
    pieces: tuple[CopiedPiece, ...]

    def __post_init__(self) -> None:
        """Raises ValueError where a piece does not say what its source says."""
        end = 0
        for piece in self.pieces:
            if not end <= piece.start < piece.end <= len(self.text):
                raise ValueError(
                    f"piece {piece!r} overlaps the one before it, or ends outside a text of {len(self.text)}"
                )
            end = piece.end
            for place in (piece.place, *piece.ties):
                there = self.sources[place.source].text
                if there is not None and there[place.start : place.end] != self.text[piece.start : piece.end]:
                    raise ValueError(
                        f"the text has {self.text[piece.start : piece.end]!r}, which is not what {place} holds"
                    )

    def copied_characters(self) -> list[int]:
        """How many characters of the text came from each source. [len(sources)]"""
        counts = [0] * len(self.sources)
        for piece in self.pieces:
            counts[piece.place.source] += piece.end - piece.start
        return counts

    def stretches(self) -> Iterator[tuple[int, int, CopiedPiece | None]]:
        """The whole text in its order: (start, end, the piece, or None for what the model wrote itself)."""
        at = 0
        for piece in self.pieces:
            if at < piece.start:
                yield at, piece.start, None
            yield piece.start, piece.end, piece
            at = piece.end
        if at < len(self.text):
            yield at, len(self.text), None

    def ranked(self) -> list[int]:
        """Indices of the sources, those with most characters first; of equal ones in their order."""
        counts = self.copied_characters()
        return sorted(range(len(self.sources)), key=lambda source: -counts[source])

    def kept_below(self, characters: int) -> Provenance:
        """Without the texts of sources that nothing was copied from, and of the longest beyond so many characters."""
        counts, left = self.copied_characters(), characters
        texts: dict[int, str | None] = {}
        for index, source in sorted(enumerate(self.sources), key=lambda item: len(item[1].text or "")):
            keeps = counts[index] > 0 and source.text is not None and len(source.text) <= left
            texts[index] = source.text if keeps else None
            left -= len(source.text or "") if keeps else 0
        sources = (replace(source, text=texts[index]) for index, source in enumerate(self.sources))
        return replace(self, sources=tuple(sources))


class _Place(Protocol):
    """As `engine.results.Place`."""

    @property
    def source(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def index(self) -> int | None: ...
    @property
    def start(self) -> int: ...
    @property
    def end(self) -> int: ...
    @property
    def start_char(self) -> int | None: ...
    @property
    def end_char(self) -> int | None: ...


class _Span(Protocol):
    """As `engine.results.Span`."""

    @property
    def start_char(self) -> int: ...
    @property
    def end_char(self) -> int: ...
    @property
    def place(self) -> _Place: ...
    @property
    def ties(self) -> Sequence[_Place]: ...


def provenance_of(text: str, spans: Sequence[_Span], sources: Sequence[SourceText]) -> Provenance:
    """The spans of an output as characters that are equal on both sides.

    Tokens do not end where characters do, tokenizers put a space before a text or write it in another form: of a span
    only those characters are kept that the source has. `sources` may lack some, or all, whose text is then not known.
    """
    finder = _SourceFinder(text, sources)
    pieces: list[CopiedPiece] = []
    for span in spans:
        pieces += _pieces(finder, span)
    return Provenance(text, tuple(finder.sources), tuple(pieces))


class _SourceFinder:
    """The sources that places name."""

    def __init__(self, text: str, sources: Sequence[SourceText]) -> None:
        self.sources = list(sources)
        self.text = text
        self._named: dict[tuple[str, str, int | None], list[int]] = {}
        for number, source in enumerate(sources):
            self._named.setdefault((source.name, source.kind, source.index), []).append(number)

    def candidates(self, place: _Place) -> list[int]:
        """Several sources may have one name: what they say tells them apart."""
        key = (place.source, place.kind, place.index)
        if key not in self._named:
            self._named[key] = [len(self.sources)]
            self.sources.append(SourceText(*key, text=self.text if place.kind == "output" else None))
        return self._named[key]

    def characters(self, number: int, place: _Place) -> tuple[int, int] | None:
        """Of the place in the source's text."""
        if place.start_char is not None and place.end_char is not None:
            return place.start_char, place.end_char
        known = self.sources[number].characters
        # Another source of the same name may be shorter.
        return None if known is None or place.end >= len(known) else (known[place.start], known[place.end])


def _pieces(finder: _SourceFinder, span: _Span) -> list[CopiedPiece]:
    text = finder.text[span.start_char : span.end_char]
    found = _matches(finder, text, span.place)
    if not found:
        return []
    ties = [match for tie in span.ties for match in _matches(finder, text, tie)]
    pieces = []
    for offset, place in found:
        start, end = span.start_char + offset, span.start_char + offset + place.end - place.start
        others = []
        for other, tie in ties:  # one that holds all of the piece
            first = tie.start + offset - other
            if other <= offset and first + place.end - place.start <= tie.end:
                others.append(TextPlace(tie.source, first, first + place.end - place.start))
        unique = tuple(dict.fromkeys(each for each in others if each != place))
        pieces.append(CopiedPiece(start, end, place, unique))
    return pieces


def _matches(finder: _SourceFinder, text: str, place: _Place) -> list[tuple[int, TextPlace]]:
    """Stretches of `text` that the place holds: (where in `text`, where in the source)."""
    best: list[tuple[int, TextPlace]] = []
    for number in finder.candidates(place):
        characters = finder.characters(number, place)
        if characters is None:
            continue
        start, end = characters
        there = finder.sources[number].text
        if there is None:
            runs = [(0, 0, len(text))] if end - start == len(text) > 0 else []
        else:
            runs = list(equal_runs(text, there[start:end]))
        matches = [(here, TextPlace(number, start + at, start + at + length)) for here, at, length in runs]
        if sum(each.end - each.start for _, each in matches) > sum(each.end - each.start for _, each in best):
            best = matches
    return best


def equal_runs(first: str, second: str) -> Iterator[tuple[int, int, int]]:
    """Where two texts that should be equal are: (start in the first, start in the second, length).

    White space at the beginning may differ, and one stretch between a common beginning and a common end.
    """
    if first == second:
        yield from [(0, 0, len(first))] if first else []
        return
    skip, skip_second = (len(each) - len(each.lstrip()) for each in (first, second))
    common = min(skip, skip_second)  # white space that both have stays
    skip, skip_second = skip - common, skip_second - common
    first, second = first[skip:], second[skip_second:]
    head = _common(first, second)
    if head:
        yield skip, skip_second, head
    rest, rest_second = first[head:], second[head:]
    tail = _common(rest[::-1], rest_second[::-1])
    if tail:
        yield skip + len(first) - tail, skip_second + len(second) - tail, tail


def _common(first: str, second: str) -> int:
    """Length of the common prefix."""
    return next(
        (at for at, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), min(len(first), len(second))
    )
