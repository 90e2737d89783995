"""Plain text: each paragraph, or each line, is a segment."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import BinaryIO

from ..documents import Edit, Part, Refusal, Segment
from .neighbours import LINES, in_context
from .reading import (
    changed,
    check_encoding,
    encode,
    gathered,
    is_blank,
    lines_of,
    read_lines,
)
from .segments import segment_of

PARAGRAPH_LIMIT = 64 << 10
"""Maximum characters of a paragraph. Longer text without a blank line is a list or a log, and is cut between lines."""


class TextFormat:
    """Each part is a line, or a paragraph with the blank lines after it."""

    def __init__(self, *, by_line: bool = False, is_tokenized: bool = False, encoding: str = "utf-8") -> None:
        """`by_line`: each line is a segment, and the number of lines does not change. `is_tokenized`: spaces separate
        words and punctuation, and do so in corrections."""
        self.by_line = by_line
        self.is_tokenized = is_tokenized
        self.encoding = check_encoding(encoding)

    def read(self, stream: BinaryIO) -> Iterator[Part]:
        parts = self._parts(stream)
        return gathered(parts if self.is_tokenized else in_context(parts, LINES), self.encoding)

    def _parts(self, stream: BinaryIO) -> Iterator[Part]:
        lines = read_lines(stream, self.encoding)
        for text in lines if self.by_line else _paragraphs(lines):
            found = segment_of(text, 0, len(text), is_tokenized=self.is_tokenized)
            if isinstance(found, Refusal):
                yield Part(text, refused=(found,))
            else:
                yield Part(text, (found,) if found else ())

    def write(self, part: Part, edits: Sequence[Edit]) -> bytes:
        return encode(changed(part.text, edits), self.encoding)


def segments_of(text: str) -> tuple[tuple[Segment, ...], tuple[Refusal, ...]]:
    """The paragraphs of a text inside something else, such as a field or a cell."""
    found, at = [], 0
    for paragraph in _paragraphs(lines_of(text)):
        found.append(segment_of(text, at, at + len(paragraph)))
        at += len(paragraph)
    whole = Part(text, tuple(each for each in found if isinstance(each, Segment)))
    (part,) = in_context([whole], LINES)
    return tuple(part.segments), tuple(each for each in found if isinstance(each, Refusal))


def _paragraphs(lines: Iterator[str]) -> Iterator[str]:
    """Yield runs of non-blank lines, each with the blank lines after it."""
    gathered: list[str] = []
    size, had_blank = 0, False
    for line in lines:
        blank = is_blank(line)
        if gathered and ((had_blank and not blank) or size + len(line) > PARAGRAPH_LIMIT):
            yield "".join(gathered)
            gathered, size = [], 0
        gathered.append(line)
        size += len(line)
        had_blank = blank
    if gathered:
        yield "".join(gathered)
