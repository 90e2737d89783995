"""Plain text: paragraphs, or one segment a line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import BinaryIO

from ..documents import Edit, Part, Refusal, Segment
from .reading import (
    changed,
    check_encoding,
    encode,
    gathered,
    is_blank,
    lines_of,
    read_lines,
    segment_of,
)

PARAGRAPH_LIMIT = 64 << 10
"""Characters. What is longer without a blank line is no paragraph, but a list or a log: cut between lines."""


class TextFormat:
    """A part is a paragraph with the blank lines behind it, or a line."""

    def __init__(self, *, by_line: bool = False, is_tokenized: bool = False, encoding: str = "utf-8") -> None:
        """`by_line`: each line is a segment, and there are as many lines afterwards. `is_tokenized`: words and
        punctuation are set apart by spaces, and are so in corrections."""
        self.by_line = by_line
        self.is_tokenized = is_tokenized
        self.encoding = check_encoding(encoding)

    def read(self, stream: BinaryIO) -> Iterator[Part]:
        return gathered(self._parts(stream))

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
    """The paragraphs of a text that stands inside something else: a field, a cell."""
    found, at = [], 0
    for paragraph in _paragraphs(lines_of(text)):
        found.append(segment_of(text, at, at + len(paragraph)))
        at += len(paragraph)
    segments = tuple(each for each in found if isinstance(each, Segment))
    return segments, tuple(each for each in found if isinstance(each, Refusal))


def _paragraphs(lines: Iterator[str]) -> Iterator[str]:
    """Runs of lines that are not blank, each with the blank lines behind it."""
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
