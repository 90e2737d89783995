"""Base of formats that read files whole: a scanner finds the prose in the text, and everything else is kept."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import BinaryIO, Protocol

from ..documents import Edit, FormatError, Part, Refusal
from .anchors import linked
from .neighbours import NEVER, in_context
from .reading import (
    body_start,
    changed,
    check_encoding,
    encode,
    gathered,
    lines_of,
    read_lines,
)
from .segments import UNREADABLE, merged_spans, segment_of

SIZE_LIMIT = 32 << 20
"""Maximum characters of a file; hand-written ones are far smaller."""


@dataclass(frozen=True, slots=True)
class Prose:
    """A stretch of prose in a file's text: a paragraph, a heading, a cue, a comment. Offsets are in characters."""

    start: int
    end: int  # exclusive
    markup: Sequence[tuple[int, int]] = ()
    """Spans that must not change: tags, commands. They are hidden from the model unless that would join two words."""
    fixed: Sequence[tuple[int, int]] = ()  # spans that must not change but are shown: function names, formulas
    left_out: Sequence[tuple[int, int]] = ()  # spans that are never shown: the `# ` of a comment's second line
    is_title: bool = False  # a heading
    is_item: bool = False  # a list item, a cell or a label: like a heading, it gets no capital and no full stop
    ends: bool = True  # a sentence may end with it
    forbidden: str = ""  # characters that corrections must not insert, beside those of the format


_ADDRESS = re.compile(
    r"(?:https?|ftp)://[^\s<>\[\]{}\"'`|\\]*[\w/]|(?<![\w.+-])[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63}){1,8}"
)

Scanner = Callable[[str], Iterable[Prose]]
"""Finds the prose of a text, ascending, without overlaps. Raises FormatError if the text is not in its format."""


class LineReader(Protocol):
    """Collects the lines of a block."""

    def feed(self, start: int, body: str) -> Iterator[Prose]:
        """Read a line, without its end, that starts at character `start`."""

    def flush(self) -> Iterator[Prose]:
        """Yield what is open at the end of a block."""


def by_lines(text: str, reader: LineReader) -> Iterator[Prose]:
    """Yield the prose that `reader` finds line by line. A byte order mark belongs to no line: it would hide the markup
    after it. Nor does front matter."""
    at = body_start(text)
    for line in lines_of(text[at:]):
        yield from reader.feed(at, line.rstrip("\r\n"))
        at += len(line)
    yield from reader.flush()


class WholeFormat:
    """Each part is a stretch of prose, or the text before one."""

    def __init__(
        self,
        scan: Scanner,
        *,
        forbidden: str = "",
        begins_block: Callable[[str], bool] | None = None,
        border: re.Pattern[str] = NEVER,
        encoding: str = "utf-8",
    ) -> None:
        """`forbidden`: characters of markup, which corrections must not insert; `begins_block`: as of `Segment`;
        `border`: as of `in_context`."""
        self.scan = scan
        self.forbidden = forbidden
        self.begins_block = begins_block
        self.border = border
        self.encoding = check_encoding(encoding)

    def read(self, stream: BinaryIO) -> Iterator[Part]:
        text = whole(stream, self.encoding)
        # Bytes that are not text, and nothing else outside of ASCII: the file is in another encoding, and corrections
        # may add ASCII only, which nearly all encodings share.
        is_foreign = not text.isascii() and UNREADABLE.sub("", text).isascii()
        return gathered(
            in_context(self._parts(text), self.border, linked(text)), "ascii" if is_foreign else self.encoding
        )

    def write(self, part: Part, edits: Sequence[Edit]) -> bytes:
        return encode(changed(part.text, edits), self.encoding)

    def _parts(self, text: str) -> Iterator[Part]:
        at = 0
        for prose in self.scan(text):
            yield Part(text[at : prose.start])
            yield part_of(text[prose.start : prose.end], prose, self.forbidden, self.begins_block)
            at = prose.end
        yield Part(text[at:])


def whole(stream: BinaryIO, encoding: str) -> str:
    """The text of a file. Raises FormatError if it is longer than `SIZE_LIMIT`."""
    lines, size = [], 0
    for line in read_lines(stream, encoding):
        lines.append(line)
        size += len(line)
        if size > SIZE_LIMIT:
            raise FormatError(f"the file is longer than {SIZE_LIMIT >> 20} MB: split it")
    return "".join(lines)


def names(listed: str) -> frozenset[str]:
    """Split a string of names separated by spaces."""
    return frozenset(listed.split())


def within(spans: Sequence[tuple[int, int]], start: int, end: int) -> Sequence[tuple[int, int]]:
    """The spans that begin in start .. end - 1; `spans` ascend."""
    return spans[bisect_left(spans, (start,)) : bisect_left(spans, (end,))]


def part_of(piece: str, prose: Prose, forbidden: str, begins_block: Callable[[str], bool] | None) -> Part:
    """A stretch of prose as a part. `piece`: its text; `forbidden` and `begins_block`: those of the format."""
    size = len(piece)
    markup, fixed, left_out = (
        _inside(spans, prose.start, size) for spans in (prose.markup, prose.fixed, prose.left_out)
    )
    if "://" in piece or "@" in piece:
        fixed += [match.span() for match in _ADDRESS.finditer(piece)]
    start, end = _without_ends(piece, merged_spans(markup, left_out))
    segment = segment_of(piece, start, end)
    if not segment:
        return Part(piece)
    if isinstance(segment, Refusal):
        return Part(piece, refused=(segment,))
    start, end = segment.start, segment.end
    markup, fixed, left_out = (
        [(max(span[0], start), min(span[1], end)) for span in spans if span[0] < end and start < span[1]]
        for spans in (markup, fixed, left_out)
    )
    unseen = [span for span in markup if not _joins(piece, start, end, span)]
    segment = replace(
        segment,
        protected=merged_spans(_apart(segment.protected, markup), markup, fixed, left_out),
        hidden=merged_spans(unseen, left_out),
        forbidden=forbidden + prose.forbidden,
        begins_block=begins_block,
        is_title=prose.is_title,
        begins=not (prose.is_title or prose.is_item),
        ends=prose.ends and not (prose.is_title or prose.is_item),
    )
    return Part(piece, (segment,))


def _apart(spans: Sequence[tuple[int, int]], markup: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Keep only spans that no markup touches: `{cats}` is a placeholder in most texts, but not in `\\emph{cats}`."""
    pieces, at = [], 0
    for start, end in spans:
        while at < len(markup) and markup[at][1] <= start:
            at += 1
        if at == len(markup) or markup[at][0] >= end:
            pieces.append((start, end))
    return pieces


def _without_ends(piece: str, unseen: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """Span of the prose that the model sees, so that no word is added inside an empty link or before a label."""
    first, last = 0, len(unseen)
    start, end = 0, len(piece)
    while first < last and not piece[start : unseen[first][0]].strip():
        start, first = unseen[first][1], first + 1
    while first < last and not piece[unseen[last - 1][1] : end].strip():
        end, last = unseen[last - 1][0], last - 1
    return start, end


def _inside(spans: Sequence[tuple[int, int]], offset: int, size: int) -> list[tuple[int, int]]:
    """Convert spans of a file to spans of a stretch of `size` characters, cut at its ends."""
    moved = ((max(first - offset, 0), min(last - offset, size)) for first, last in spans)
    return [(first, last) for first, last in moved if first < last]


def _joins(piece: str, start: int, end: int, span: tuple[int, int]) -> bool:
    """Whether removing the span would join two words."""
    first, last = span
    return first > start and last < end and piece[first - 1].isalnum() and piece[last].isalnum()
