"""Makes the segments of a text, and finds the spans in it that every format protects."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Protocol

from ..documents import Part, Refusal, Segment
from .reading import BOM

_TOKENS = re.compile(
    # special tokens of any tokenizer: <|endoftext|>, [INST], <<SYS>>, <0x0A>, [MASK]
    r"<[|｜][^<>\n]{1,80}[|｜]>|<</?\w{1,40}>>|\[/?[A-Z][A-Z_]{2,40}\d{0,4}\]"
    r"|</?[A-Za-z0-9_][^<>\n]{0,200}>"  # tags: <s>, <pad>, <extra_id_0>, <b>, <a href="x">
    # templates: {{x}}, {% x %}, {name}, ${x}, %(x)s
    r"|\{\{[^{}\n]{1,200}\}\}|\{%[^{}\n]{1,200}%\}|\$?\{[\w.:!-]{0,80}\}|%\(\w{1,80}\)[a-z]"
)
_TOKEN_STARTS = re.compile(r"[<\[{%]")
_LETTER = re.compile(r"[^\W\d_]")
UNREADABLE = re.compile("[\ud800-\udfff]")


def segment_of(text: str, start: int, end: int, *, is_tokenized: bool = False) -> Segment | Refusal | None:
    """The segment in a stretch of `text`, without surrounding white space. None if it has no letters."""
    piece = text[start:end]
    if not _LETTER.search(piece):
        return None
    if start == 0 and piece.startswith(BOM):
        start, piece = 1, piece[1:]
    start += len(piece) - len(piece.lstrip())
    end = start + len(piece.strip())
    if match := UNREADABLE.search(piece):
        byte = ord(match[0]) - 0xDC00
        what = f"the byte 0x{byte:02x}" if 0x80 <= byte <= 0xFF else f"half of a character ({match[0]!r})"
        detail = f"holds {what}, which is not UTF-8: name its encoding (encoding='cp1252'), or convert the file"
        return Refusal("encoding", detail, (start, end))
    if "\0" in piece:
        return Refusal("binary", "holds NUL characters", (start, end))
    return Segment(start, end, tokens(text, start, end), is_tokenized=is_tokenized)


def tokens(text: str, start: int, end: int) -> tuple[tuple[int, int], ...]:
    """Spans of special tokens, tags and placeholders in a stretch of `text`, which a change would break."""
    if not _TOKEN_STARTS.search(text, start, end):
        return ()
    return tuple(match.span() for match in _TOKENS.finditer(text, start, end))


def merged_spans(*groups: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Merge groups of spans into one ascending list without overlaps; spans that only meet stay apart."""
    merged: list[tuple[int, int]] = []
    for start, end in sorted(span for group in groups for span in group):
        if merged and start < merged[-1][1]:
            merged[-1] = merged[-1][0], max(end, merged[-1][1])
        else:
            merged.append((start, end))
    return tuple(merged)


OBJECT = "\ufffc"
"""Placeholder for what is not text in a word processor's file: pictures, references to notes, fields."""


class WordParagraph(Protocol):
    """A paragraph of a word processor's file."""

    is_title: bool
    is_item: bool
    is_code: bool
    is_revised: bool  # already holds tracked changes

    @property
    def text(self) -> str: ...


def paragraph_segment(
    paragraph: WordParagraph, pieces: Iterable[tuple[str, bool]], program: str
) -> Segment | Refusal | None:
    """The segment of a paragraph. `pieces`: its texts, and whether each may change; `program`: where tracked changes
    can be accepted."""
    text = paragraph.text
    segment = segment_of(text, 0, len(text))
    if not isinstance(segment, Segment):
        return segment
    if paragraph.is_code:
        return None
    if paragraph.is_revised:
        start = text.replace(OBJECT, "")[:40]
        detail = f"holds tracked changes in {start!r}: accept or reject them in {program} first"
        return Refusal("tracked", detail, (segment.start, segment.end))
    protected: list[tuple[int, int]] = []
    hidden: list[tuple[int, int]] = []
    at = 0
    for piece, is_text in pieces:
        span = (max(at, segment.start), min(at + len(piece), segment.end))
        at += len(piece)
        if span[0] >= span[1]:
            continue
        if not is_text:
            protected.append(span)
        if piece == OBJECT:
            hidden.append(span)
    is_sentence = not (paragraph.is_title or paragraph.is_item)
    return replace(
        segment,
        protected=merged_spans(segment.protected, protected),
        hidden=tuple(hidden),
        begins=is_sentence,
        ends=is_sentence,
        is_title=paragraph.is_title,
    )


def document_part(paragraphs: Iterable[tuple[str, Segment | Refusal | None]]) -> tuple[Part, list[int]]:
    """Join paragraphs, each a text and its segment, into one part, a line for each; return also where these begin."""
    text, starts, at = [], list[int](), 0
    segments: list[Segment] = []
    refused: list[Refusal] = []
    for line, segment in paragraphs:
        if isinstance(segment, Refusal):
            refused.append(segment.moved(at))
        elif segment is not None:
            segments.append(segment.moved(at))
        starts.append(at)
        text.append(line + "\n")
        at += len(text[-1])
    return Part("".join(text), tuple(segments), tuple(refused)), starts
