"""Plain text: each paragraph, or each line, is a segment; and subtitles, whose times and settings are kept."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
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
from .whole import Prose, within

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
            segment = segment_of(text, 0, len(text), is_tokenized=self.is_tokenized)
            if isinstance(segment, Refusal):
                yield Part(text, refused=(segment,))
            else:
                yield Part(text, (segment,) if segment else ())

    def write(self, part: Part, edits: Sequence[Edit]) -> bytes:
        return encode(changed(part.text, edits), self.encoding)


def segments_of(text: str) -> tuple[tuple[Segment, ...], tuple[Refusal, ...]]:
    """The paragraphs of a text inside something else, such as a field or a cell."""
    segments, at = [], 0
    for paragraph in _paragraphs(lines_of(text)):
        segments.append(segment_of(text, at, at + len(paragraph)))
        at += len(paragraph)
    whole = Part(text, tuple(segment for segment in segments if isinstance(segment, Segment)))
    (part,) = in_context([whole], LINES)
    return tuple(part.segments), tuple(segment for segment in segments if isinstance(segment, Refusal))


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


FORBIDDEN = "<>{}\\"

_TIMES = re.compile(
    r"\s*(?:\d+:)?\d{1,2}:\d{2}[.,]\d{1,3}\s*-->\s*(?:\d+:)?\d{1,2}:\d{2}[.,]\d{1,3}"
    r"|\d+:\d{2}:\d{2}\.\d{3},\d+:\d{2}:\d{2}\.\d{3}\s*$"
)
_MARKUP = re.compile(r"<[^<>\n]{0,200}>|\{\\[^{}\n]{0,200}\}|\{[a-zA-Z]:[^{}\n]{0,80}\}")
_FIXED = re.compile(r"\\[Nnh]|&(?:[a-zA-Z]{1,40}|#\w{1,10});")
_SPEAKER = re.compile(r"[ \t]*(?:[-–—][ \t]*)?(?:[A-Z][A-Z .'-]{0,40}:[ \t]+|>>[ \t]*)?")
BORDER = re.compile(
    r"(?:[ \t]*(?:WEBVTT[^\r\n]*|[\d:.,]+[ \t]*(?:-->[^\r\n]*)?)?(?:\r\n|\n|\r))*"
    rf"(?:{_SPEAKER.pattern})(?:{_MARKUP.pattern})*"
)
"""Between two cues: a sentence may go on in the next."""
_NEXT_SPEAKER = re.compile(r"(?<=[\r\n])(?=[ \t]{0,8}[-–—])")


def cues(text: str) -> Iterator[Prose]:
    """Yield the text of each cue. One that does not end like a sentence continues in the next and gets no full stop."""
    at = previous = 0  # starts of this line and the one before
    start, is_open = 0, False
    for line in lines_of(text):
        if not line.strip():
            yield from _prose(text, start, at, is_open)
            is_open = False
        elif _TIMES.match(line):
            if is_open:
                # Leave out the number of the next cue if no blank line precedes it.
                end = previous if previous >= start and text[previous:at].strip().isdigit() else at
                yield from _prose(text, start, end, is_open)
            start, is_open = at + len(line), True
        previous, at = at, at + len(line)
    yield from _prose(text, start, at, is_open)


def _prose(text: str, start: int, end: int, is_open: bool) -> Iterator[Prose]:
    if not is_open or start >= end:
        return
    if speaker := _SPEAKER.match(text, start, end):
        start = speaker.end()
    markup, fixed = ([match.span() for match in pattern.finditer(text, start, end)] for pattern in (_MARKUP, _FIXED))
    # With two speakers in a cue, each line is a sentence of its own.
    lines = [match.end() for match in _NEXT_SPEAKER.finditer(text, start, end)]
    for first, last in pairwise([start, *lines, end]):
        yield Prose(first, last, within(markup, first, last), within(fixed, first, last), ends=False)
