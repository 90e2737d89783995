"""What a file is to a pipeline: parts that are read one by one, each with the stretches of text to work on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import BinaryIO, Protocol


@dataclass(frozen=True, slots=True)
class Edit:
    """One replacement. Offsets are characters of the text that the edit belongs to."""

    start: int
    end: int  # exclusive; equal to start for an insertion
    replacement: str


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of a part's text for the model: a paragraph, a sentence, a table cell.

    Whitespace around it does not belong to it. Where a segment holds characters that must not change (inline code,
    a link's target), `protected` says which.
    """

    start: int  # characters of the part's text
    end: int
    protected: Sequence[tuple[int, int]] = ()  # characters of the part's text, inside the segment, ascending


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of a file: its exact text and the segments in it. The parts of a file, joined, are the file.

    Bytes that are not valid text are kept as lone surrogates (`surrogateescape`); no segment holds any.
    """

    text: str
    segments: Sequence[Segment] = ()


class Format(Protocol):
    """One file format: reads parts in bounded memory and writes a part back with the edits of its segments."""

    def read(self, stream: BinaryIO) -> Iterator[Part]:
        """The parts of a file, in order. Joining the bytes that `write` gives without edits is the file."""
        ...

    def write(self, part: Part, edits: Sequence[Edit]) -> bytes:
        """The bytes of `part` with `edits` applied: ascending, not overlapping, offsets in `part.text`."""
        ...
