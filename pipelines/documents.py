"""What a file is to a pipeline: parts that are read one by one, each with the stretches of text to work on."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import BinaryIO, Protocol

_LINE_BREAK = re.compile(r"[\r\n]")


class FormatError(ValueError):
    """A file that cannot be read as the format that was chosen for it."""


@dataclass(frozen=True, slots=True)
class Edit:
    """One replacement. Offsets are characters of the text that the edit belongs to."""

    start: int
    end: int  # exclusive; equal to start for an insertion
    replacement: str


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a stretch of text stays as it was."""

    reason: str  # one word to count by: "numbers", "ratio", "encoding"
    detail: str  # for people: what was found


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of a part's text for the model: a paragraph, a sentence, a table cell.

    Whitespace around it does not belong to it. Where a segment holds characters that must not change (inline code,
    a link's target), `protected` says which; `hidden` are those that the model is not even shown (the `> ` with which
    each line of a quoted paragraph begins). Both are characters of the part's text, inside the segment, ascending.
    """

    start: int  # characters of the part's text
    end: int
    protected: Sequence[tuple[int, int]] = ()
    hidden: Sequence[tuple[int, int]] = ()
    forbidden: str = ""  # characters that a correction may not bring: markup
    is_tokenized: bool = False  # words and punctuation are set apart by spaces, and corrections must be too
    not_first: str = ""  # what it may not begin with, unless it did: a cell would become a formula
    is_label: bool = False  # a heading, a cell of a table: no sentence, and it begins with a capital only if it did


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of a file: its text, and the segments in it.

    The parts of a file of plain text, joined, are the file. Formats that hold texts inside something else (records,
    a word processor's file) give the texts, and keep what they need to write a part back in `carried`.
    Bytes that are not valid text are kept as lone surrogates (`surrogateescape`); no segment holds any.
    """

    text: str
    segments: Sequence[Segment] = ()
    refused: Sequence[Refusal] = ()  # what the format found, but must leave as it is
    carried: object = None  # opaque to everybody but the format

    @property
    def is_verbatim(self) -> bool:
        """Whether `text` is what stands in the file, so that its offsets add up to offsets of the file."""
        return self.carried is None


class Format(Protocol):
    """One file format: reads parts in bounded memory and writes a part back with the edits of its segments."""

    def read(self, stream: BinaryIO) -> Iterator[Part]:
        """The parts of a file, in order. Joining the bytes that `write` gives without edits is the file.

        Raises FormatError where the file is none of this format.
        """
        ...

    def write(self, part: Part, edits: Sequence[Edit]) -> bytes:
        """The bytes of `part` with `edits` applied: ascending, not overlapping, offsets in `part.text`."""
        ...


def shown(text: str, segment: Segment) -> str:
    """The segment as the model sees it: without what is hidden, line breaks inside a paragraph as single spaces."""
    pieces, at = [], segment.start
    for start, end in segment.hidden:
        pieces.append(text[at:start])
        at = end
    pieces.append(text[at : segment.end])
    return _on_one_line("".join(pieces))


def _on_one_line(text: str) -> str:
    """`text` with every line break, and the white space around it, as one space."""
    first, *rest = _LINE_BREAK.split(text)
    if not rest:
        return text
    middle = (line.strip() for line in rest[:-1])
    return " ".join([first.rstrip(), *(line for line in middle if line), rest[-1].lstrip()])
