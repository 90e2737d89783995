"""Files as pipelines see them: a file has parts, read one by one; a part has segments, the text to work on."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import BinaryIO, Protocol

_LINE_BREAK = re.compile(r"[\r\n]")


class FormatError(ValueError):
    """A file that cannot be read in its format."""


class FormatOptionError(FormatError):
    """A file that needs other options, such as its format or the column with the text."""


@dataclass(frozen=True, slots=True)
class Edit:
    """One replacement. Offsets are characters of the text that the edit belongs to."""

    start: int
    end: int  # exclusive; equal to start for an insertion
    replacement: str
    margin: float | None = field(default=None, compare=False)  # by which the model preferred it (`guards.judging`)


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a stretch of text was left unchanged."""

    reason: str  # a key for counting, such as "numbers", "ratio", "encoding"
    detail: str  # a description for people
    span: tuple[int, int] | None = field(default=None, compare=False)  # of the stretch in the part's text, if known

    def moved(self, by: int) -> Refusal:
        """The same refusal in a text that has `by` more characters before it."""
        return self if self.span is None else replace(self, span=(self.span[0] + by, self.span[1] + by))


def replacing(was: str, becomes: str) -> str:
    """What a replacement would do, as the beginning of a sentence for people."""
    if not was:
        return f"{becomes!r} would be added"
    return f"{was!r} would become {becomes!r}" if becomes else f"{was!r} would be removed"


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of a part's text for the model: a paragraph, a sentence, a table cell.

    It has no surrounding whitespace. `protected`: spans that must not change, such as inline code or a link's target.
    `hidden`: spans that the model does not see, such as the `> ` at the start of each line of a quoted paragraph. Both
    are in characters of the part's text, inside the segment, ascending.
    """

    start: int  # in characters of the part's text
    end: int
    protected: Sequence[tuple[int, int]] = ()
    hidden: Sequence[tuple[int, int]] = ()
    forbidden: str = ""  # characters of markup, which corrections must not insert
    is_tokenized: bool = False  # spaces separate words and punctuation, and must do so in corrections
    not_first: str = ""  # characters it may not newly begin with: a cell would become a formula
    begins: bool = True  # a sentence may begin with it; otherwise its first letter keeps its case
    ends: bool = True  # a sentence may end with it; otherwise it gets no full stop
    is_title: bool = False  # a heading: it does not go on in the text after it
    begins_block: Callable[[str], bool] | None = None
    """Whether a line with this text would be no prose, but the mark of a list item, for example. None: no line is."""

    def moved(self, by: int) -> Segment:
        """The same segment in a text that has `by` more characters before it."""
        protected, hidden = (
            tuple((start + by, end + by) for start, end in spans) for spans in (self.protected, self.hidden)
        )
        return replace(self, start=self.start + by, end=self.end + by, protected=protected, hidden=hidden)


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of a file: its text, and the segments in it.

    The parts of a plain text file, joined, are the file. Formats that embed texts (records, word processor files) give
    the embedded text, and keep in `carried` what they need to write the part back.
    Bytes that are not valid text are kept as lone surrogates (`surrogateescape`), outside of all segments.
    """

    text: str
    segments: Sequence[Segment] = ()
    refused: Sequence[Refusal] = ()  # segments that the format found but cannot offer for correction
    carried: object = None  # used by the format only
    encoding: str = "utf-8"  # corrections must be written in it

    @property
    def is_verbatim(self) -> bool:
        """Whether `text` is a stretch of the file itself, so that its offsets add up to offsets in the file."""
        return self.carried is None


class Format(Protocol):
    """A file format: reads parts in bounded memory, and writes a part back with the edits of its segments."""

    def read(self, stream: BinaryIO) -> Iterator[Part]:
        """Yield the parts of a file, in order. Their bytes as written by `write` without edits, joined, are the file.

        Raises FormatError if the file is not in this format.
        """

    def write(self, part: Part, edits: Sequence[Edit]) -> bytes:
        """Return the bytes of `part` with `edits` applied: ascending, not overlapping, offsets in `part.text`."""


def model_text(text: str, segment: Segment) -> str:
    """Return the segment as the model sees it: without hidden spans, and with line breaks as single spaces."""
    pieces, at = [], segment.start
    for start, end in segment.hidden:
        pieces.append(text[at:start])
        at = end
    pieces.append(text[at : segment.end])
    return _on_one_line("".join(pieces))


def edited(segment: Segment, edits: Sequence[Edit]) -> Segment:
    """The segment in the text that `edits` of it, ascending, make; without its protected spans."""

    def moved(at: int) -> int:
        return at + sum(len(edit.replacement) - (edit.end - edit.start) for edit in edits if edit.end <= at)

    hidden = tuple((moved(start), moved(end)) for start, end in segment.hidden)
    return replace(segment, end=moved(segment.end), hidden=hidden, protected=())


def _on_one_line(text: str) -> str:
    """Replace every line break with the white space around it by one space."""
    first, *rest = _LINE_BREAK.split(text)
    if not rest:
        return text
    middle = (line.strip() for line in rest[:-1])
    return " ".join([first.rstrip(), *(line for line in middle if line), rest[-1].lstrip()])
